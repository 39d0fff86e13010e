/*
 * Shared by the C files of the component: requests, and what each file offers the others.
 */
#ifndef VPROTOCOL_CORRELATED_H
#define VPROTOCOL_CORRELATED_H

#include "compat.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/class/opal_free_list.h"
#include "ompi/communicator/communicator.h"
#include "ompi/constants.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/mca/vprotocol/vprotocol.h"
#include "ompi/message/message.h"
#include "ompi/request/request.h"
#include "glue.h"

#define CORRELATED_VERSION_MAJOR 0
#define CORRELATED_VERSION_MINOR 2
#define CORRELATED_VERSION_RELEASE 0

/* ---- component, module, parameters ---------------------------------------------------------- */

extern mca_vprotocol_base_component_2_0_0_t mca_vprotocol_correlated_component;
extern mca_pml_base_module_t mca_vprotocol_correlated_pml;
extern rustbtl_config_t mca_vprotocol_correlated_config;
/* More than one thread may be inside MPI at the same time. */
extern bool mca_vprotocol_correlated_threads;

int mca_vprotocol_correlated_register(void);
void mca_vprotocol_correlated_register_pvars(void);
mca_pml_base_module_t *mca_vprotocol_correlated_init(int *priority, bool progress_threads,
                                                     bool mpi_threads);
int mca_vprotocol_correlated_finalize(void);
/* Wait for the others if nothing else in MPI_Finalize has. */
void mca_vprotocol_correlated_last_fence(void);
/* Was this process made from an image? */
bool mca_vprotocol_correlated_is_restored(void);
void mca_vprotocol_correlated_help_open(void);
/* The parameter `verbose`: where it goes, -1 where nobody wants it. */
extern int mca_vprotocol_correlated_stream;
void mca_vprotocol_correlated_verbose_open(void);
void rustbtl_glue_verbose(int32_t level, const char *line);
extern int mca_vprotocol_correlated_priority;
/* One-sided communication: before its framework opens, after, and for processes that are added. */
void mca_vprotocol_correlated_osc_open(void);
int mca_vprotocol_correlated_osc_start_btls(void);
void mca_vprotocol_correlated_osc_enable(void);
/* A communicator that is being made is for osc/pt2pt. */
extern bool mca_vprotocol_correlated_makes_window;
int mca_vprotocol_correlated_osc_add_procs(struct ompi_proc_t **procs, size_t count);
int mca_vprotocol_correlated_osc_del_procs(struct ompi_proc_t **procs, size_t count);
/* A window is made, or is going to be: RUSTBTL_WINDOW_*. */
void mca_vprotocol_correlated_window_made(int how, struct ompi_win_t *window,
                                          struct ompi_communicator_t *comm);
/* One-sided communication of our own (vprotocol_correlated_onesided.c): from the parameter. */
extern bool mca_vprotocol_correlated_one_sided;
/* Memory of MPI_Win_allocate up to this size may be mapped by other ranks of the node. */
extern uint64_t mca_vprotocol_correlated_window_mapped_max;
void mca_osc_correlated_open(void);
void mca_osc_correlated_enable(void);
/* Data that was fetched from a window is here. */
void mca_osc_correlated_fetched(rustbtl_operation_t *op);
/* Collectives of our own (vprotocol_correlated_collectives.c): from the parameters. */
extern bool mca_vprotocol_correlated_collectives;
extern bool mca_vprotocol_correlated_collectives_over_sets;
extern bool mca_vprotocol_correlated_collectives_over_sets_all;
extern uint64_t mca_vprotocol_correlated_collectives_memory;
extern uint32_t mca_vprotocol_correlated_collectives_ranks_max;
void mca_coll_correlated_open(void);
void mca_coll_correlated_clock_open(void);
/* Value of a framework's selection list, NULL if the user gave none. */
const char *mca_vprotocol_correlated_selection(const char *framework);
/* Fill `job`; what it points to lives as long as the process. */
int mca_vprotocol_correlated_job(rustbtl_job_t *job);
void mca_vprotocol_correlated_mend_locality(ompi_communicator_t *world);
int mca_vprotocol_correlated_publish(const uint8_t *endpoint, size_t bytes);

/* The functions behind rustbtl_glue_t. */
void rustbtl_glue_complete(rustbtl_operation_t *op);
int32_t rustbtl_glue_complete_now(rustbtl_operation_t *op);
int32_t rustbtl_glue_is_step(rustbtl_operation_t *op);
void rustbtl_glue_pack(void *convertor, uint64_t offset, uint8_t *into, uint64_t bytes);
void rustbtl_glue_unpack(void *convertor, uint64_t offset, const uint8_t *from, uint64_t bytes);
void rustbtl_glue_resolve(void *handle, uint32_t rank, int32_t local, rustbtl_name_t *name);
uint8_t *rustbtl_glue_endpoint_of(const rustbtl_name_t *name, size_t *bytes);
void rustbtl_glue_progress(void);
int32_t rustbtl_glue_yields(void);
void rustbtl_glue_help(const char *topic, const char *a, const char *b, const char *c,
                       const char *d);
void rustbtl_glue_abort(void) __attribute__((noreturn));
void rustbtl_glue_cleanup(const char *path);
int32_t rustbtl_glue_stage(void);
int32_t rustbtl_glue_protect(void);
void rustbtl_glue_restored(void);
void rustbtl_glue_fenced(void);

/* ---- requests ------------------------------------------------------------------------------- */

typedef enum {
    CORRELATED_SEND,
    CORRELATED_RECEIVE,
    CORRELATED_BUFFERED /* the engine's half of a buffered send: nobody waits for it */
} mca_vprotocol_correlated_kind_t;

typedef struct mca_vprotocol_correlated_request_t {
    ompi_request_t ompi;
    rustbtl_operation_t op;
    /* One for the handle that the program (or Open MPI) has, one for the engine. */
    int32_t references;
    mca_vprotocol_correlated_kind_t kind;
    mca_pml_base_send_mode_t mode;
    int peer;
    int tag;
    void *buffer;
    size_t count;
    ompi_datatype_t *datatype; /* retained, or NULL */
    ompi_communicator_t *comm; /* retained while the engine has the operation, or NULL */
    opal_convertor_t convertor;
    bool uses_convertor;
} mca_vprotocol_correlated_request_t;

OBJ_CLASS_DECLARATION(mca_vprotocol_correlated_request_t);

int mca_vprotocol_correlated_requests_open(void);
void mca_vprotocol_correlated_requests_close(void);
void mca_vprotocol_correlated_outcomes_open(void);
extern const rustbtl_interposed_t mca_vprotocol_correlated_interposed[];
int mca_vprotocol_correlated_get_status(MPI_Request request, int *flag, MPI_Status *status);
/* There are windows. */
void mca_vprotocol_correlated_outcomes_with_windows(void);
void mca_vprotocol_correlated_outcomes_close(void);
mca_vprotocol_correlated_request_t *
mca_vprotocol_correlated_request_new(mca_vprotocol_correlated_kind_t kind, void *buffer,
                                     size_t count, ompi_datatype_t *datatype, int peer, int tag,
                                     ompi_communicator_t *comm, bool persistent);
/* Receive into contiguous memory: a new request, which may be complete already. */
int mca_vprotocol_correlated_request_receive(void *buffer, size_t count,
                                             const ompi_datatype_t *datatype, int source, int tag,
                                             ompi_communicator_t *comm, ompi_request_t **handle);
/* Hand it to the engine; on success it may be complete already. */
int mca_vprotocol_correlated_request_post(mca_vprotocol_correlated_request_t *request);
/* The same for a message that a probe has claimed. */
int mca_vprotocol_correlated_request_post_claimed(mca_vprotocol_correlated_request_t *request,
                                                  uint64_t message);
/* One of its users is done with it. */
void mca_vprotocol_correlated_request_drop(mca_vprotocol_correlated_request_t *request);
/* Wait, copy the status, give it back: its MPI error code. */
int mca_vprotocol_correlated_request_finish(mca_vprotocol_correlated_request_t *request,
                                            ompi_status_public_t *status);
int mca_vprotocol_correlated_start(size_t count, ompi_request_t **requests);

/* ---- point-to-point ------------------------------------------------------------------------- */

int mca_vprotocol_correlated_isend(const void *buffer, size_t count, ompi_datatype_t *datatype,
                                   int to, int tag, mca_pml_base_send_mode_t mode,
                                   ompi_communicator_t *comm, ompi_request_t **request);
int mca_vprotocol_correlated_isend_init(const void *buffer, size_t count,
                                        ompi_datatype_t *datatype, int to, int tag,
                                        mca_pml_base_send_mode_t mode, ompi_communicator_t *comm,
                                        ompi_request_t **request);
int mca_vprotocol_correlated_send(const void *buffer, size_t count, ompi_datatype_t *datatype,
                                  int to, int tag, mca_pml_base_send_mode_t mode,
                                  ompi_communicator_t *comm);
/* Copy the message into the attached buffer and send it from there. */
int mca_vprotocol_correlated_send_buffered(const void *buffer, size_t count,
                                           ompi_datatype_t *datatype, int to, int tag,
                                           ompi_communicator_t *comm);
int mca_vprotocol_correlated_irecv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                   int source, int tag, ompi_communicator_t *comm,
                                   ompi_request_t **request);
int mca_vprotocol_correlated_irecv_init(void *buffer, size_t count, ompi_datatype_t *datatype,
                                        int source, int tag, ompi_communicator_t *comm,
                                        ompi_request_t **request);
int mca_vprotocol_correlated_recv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                  int source, int tag, ompi_communicator_t *comm,
                                  ompi_status_public_t *status);
int mca_vprotocol_correlated_iprobe(int source, int tag, ompi_communicator_t *comm, int *matched,
                                    ompi_status_public_t *status);
int mca_vprotocol_correlated_probe(int source, int tag, ompi_communicator_t *comm,
                                   ompi_status_public_t *status);
int mca_vprotocol_correlated_improbe(int source, int tag, ompi_communicator_t *comm, int *matched,
                                     ompi_message_t **message, ompi_status_public_t *status);
int mca_vprotocol_correlated_mprobe(int source, int tag, ompi_communicator_t *comm,
                                    ompi_message_t **message, ompi_status_public_t *status);
int mca_vprotocol_correlated_imrecv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                    ompi_message_t **message, ompi_request_t **request);
int mca_vprotocol_correlated_mrecv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                   ompi_message_t **message, ompi_status_public_t *status);

/* Wait for an operation on the stack that is pending. */
void mca_vprotocol_correlated_wait(rustbtl_operation_t *op);
/* MPI error code for what the engine answered. */
int mca_vprotocol_correlated_error(int32_t outcome);

/* ---- small things that every message needs -------------------------------------------------- */

/* c_pml_comm holds the engine's number for the communicator, whether it is a window's, and a 1 that
 * distinguishes it from NULL. */
#define CORRELATED_COMM_OF_WINDOW 2u

static inline uint32_t correlated_comm(const ompi_communicator_t *comm)
{
    return (uint32_t) ((uintptr_t) comm->c_pml_comm >> 2);
}

/* osc/pt2pt takes the end of a send for the end of its receive, in so far as what it sends after
 * that must not overtake the payload. Ours may end much earlier (in the payload log) and long
 * payloads are overtaken: such sends wait for their receive. */
static inline bool correlated_waits_for_match(const ompi_communicator_t *comm, uint64_t bytes)
{
    return OPAL_UNLIKELY((uintptr_t) comm->c_pml_comm & CORRELATED_COMM_OF_WINDOW)
        && 256 < bytes;
}

/* Is this memory one piece? `count` may exceed what opal's own test takes. */
static inline bool correlated_contiguous(const ompi_datatype_t *datatype, size_t count)
{
    uint16_t flags = datatype->super.flags;
    if (OPAL_LIKELY((flags & OPAL_DATATYPE_FLAG_NO_GAPS)
                    && (flags & OPAL_DATATYPE_FLAG_CONTIGUOUS))) {
        return true;
    }
    return (1 == count && (flags & OPAL_DATATYPE_FLAG_CONTIGUOUS)) || 0 == datatype->super.size
        || 0 == count;
}

/* An operation on contiguous memory. */
static inline void correlated_operation(rustbtl_operation_t *op, uint32_t kind, const void *buffer,
                                        size_t count, const ompi_datatype_t *datatype)
{
    op->state = RUSTBTL_STATE_PENDING;
    op->start = (uint8_t *) buffer + datatype->super.true_lb;
    op->bytes = datatype->super.size * count;
    op->convertor = NULL;
    op->outcome = 0;
    op->kind = kind;
}

/* Status of a receive. MPI_ERROR is left alone (MPI-3.1 section 3.2.5). */
static inline void correlated_status(ompi_status_public_t *status, const rustbtl_operation_t *op)
{
    status->MPI_SOURCE = op->source;
    status->MPI_TAG = op->tag;
    status->_ucount = op->received;
    status->_cancelled = 0;
}

#endif

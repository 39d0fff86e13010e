/*
 * Shared by the C files of the BTL.
 */
#ifndef BTL_RUSTBTL_H
#define BTL_RUSTBTL_H

#include "compat.h"
#include "opal/class/opal_free_list.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/mca/btl/base/base.h"
#include "opal/mca/btl/btl.h"
#include "btl_rustbtl_core.h"

#define BTL_RUSTBTL_VERSION_MAJOR 0
#define BTL_RUSTBTL_VERSION_MINOR 2
#define BTL_RUSTBTL_VERSION_RELEASE 0

extern mca_btl_base_component_t mca_btl_rustbtl_component;

/* Open MPI's limits and flags are of a module, not of a peer: one module for each way, and one for
 * one-sided communication (osc/rdma), which needs a module that reaches all. */
typedef struct mca_btl_rustbtl_module_t {
    mca_btl_base_module_t super;
    int32_t way;
    /* Descriptors with room for an eager message, and for the largest one. */
    opal_free_list_t small;
    opal_free_list_t large;
    bool listed; /* the two are constructed */
    bool open;
} mca_btl_rustbtl_module_t;

extern mca_btl_rustbtl_module_t mca_btl_rustbtl_modules[RUSTBTL_BTL_MODULES];

/* What is open, and the functions on it. */
extern rustbtl_btl_t *mca_btl_rustbtl;
extern const rustbtl_btl_functions_t *mca_btl_rustbtl_core;

typedef struct mca_btl_base_endpoint_t {
    rustbtl_btl_peer_t *peer; /* NULL: this process itself, for one-sided communication */
    opal_process_name_t name;
    struct mca_btl_base_endpoint_t *next; /* of those that go in the end */
} mca_btl_base_endpoint_t;

typedef struct mca_btl_rustbtl_frag_t {
    mca_btl_base_descriptor_t base;
    mca_btl_base_segment_t segments[2];
    mca_btl_rustbtl_module_t *module;
    mca_btl_base_endpoint_t *endpoint;
    opal_free_list_t *list;
    /* Of an operation on memory. */
    mca_btl_base_rdma_completion_fn_t done;
    void *done_address, *done_context, *done_data;
    mca_btl_base_registration_handle_t *done_handle;
    /* Room for data, on a multiple of 16 bytes. */
    uint8_t data[] __attribute__((aligned(16)));
} mca_btl_rustbtl_frag_t;

OBJ_CLASS_DECLARATION(mca_btl_rustbtl_frag_t);

/* ---- parameters ----------------------------------------------------------------------------- */

typedef struct mca_btl_rustbtl_params_t {
    rustbtl_btl_settings_t settings;
    uint32_t exclusivity;
    uint32_t shm_eager_limit;
    uint32_t tcp_eager_limit;
    uint32_t peer_loss_timeout;
    bool shm;
    bool single_copy;
    bool ipv4;
    bool ipv6;
    bool encrypt;
    bool tcp_put;
    bool one_sided;
} mca_btl_rustbtl_params_t;

extern mca_btl_rustbtl_params_t mca_btl_rustbtl_params;

int mca_btl_rustbtl_register(void);

/* ---- modules, peers, messages to the user --------------------------------------------------- */

/* Limits and flags, by the parameters. */
void mca_btl_rustbtl_fill_modules(uint32_t local_ranks);
int mca_btl_rustbtl_open_lists(mca_btl_rustbtl_module_t *module);

/* One that says when an operation on memory is over; NULL: no memory. */
mca_btl_rustbtl_frag_t *mca_btl_rustbtl_operation(mca_btl_base_module_t *module,
                                                  mca_btl_base_endpoint_t *endpoint,
                                                  mca_btl_base_rdma_completion_fn_t done,
                                                  void *local_address,
                                                  mca_btl_base_registration_handle_t *local_handle,
                                                  void *context, void *data);
/* A message or an operation for a process that has finished, or is lost. */
int mca_btl_rustbtl_unreachable(const mca_btl_base_endpoint_t *endpoint);
/* The third module. */
void mca_btl_rustbtl_fill_one_sided(mca_btl_base_module_t *module);

int mca_btl_rustbtl_publish(void);
int mca_btl_rustbtl_add_procs(mca_btl_base_module_t *module, size_t count, opal_proc_t **procs,
                              mca_btl_base_endpoint_t **endpoints, opal_bitmap_t *reachable);
int mca_btl_rustbtl_del_procs(mca_btl_base_module_t *module, size_t count, opal_proc_t **procs,
                              mca_btl_base_endpoint_t **endpoints);
int mca_btl_rustbtl_register_error(mca_btl_base_module_t *module,
                                   mca_btl_base_module_error_cb_fn_t callback);
/* Nobody uses them any more. */
void mca_btl_rustbtl_free_endpoints(void);
/* Where this process is; gives `local_ranks` back by free. */
int mca_btl_rustbtl_place(rustbtl_btl_place_t *place);

void mca_btl_rustbtl_arrived(int32_t way, uint32_t from, uint8_t tag, const uint8_t *start,
                             size_t bytes);
/* The process of this number; NULL: none of the first job of its mpirun, or not met yet. */
mca_btl_base_endpoint_t *mca_btl_rustbtl_endpoint(uint32_t number);
/* The same, which Open MPI has perhaps not met yet. */
mca_btl_base_endpoint_t *mca_btl_rustbtl_meet_sender(int32_t way, uint32_t number);
void mca_btl_rustbtl_over(void *cookie, int32_t accepted);
void mca_btl_rustbtl_lost(uint32_t job, uint32_t rank, const char *reason);
void mca_btl_rustbtl_notice(const char *text);

void mca_btl_rustbtl_help_open(void);
void mca_btl_rustbtl_help(const char *topic, const char *text);

#endif

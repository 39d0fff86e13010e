/*
 * The whole interface between C (Open MPI's structs and macros) and Rust (the message engine).
 *
 * Mirrored by component/src/ffi/table.rs; sizes and offsets are asserted on both sides. Nothing
 * here names an Open MPI type. `rustbtl_*` are functions of Rust; it gets those of C as a table.
 */
#ifndef RUSTBTL_GLUE_H
#define RUSTBTL_GLUE_H

#include <stddef.h>
#include <stdint.h>

/* Outcome of an operation that was posted. */
#define RUSTBTL_DONE 0       /* complete; the operation will not be completed again */
#define RUSTBTL_PENDING 1    /* rustbtl_glue_complete follows (for operations in a request) */
#define RUSTBTL_FAILED (-1)  /* a help text has said why */
#define RUSTBTL_LOG_FULL (-2)

/* rustbtl_operation_t.kind */
#define RUSTBTL_ON_STACK 0   /* a blocking call waits for `state` */
#define RUSTBTL_IN_REQUEST 1 /* part of an MPI request: rustbtl_glue_complete */
#define RUSTBTL_FETCHES 2    /* of a window: rustbtl_glue_complete; `outcome`: rustbtl_rma */

/* rustbtl_operation_t.outcome */
#define RUSTBTL_TRUNCATED 1u
#define RUSTBTL_CANCELLED 2u

/* rustbtl_operation_t.state: as ompi_request_t.req_complete (anything else: a waiting thread) */
#define RUSTBTL_STATE_PENDING ((void *) 0)
#define RUSTBTL_STATE_COMPLETE ((void *) 1)

/* rustbtl_probe: how */
#define RUSTBTL_PROBE_CLAIM 1u  /* take it out of matching */
#define RUSTBTL_PROBE_BLOCKS 2u /* the call blocks: "nothing" is no result */
#define RUSTBTL_PROBE_LAST 4u   /* if nothing is here, that is the result */
/* rustbtl_probe: what it found */
#define RUSTBTL_PROBE_NOT_YET 0
#define RUSTBTL_PROBE_FOUND 1
#define RUSTBTL_PROBE_NOTHING 2 /* report to the program that there is nothing */
#define RUSTBTL_PROBE_WAIT 3    /* probe again until it is found, whatever the call */

/* rustbtl_nondet_call: what to do; as coordination's `determinants::ReplayDecision` */
#define RUSTBTL_NONDET_EXECUTE 0        /* execute it, then rustbtl_record_outcome */
#define RUSTBTL_NONDET_REPORT_NOTHING 1 /* report to the program that nothing is complete */
#define RUSTBTL_NONDET_AWAIT 2          /* wait for these, then rustbtl_record_outcome */

/* As coordination's `determinants::CallKind` */
#define RUSTBTL_CALL_TEST 1u
#define RUSTBTL_CALL_TEST_ALL 2u
#define RUSTBTL_CALL_TEST_ANY 3u
#define RUSTBTL_CALL_TEST_SOME 4u
#define RUSTBTL_CALL_WAIT_ANY 5u
#define RUSTBTL_CALL_WAIT_SOME 6u

#define RUSTBTL_ANY (-1) /* MPI_ANY_SOURCE, MPI_ANY_TAG */

/* A send or receive. Stays where it is from post to completion. */
typedef struct rustbtl_operation {
    void *volatile state;
    uint8_t *start;    /* contiguous memory; ignored with a convertor */
    uint64_t bytes;    /* send: packed bytes of the message; receive: packed bytes of the buffer */
    void *convertor;   /* NULL: the memory is contiguous */
    uint64_t id;       /* the engine's name for it while it is pending */
    uint64_t received; /* receive: bytes of the message */
    int32_t source;    /* receive: sender's rank in the communicator */
    int32_t tag;       /* receive: the message's tag */
    uint32_t outcome;
    uint32_t kind;
} rustbtl_operation_t;

_Static_assert(sizeof(rustbtl_operation_t) == 64, "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_operation_t, convertor) == 24,
        "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_operation_t, source) == 48,
        "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_operation_t, kind) == 60, "mirrored in component/src/ffi/table.rs");

/* Envelope of a message, as a probe finds it. */
typedef struct rustbtl_envelope {
    uint64_t message; /* claimed messages: its name */
    uint64_t bytes;
    int32_t source;
    int32_t tag;
} rustbtl_envelope_t;

_Static_assert(sizeof(rustbtl_envelope_t) == 24, "mirrored in component/src/ffi/table.rs");

/* Name of a process in the whole universe of jobs. */
typedef struct rustbtl_name {
    uint32_t job;
    uint32_t rank;
} rustbtl_name_t;

_Static_assert(sizeof(rustbtl_name_t) == 8, "mirrored in component/src/ffi/table.rs");

/* ---- one-sided communication ----------------------------------------------------------------- */

/* What a call cannot do; the numbers are those on the wire (rustbtl-rma's RmaError). */
enum rustbtl_rma {
    RUSTBTL_RMA_OK,
    RUSTBTL_RMA_WINDOW,
    RUSTBTL_RMA_RANK,
    RUSTBTL_RMA_SYNC,
    RUSTBTL_RMA_CONFLICT,
    RUSTBTL_RMA_RANGE,
    RUSTBTL_RMA_ATTACH,
    RUSTBTL_RMA_FLAVOR,
    RUSTBTL_RMA_OP,
    RUSTBTL_RMA_TYPE,
    RUSTBTL_RMA_COUNT = 100 /* rustbtl_window_fence: sum the counts */
};

/* Memory of a shared window: mapped, without a name that could be opened, or refused. */
enum rustbtl_memory {
    RUSTBTL_MEMORY_HERE,
    RUSTBTL_MEMORY_GONE,
    RUSTBTL_MEMORY_NONE
};

#define RUSTBTL_MEMORY_NAME 16 /* bytes */

enum rustbtl_access_kind {
    RUSTBTL_PUT = 1,
    RUSTBTL_GET,
    RUSTBTL_ACCUMULATE,
    RUSTBTL_GET_ACCUMULATE
};

/* As on the wire: rustbtl-rma's Op. */
enum rustbtl_op {
    RUSTBTL_OP_REPLACE = 1,
    RUSTBTL_OP_NO_OP,
    RUSTBTL_OP_MAX,
    RUSTBTL_OP_MIN,
    RUSTBTL_OP_SUM,
    RUSTBTL_OP_PROD,
    RUSTBTL_OP_LAND,
    RUSTBTL_OP_LOR,
    RUSTBTL_OP_LXOR,
    RUSTBTL_OP_BAND,
    RUSTBTL_OP_BOR,
    RUSTBTL_OP_BXOR,
    RUSTBTL_OP_MINLOC,
    RUSTBTL_OP_MAXLOC
};

/* As on the wire: rustbtl-rma's Primitive. */
enum rustbtl_primitive {
    RUSTBTL_NO_PRIMITIVE,
    RUSTBTL_BYTE,
    RUSTBTL_I8,
    RUSTBTL_I16,
    RUSTBTL_I32,
    RUSTBTL_I64,
    RUSTBTL_U8,
    RUSTBTL_U16,
    RUSTBTL_U32,
    RUSTBTL_U64,
    RUSTBTL_F32,
    RUSTBTL_F64,
    RUSTBTL_LONG_DOUBLE,
    RUSTBTL_C32,
    RUSTBTL_C64,
    RUSTBTL_C_LONG_DOUBLE,
    RUSTBTL_BOOL,
    RUSTBTL_LOGICAL,
    RUSTBTL_FLOAT_INT,
    RUSTBTL_DOUBLE_INT,
    RUSTBTL_LONG_INT,
    RUSTBTL_TWO_INT,
    RUSTBTL_SHORT_INT,
    RUSTBTL_LONG_DOUBLE_INT,
    RUSTBTL_TWO_REAL,
    RUSTBTL_TWO_DOUBLE
};

/* Bytes in a row of the target's memory. */
typedef struct rustbtl_row {
    int64_t at; /* from the place of the access */
    uint64_t bytes;
} rustbtl_row_t;

_Static_assert(sizeof(rustbtl_row_t) == 16, "mirrored in component/src/ffi/table.rs");

/* An access to a target's memory. */
typedef struct rustbtl_access {
    const uint8_t *data; /* packed; not used after the call */
    uint64_t bytes;      /* 0 where nothing is sent */
    const rustbtl_row_t *rows; /* of one element of the target's type; NULL: primitives in a row */
    uint64_t row_count;
    uint64_t count;       /* elements of the target's type, or primitives */
    int64_t extent;       /* from one element to the next */
    int64_t displacement; /* in units of the target; dynamic windows: an address */
    /* Where fetched data goes: of kind RUSTBTL_ON_STACK it is read in the call only, otherwise it
     * is RUSTBTL_FETCHES, and rustbtl_glue_complete follows. */
    rustbtl_operation_t *result;
    uint32_t window;
    uint32_t target;
    uint32_t kind; /* enum rustbtl_access_kind */
    uint32_t op;   /* enum rustbtl_op */
    uint32_t primitive;
    uint32_t reserved;
} rustbtl_access_t;

_Static_assert(sizeof(rustbtl_access_t) == 88, "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_access_t, result) == 56, "mirrored in component/src/ffi/table.rs");

/* A window that is made. */
typedef struct rustbtl_window_setup {
    const uint64_t *bytes; /* memory of each rank */
    const uint32_t *units;
    uint8_t *base; /* own memory */
    uint32_t comm;
    uint32_t rank;
    uint32_t size;
    uint32_t flavor; /* MPI_WIN_CREATE_FLAVOR */
    uint32_t no_locks;
    uint32_t reserved;
} rustbtl_window_setup_t;

_Static_assert(sizeof(rustbtl_window_setup_t) == 48, "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_window_setup_t, comm) == 24,
               "mirrored in component/src/ffi/table.rs");

/* What is done when a payload log is on its way to its budget. */
enum rustbtl_log_full { RUSTBTL_LOG_SUSPEND, RUSTBTL_LOG_CHECKPOINT, RUSTBTL_LOG_SPILL };

/* MCA parameters. Strings may be NULL (= ""); they outlive the process' use of them. */
typedef struct rustbtl_config {
    const char *sets;
    const char *log_budget;
    const char *log_spill_dir;
    const char *single_copy;
    const char *shm_directory;
    const char *tcp_if_include;
    const char *tcp_if_exclude;
    const char *report;
    const char *verbs;
    const char *verbs_if_include;
    const char *verbs_gid_index;
    uint64_t log_segment_max;
    uint64_t log_prefault;
    uint64_t shm_ring;
    uint64_t tcp_socket_buffer;
    uint64_t tcp_receive_buffer;
    uint64_t file_undo_max; /* bytes of files that are recorded to be put back; 0: none */
    uint32_t shm_eager_limit;
    uint32_t tcp_eager_limit;
    uint32_t tcp_chunk;
    uint32_t tcp_connect_timeout;
    uint32_t spin;
    uint32_t spin_oversubscribed;
    uint32_t tcp_poll_interval;
    uint32_t peer_loss_timeout;
    uint32_t verbose;
    uint32_t overhead_max; /* thousandths of the time that protection may cost; 0: no limit */
    uint32_t verbs_mtu;
    uint32_t verbs_read_min; /* bytes; 0: nothing is read */
    uint8_t shm;
    uint8_t tcp_ipv4;
    uint8_t tcp_ipv6;
    uint8_t summary;
    uint8_t huge_pages;
    uint8_t record_clock;
    uint8_t verify_sends;
    uint8_t piggyback;
    uint8_t trim_received;
    uint8_t log_full; /* enum rustbtl_log_full */
    uint8_t tcp_encrypt;
} rustbtl_config_t;

_Static_assert(sizeof(rustbtl_config_t) == 200, "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_config_t, shm_eager_limit) == 136,
               "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_config_t, shm) == 184, "mirrored in component/src/ffi/table.rs");

/* Where this process is. */
typedef struct rustbtl_job {
    const char *node;
    const char *session_dir;         /* of this process, NULL if there is none */
    const uint32_t *local_ranks;     /* world ranks on this node, ascending, own one included */
    const char *const *localities;   /* locality string of each, NULL where unknown */
    rustbtl_name_t me;
    uint32_t size;
    uint32_t local_size;
    uint32_t processors; /* that this node's ranks may use */
    uint8_t threads;     /* MPI_THREAD_MULTIPLE was given */
    uint8_t serialized;  /* MPI_THREAD_SERIALIZED was given */
    uint8_t reserved[2];
} rustbtl_job_t;

_Static_assert(sizeof(rustbtl_job_t) == 56, "mirrored in component/src/ffi/table.rs");
_Static_assert(offsetof(rustbtl_job_t, threads) == 52, "mirrored in component/src/ffi/table.rs");

/* Counters behind MPI_T performance variables, in the order of rustbtl_pvar. */
enum rustbtl_pvar {
    RUSTBTL_PVAR_SENT_INTERNAL_MESSAGES,
    RUSTBTL_PVAR_SENT_INTERNAL_BYTES,
    RUSTBTL_PVAR_SENT_OUTGOING_MESSAGES,
    RUSTBTL_PVAR_SENT_OUTGOING_BYTES,
    RUSTBTL_PVAR_RECEIVED_INTERNAL_MESSAGES,
    RUSTBTL_PVAR_RECEIVED_INTERNAL_BYTES,
    RUSTBTL_PVAR_RECEIVED_INGOING_MESSAGES,
    RUSTBTL_PVAR_RECEIVED_INGOING_BYTES,
    RUSTBTL_PVAR_EAGER_MESSAGES,
    RUSTBTL_PVAR_RENDEZVOUS_MESSAGES,
    RUSTBTL_PVAR_UNEXPECTED_MESSAGES,
    RUSTBTL_PVAR_LOG_MESSAGES,
    RUSTBTL_PVAR_LOG_BYTES,
    RUSTBTL_PVAR_LOG_BYTES_PEAK,
    RUSTBTL_PVAR_LOG_SPILLED_BYTES,
    RUSTBTL_PVAR_COUNT
};

/* ---- implemented in C, given to Rust at the start -------------------------------------------- */

/* A function of MPI that is interposed: the program calls ours, and ours calls Open MPI's. */
typedef struct rustbtl_interposed {
    const char *name;
    /* For tools that have their own of the first name. */
    const char *second_name;
    /* Open MPI's: only its address is of use. */
    void (*stock)(void);
    /* Ours: takes and gives the same, and calls Open MPI's. */
    void (*own)(void);
} rustbtl_interposed_t;

_Static_assert(sizeof(rustbtl_interposed_t) == 32, "mirrored in component/src/ffi/table.rs");

typedef struct rustbtl_glue {
    /* An operation is complete: its fields are filled. No lock is held; may call back into Rust. */
    void (*complete)(rustbtl_operation_t *op);
    /* The same for an operation in a request, from the program's thread, where there are no others,
     * if nothing can call back into Rust meanwhile. 0: something could, nothing has happened. */
    int32_t (*complete_now)(rustbtl_operation_t *op);
    int32_t (*is_step)(rustbtl_operation_t *op); /* in a request: of a nonblocking collective? */
    /* Packed bytes [offset, offset + bytes) of a send's memory to `into`. */
    void (*pack)(void *convertor, uint64_t offset, uint8_t *into, uint64_t bytes);
    /* The reverse, for a receive. */
    void (*unpack)(void *convertor, uint64_t offset, const uint8_t *from, uint64_t bytes);
    /* Which process is `rank` of the communicator? Of an intercommunicator: of its remote group, or
     * of its local one if `local` is not 0. */
    void (*resolve)(void *handle, uint32_t rank, int32_t local, rustbtl_name_t *name);
    /* A copy of that process' endpoint; NULL: it has none. Give it to `release`. */
    uint8_t *(*endpoint_of)(const rustbtl_name_t *name, size_t *bytes);
    void (*release)(void *memory);
    /* opal_progress() */
    void (*progress)(void);
    /* Does Open MPI want waiting processes to yield? */
    int32_t (*yields)(void);
    /* Show a text of help-mca-vprotocol-correlated.txt; unused arguments are NULL. */
    void (*help)(const char *topic, const char *a, const char *b, const char *c, const char *d);
    /* End the job with an error. */
    void (*abort)(void);
    /* Have the node's daemon remove this file when the process has ended, however it ends. */
    void (*cleanup)(const char *path);
    /* 0: in MPI_Init; 1: after it; 2: in or after MPI_Finalize. */
    int32_t (*stage)(void);
    /* This process has a guardian: survive the loss of the PMIx server once `restored`, and
     * have MPI_Finalize wait for the others by rustbtl_fence. Communicates with the server. */
    int32_t (*protect)(void);
    /* The process was restored from an image: it has no PMIx server any more. */
    void (*restored)(void);
    /* The fence that rustbtl_fence() began is complete. */
    void (*fenced)(void);
    /* Open MPI's own MPI_Wtime. */
    double (*wtime)(void);
    /* The functions that are interposed; the last has no name. */
    const rustbtl_interposed_t *interposed;
    /* Is an endpoint only fetched, from the daemon of its process, when somebody needs it? */
    int32_t endpoints_on_demand;
    /* A line on the component's own output stream, where the level is that of `verbose` or less. */
    void (*verbose)(int32_t level, const char *line);
} rustbtl_glue_t;

_Static_assert(sizeof(rustbtl_glue_t) == 168, "mirrored in component/src/ffi/table.rs");

/* ---- implemented in Rust -------------------------------------------------------------------- */

/* Hidden also where the Rust core becomes a part of libmpi. */
#pragma GCC visibility push(hidden)

/* Choose the set, open the transports. Not RUSTBTL_DONE: a help text has said why. */
int32_t rustbtl_start(const rustbtl_glue_t *glue, const rustbtl_config_t *config,
                      const rustbtl_job_t *job);
/* The endpoint of this process, which others need to connect to it (PMI: business card); lives as
 * long as the process. */
const uint8_t *rustbtl_endpoint(size_t *bytes);
/* The other processes' endpoints are available: attach to the node's segment. */
int32_t rustbtl_connect(void);
/* Flush what was accepted, close the connections, write the report. */
void rustbtl_finish(void);
/* Sum up the traffic of the world at its rank 0 (comm: MPI_COMM_WORLD, all its ranks call). */
void rustbtl_summary(uint32_t comm);

/* local_size: of an intercommunicator, whose size is that of the remote group; otherwise 0. */
uint32_t rustbtl_comm_add(uint32_t context, uint32_t rank, uint32_t size, void *handle,
                          uint32_t local_size);
void rustbtl_comm_del(uint32_t comm);

int32_t rustbtl_send(rustbtl_operation_t *op, uint32_t comm, int32_t to, int32_t tag,
                     int32_t synchronous);
/* The fast path. 1: sent, complete. 0: nothing has happened (use rustbtl_send). Contiguous memory,
 * standard mode. */
int32_t rustbtl_send_now(rustbtl_operation_t *op, uint32_t comm, int32_t to, int32_t tag);
int32_t rustbtl_receive(rustbtl_operation_t *op, uint32_t comm, int32_t source, int32_t tag);
/* The same for an operation in a request. */
int32_t rustbtl_receive_later(rustbtl_operation_t *op, uint32_t comm, int32_t source,
                              int32_t tag);
int32_t rustbtl_receive_claimed(rustbtl_operation_t *op, uint64_t message);
/* 1: it is gone and will not complete; 0: it will complete. */
int32_t rustbtl_cancel(rustbtl_operation_t *op);
/* The program has freed the request of a send that is not complete. It completes as others do. */
void rustbtl_release(rustbtl_operation_t *op);
/* An operation of a request that a collective of ours waits for is not complete: if a replay holds
 * that from the program, it is now. */
void rustbtl_complete_held(rustbtl_operation_t *op);
/* Not 0: a replay of windows holds what the program waits for (rule 3, docs/adr/0037). */
int32_t rustbtl_holds(void);
void rustbtl_wait_while_held(void);
/* Wait for an operation on the stack. RUSTBTL_PENDING (only with threads): wait elsewhere. */
int32_t rustbtl_wait(rustbtl_operation_t *op);
/* RUSTBTL_PROBE_*; `how`: a sum of RUSTBTL_PROBE_CLAIM and the like. */
int32_t rustbtl_probe(uint32_t comm, int32_t source, int32_t tag, uint32_t how,
                      rustbtl_envelope_t *found);
/* The same as rustbtl_cancel for a receive of the program, `complete` or not. Its outcome is
 * recorded, if determinants are. */
int32_t rustbtl_cancel_recorded(rustbtl_operation_t *op, int32_t complete);
/* The program makes a nondeterministic call (RUSTBTL_CALL_*) on so many active requests:
 * RUSTBTL_NONDET_*. Which requests to wait for goes to `indices`, which has `room`, and their
 * number to `count`. */
int32_t rustbtl_nondet_call(uint32_t call, uint32_t active, uint32_t room, int32_t *indices,
                            int32_t *count);
/* Its outcome: the indices of `count` requests; -1: nothing was complete. 0: the call has to be
 * executed again, `epoch` is over. */
int32_t rustbtl_record_outcome(uint32_t call, uint32_t active, int32_t count,
                               const int32_t *indices, uint32_t epoch);
/* Not 0: outcomes of nondeterministic calls are recorded, or replayed. */
extern volatile int32_t rustbtl_recording;
/* Changes when recording begins, and in a process that was made from a snapshot: what was seen
 * before is not to be reported to the program after that. Read it before rustbtl_nondet_call. */
extern volatile uint32_t rustbtl_epoch;
/* Not 0: neighbours write to its windows themselves. Where it asks in vain, rustbtl_note_poll. */
extern volatile int32_t rustbtl_awaits_poll;
void rustbtl_note_poll(void);
/* Poll the transports; how many events were handled. */
int32_t rustbtl_progress(void);
/* Nothing to do for a waiting process: call once per fruitless round. */
void rustbtl_idle(void);
/* A call that does not wait has found nothing, after a call of progress. */
void rustbtl_found_nothing(void);
uint64_t rustbtl_pvar(uint32_t which);
/* A process with a guardian is in MPI_Finalize and waits for the others; `fenced` follows. */
void rustbtl_fence(void);
/* The program requests a checkpoint; its number, 0 if there is none. */
int32_t rustbtl_request_checkpoint(int32_t all, int32_t wait, int32_t then_exit,
                                   uint64_t *checkpoint);
uint32_t rustbtl_restarts(void);
/* A window of one-sided communication, and how it works: can a set that is rolled back replay it?
 * `comm` as `resolve` takes it, with `size` ranks. */
#define RUSTBTL_WINDOW_BYPASSES 0         /* over a component that bypasses rustbtl */
#define RUSTBTL_WINDOW_OVER_PML 1         /* over osc/pt2pt */
#define RUSTBTL_WINDOW_SHARED_MEMORY 2    /* in memory that its ranks share */
/* The same, and what they do there depends on who comes first; no comm. */
#define RUSTBTL_WINDOW_NONDETERMINISTIC 3
/* It is ours, and threads may use it at the same time; no comm. */
#define RUSTBTL_WINDOW_THREADS 4
void rustbtl_window(int32_t how, void *comm, uint32_t size);
/* One-sided communication. All give a number of enum rustbtl_rma. `target` -1: all. */
int32_t rustbtl_window_make(const rustbtl_window_setup_t *setup, uint32_t *window);
int32_t rustbtl_window_may_free(uint32_t window);
int32_t rustbtl_window_free(uint32_t window);
int32_t rustbtl_window_attach(uint32_t window, uint8_t *base, uint64_t bytes);
int32_t rustbtl_window_detach(uint32_t window, const uint8_t *base);
int32_t rustbtl_window_access(const rustbtl_access_t *access);
/* The same of elements of a primitive in a row, at the origin as well, without a request. `how`:
 * the kind, the operation from bit 8 on, the primitive from bit 16 on. NULL: nothing is sent, or
 * fetched. */
int32_t rustbtl_window_access_row(uint32_t window, uint32_t target, int64_t displacement,
                                  uint32_t how, uint64_t count, const uint8_t *data,
                                  uint8_t *result);
int32_t rustbtl_window_compare_and_swap(uint32_t window, uint32_t target, int64_t displacement,
                                        uint32_t primitive, const uint8_t *compare,
                                        const uint8_t *value, uint8_t *result);
/* RUSTBTL_RMA_COUNT: sum `counts` over all ranks, rank by rank; go on with the own sum. */
int32_t rustbtl_window_fence(uint32_t window, int32_t no_precede, int32_t no_succeed,
                             uint64_t *counts);
int32_t rustbtl_window_fence_counted(uint32_t window, int32_t no_precede, int32_t no_succeed,
                                     uint64_t expected);
int32_t rustbtl_window_post(uint32_t window, const uint32_t *ranks, uint32_t count);
int32_t rustbtl_window_start(uint32_t window, const uint32_t *ranks, uint32_t count);
int32_t rustbtl_window_complete(uint32_t window);
int32_t rustbtl_window_wait(uint32_t window);
int32_t rustbtl_window_test(uint32_t window, int32_t *flag);
int32_t rustbtl_window_lock(uint32_t window, uint32_t target, int32_t exclusive, int32_t no_check,
                            int32_t granted);
int32_t rustbtl_window_unlock(uint32_t window, uint32_t target);
int32_t rustbtl_window_lock_all(uint32_t window, int32_t no_check, int32_t granted);
int32_t rustbtl_window_unlock_all(uint32_t window);
int32_t rustbtl_window_flush(uint32_t window, int32_t target);
int32_t rustbtl_window_flush_local(uint32_t window, int32_t target);
int32_t rustbtl_window_sync(uint32_t window);
/* All ranks have made it. `shared`: NULL, or where each of `size` ranks' memory is mapped here. */
void rustbtl_window_map(uint32_t window, uint8_t *const *shared, uint32_t size);
/* Memory of a window. `is_for_all`: other ranks of the node may map it. NULL: there is none. */
uint8_t *rustbtl_window_memory_own(uint64_t bytes, int32_t is_for_all);
void rustbtl_window_memory_disown(uint8_t *memory);
/* Memory of shared windows, in a directory: one rank makes it and tells the others its name; all
 * map it, then the name goes. `unmap` takes NULL. */
int32_t rustbtl_window_memory_make(const char *directory, uint64_t bytes, uint8_t *name,
                                   uint8_t **memory);
int32_t rustbtl_window_memory_map(const char *directory, uint64_t bytes, const uint8_t *name,
                                  uint8_t **memory);
void rustbtl_window_memory_unname(const char *directory, const uint8_t *name);
void rustbtl_window_memory_unmap(uint8_t *memory, uint64_t bytes);
/* ---- collectives of the ranks of one set (docs/adr/0040) ------------------------------------ */

/* In the order of Kind::ALL of fragments/collectives. */
enum rustbtl_collective_kind {
    RUSTBTL_BARRIER,
    RUSTBTL_BCAST,
    RUSTBTL_REDUCE,
    RUSTBTL_ALLREDUCE,
    RUSTBTL_ALLGATHER,
    RUSTBTL_ALLTOALL,
    RUSTBTL_GATHER,
    RUSTBTL_SCATTER,
    RUSTBTL_REDUCE_SCATTER_BLOCK,
    RUSTBTL_SCAN,
    RUSTBTL_EXSCAN,
    RUSTBTL_GATHERV,
    RUSTBTL_SCATTERV,
    RUSTBTL_ALLGATHERV,
    RUSTBTL_ALLTOALLV, /* alltoallw, too */
    RUSTBTL_REDUCE_SCATTER
};

/* A communicator. The functions call back. `send`, `receive`: the request, NULL: complete; DONE,
 * FAILED or LOG_FULL. `test`: not 0: it is complete, and gone; 2: with an error. `fold`:
 * out = a op b; b may be out. `pack`: data that is not one piece, before a call that is ours. */
typedef struct rustbtl_collective_setup {
    void *comm;
    const char *directory;
    int32_t (*send)(void *comm, uint32_t to, int32_t tag, const uint8_t *bytes, uint64_t length,
                    void **request);
    int32_t (*receive)(void *comm, uint32_t from, int32_t tag, uint8_t *bytes, uint64_t length,
                       void **request);
    int32_t (*test)(void *request);
    void (*fold)(void *op, void *datatype, const uint8_t *a, const uint8_t *b, uint8_t *out,
                 uint64_t elements);
    int32_t (*pack)(void *packs);
    uint64_t bytes_max; /* of all communicators of this process together */
    uint32_t rank;
    uint32_t size;
    uint32_t ranks_max; /* so many of a set share memory */
    uint32_t reserved;
} rustbtl_collective_setup_t;

_Static_assert(sizeof(rustbtl_collective_setup_t) == 80,
               "mirrored in component/src/ffi/collective.rs");

/* A block of those that vary. */
typedef struct rustbtl_block {
    uint8_t *start;
    uint64_t bytes;
} rustbtl_block_t;

/* A call. `from` may be `into`. Where blocks vary, they are in `gives` and `gets`: one for each
 * other member that gets (gives) another one; one, where all get (the only one gives) the same. */
typedef struct rustbtl_collective {
    const uint8_t *from;
    uint8_t *into;
    uint64_t bytes;   /* of what one member gives another, or of the longest of its blocks */
    uint64_t element; /* bytes that a fold must not tear */
    void *op;
    void *datatype;
    const rustbtl_block_t *gives, *gets;
    void *packs; /* for `pack`, or NULL: all data is there */
    uint32_t kind;
    uint32_t root;
    int32_t tag; /* of Open MPI: what counts as an action of the program */
    uint32_t commutes; /* 1: the operation does */
} rustbtl_collective_t;

_Static_assert(sizeof(rustbtl_collective_t) == 88, "mirrored in component/src/ffi/collective.rs");

#define RUSTBTL_BELOW (-3) /* nothing has happened; the same at all members */
/* Which collectives of a communicator may be ours; the same at all members. */
#define RUSTBTL_COLLECTIVES_NONE 0
#define RUSTBTL_COLLECTIVES_SET 1  /* all: its members are of one set */
#define RUSTBTL_COLLECTIVES_SETS 2 /* of several sets: where all members know all lengths */
int32_t rustbtl_collectives_may(void *comm, uint32_t size, uint32_t ranks_max);
void rustbtl_collective_begins(int32_t tag); /* Open MPI's nonblocking; tag: of a blocking one */
void *rustbtl_collectives_make(const rustbtl_collective_setup_t *setup);
void rustbtl_collectives_free(void *group);
int32_t rustbtl_collective(void *group, const rustbtl_collective_t *call);

#pragma GCC visibility pop

#endif

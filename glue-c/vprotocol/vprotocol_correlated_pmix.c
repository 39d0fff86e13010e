/*
 * The connection of the process to its PMIx server. A process that was restored from an image runs
 * without one: the loss must not end it, and we do what MPI_Finalize and MPI_Abort need the server
 * for.
 *
 * Until rustbtl_glue_restored() the loss of the server still ends the process, by the handlers that
 * Open MPI has registered. MPI_Finalize waits for the others through the guardian from
 * rustbtl_glue_protect() on: a process may be in it when a checkpoint is taken, and must be able to
 * continue waiting after a restore.
 */
#include "vprotocol_correlated.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

#include "ompi/runtime/mpiruntime.h"

int32_t rustbtl_glue_stage(void)
{
    int32_t state = ompi_mpi_state;
    if (OMPI_MPI_STATE_INIT_COMPLETED > state) {
        return 0;
    }
    return OMPI_MPI_STATE_FINALIZE_STARTED > state ? 1 : 2;
}

#if !CORRELATED_OMPI_5 /* else vprotocol_correlated_pmix5.c */

/* From PMIx's public interface (pmix_common.h, version 2 and later); its headers need not be
 * installed where Open MPI's are. */
#define LOST_CONNECTION (-61)
#define NO_ACTION_TAKEN (-331)
#define ACTION_COMPLETE (-334)

typedef void (*event_done_t)(int status, void *results, size_t n, void *then, void *then_data,
                             void *data);
typedef void (*event_handler_t)(size_t id, int status, const void *source, void *info, size_t ninfo,
                                void *results, size_t nresults, event_done_t done, void *data);
typedef void (*registered_t)(int status, size_t id, void *data);
typedef int (*register_handler_t)(int codes[], size_t ncodes, void *info, size_t ninfo,
                          event_handler_t handler, registered_t registered, void *data);

static atomic_bool restored = false;
static atomic_int answer = 1; /* 1: none yet */

static void lost_connection(size_t id, int status, const void *source, void *info, size_t ninfo,
                            void *results, size_t nresults, event_done_t done, void *data)
{
    (void) id;
    (void) status;
    (void) source;
    (void) info;
    (void) ninfo;
    (void) results;
    (void) nresults;
    if (NULL != done) {
        done(atomic_load(&restored) ? ACTION_COMPLETE : NO_ACTION_TAKEN, NULL, 0, NULL, NULL, data);
    }
}

static void registered(int status, size_t id, void *data)
{
    (void) id;
    (void) data;
    atomic_store(&answer, status);
}

/* ---- what a process with a guardian does without its server --------------------------------- */

static int commit_nothing(void)
{
    return OPAL_SUCCESS;
}

static int end_here(int status, const char *message, opal_list_t *processes)
{
    (void) message;
    (void) processes;
    /* The guardian reports it to mpirun, which ends the others. */
    _exit(0 == (status & 0xFF) ? 1 : status);
}

static int unavailable(const char *functions)
{
    rustbtl_glue_help("no-server", functions, NULL, NULL, NULL);
    return OPAL_ERR_NOT_SUPPORTED;
}

static int spawn_nothing(opal_list_t *job_info, opal_list_t *apps, opal_jobid_t *job)
{
    (void) job_info;
    (void) apps;
    (void) job;
    return unavailable("MPI_Comm_spawn");
}

static int publish_nothing(opal_list_t *info)
{
    (void) info;
    return unavailable("MPI_Publish_name, MPI_Comm_accept or MPI_Comm_connect");
}

static int look_up_nothing(opal_list_t *data, opal_list_t *info)
{
    (void) data;
    return publish_nothing(info);
}

/* One fence at a time: MPI_Finalize's. */
static opal_pmix_op_cbfunc_t fence_done = NULL;
static void *fence_data = NULL;

/* Open MPI's own, for the fences of MPI_Init and of MPI_Comm_disconnect. */
static opal_pmix_base_module_fence_nb_fn_t servers_fence_nb = NULL;
static opal_pmix_base_module_fence_fn_t servers_fence = NULL;

/* MPI_Comm_disconnect names its processes, which are of several jobs: their guardians know nothing
 * of each other. (A process of such a job is never restored.) */
static bool is_of_the_server(opal_list_t *processes)
{
    return 0 == rustbtl_glue_stage() || (NULL != processes && !opal_list_is_empty(processes));
}

static int fence_begin(opal_list_t *processes, int collect, opal_pmix_op_cbfunc_t done, void *data)
{
    if (is_of_the_server(processes)) {
        return servers_fence_nb(processes, collect, done, data);
    }
    fence_done = done;
    fence_data = data;
    rustbtl_fence();
    return OPAL_SUCCESS;
}

void rustbtl_glue_fenced(void)
{
    opal_pmix_op_cbfunc_t done = fence_done;
    fence_done = NULL;
    if (NULL != done) {
        done(OPAL_SUCCESS, fence_data);
    }
}

static atomic_bool fence_is_over;

static void wake(int status, void *data)
{
    (void) status;
    (void) data;
    atomic_store(&fence_is_over, true);
}

static int fence(opal_list_t *processes, int collect)
{
    if (is_of_the_server(processes)) {
        return servers_fence(processes, collect);
    }
    atomic_store(&fence_is_over, false);
    (void) fence_begin(processes, collect, wake, NULL);
    while (!atomic_load(&fence_is_over)) {
        usleep(1000);
        rustbtl_glue_progress();
    }
    return OPAL_SUCCESS;
}

int32_t rustbtl_glue_protect(void)
{
    servers_fence = opal_pmix.fence;
    servers_fence_nb = opal_pmix.fence_nb;
    opal_pmix.fence = fence;
    opal_pmix.fence_nb = fence_begin;
    void *library = dlopen("libpmix.so.2", RTLD_NOLOAD | RTLD_NOW);
    register_handler_t call = NULL;
    if (NULL != library) {
        *(void **) &call = dlsym(library, "PMIx_Register_event_handler");
    }
    if (NULL == call) {
        *(void **) &call = dlsym(RTLD_DEFAULT, "PMIx_Register_event_handler");
    }
    if (NULL == call) {
        return RUSTBTL_FAILED;
    }
    int codes[1] = { LOST_CONNECTION };
    int rc = call(codes, 1, NULL, 0, lost_connection, registered, NULL);
    for (int ms = 0; 0 == rc && 1 == atomic_load(&answer) && ms < 5000; ms++) {
        usleep(1000);
    }
    return 0 == rc && 0 == atomic_load(&answer) ? RUSTBTL_DONE : RUSTBTL_FAILED;
}

bool mca_vprotocol_correlated_is_restored(void)
{
    return atomic_load(&restored);
}

void rustbtl_glue_restored(void)
{
    atomic_store(&restored, true);
    opal_pmix.abort = end_here;
    opal_pmix.commit = commit_nothing;
    opal_pmix.spawn = spawn_nothing;
    opal_pmix.publish = publish_nothing;
    opal_pmix.lookup = look_up_nothing;
}

void mca_vprotocol_correlated_last_fence(void)
{
    /* MPI_Finalize has waited already, by opal_pmix. */
}

#endif

/*
 * The PML module: start and end of the process and of communicators.
 *
 * Order of calls (stock 4.1.4): init, [modex fence], enable, add_procs, add_comm(WORLD),
 * add_comm(SELF), ..., [fence], del_comm(SELF), del_comm(WORLD), del_procs, finalize.
 */
#include "vprotocol_correlated.h"

#include <stdlib.h>
#include <string.h>

#include "ompi/mca/pml/base/base.h"
#include "ompi/runtime/mpiruntime.h"

bool mca_vprotocol_correlated_threads = false;

static bool connected = false;
static bool is_selected = false;

/* What the user asked for is protection. Who has switched it off, is alone or was spawned by others
 * is told nothing where there is none. */
static bool expects_protection(void)
{
    const char *recover = getenv("OMPI_MCA_vprotocol_correlated_recover");
    bool is_off = NULL != recover && NULL != strchr("0fFnN", recover[0]);
    return !is_off && 0 == OMPI_PROC_MY_NAME->vpid && 1 < ompi_process_info.num_procs
           && NULL == getenv("OMPI_PARENT_PORT");
}

static int enable(bool on)
{
    if (on) {
        is_selected = true;
        if (NULL == getenv("RUSTBTL_GUARDIAN_FD") && expects_protection()) {
            rustbtl_glue_help("unprotected", NULL, NULL, NULL, NULL);
        }
        mca_vprotocol_correlated_osc_enable();
        mca_osc_correlated_enable();
        mca_vprotocol_correlated_outcomes_open();
    }
    return OMPI_SUCCESS;
}

/* Open MPI adds the processes of this node first and others at the first contact; the engine finds
 * them by itself. The first call means that the modex is complete. */
static int add_procs(struct ompi_proc_t **procs, size_t count)
{
    if (!connected) {
        connected = true;
        if (RUSTBTL_DONE != rustbtl_connect()) {
            rustbtl_glue_abort();
        }
    }
    return mca_vprotocol_correlated_osc_add_procs(procs, count);
}

static int del_procs(struct ompi_proc_t **procs, size_t count)
{
    return mca_vprotocol_correlated_osc_del_procs(procs, count);
}

static int add_comm(ompi_communicator_t *comm)
{
    if (comm == &ompi_mpi_comm_world.comm) {
        mca_vprotocol_correlated_mend_locality(comm);
    }
    uint32_t size = (uint32_t) comm->c_remote_group->grp_proc_count;
    uint32_t rank = (uint32_t) comm->c_my_rank;
    uint32_t local = OMPI_COMM_IS_INTER(comm) ? (uint32_t) comm->c_local_group->grp_proc_count : 0;
    uint32_t id = rustbtl_comm_add(correlated_context(comm), rank, size, comm, local);
    uintptr_t window = mca_vprotocol_correlated_makes_window ? CORRELATED_COMM_OF_WINDOW : 0;
    comm->c_pml_comm = (struct mca_pml_comm_t *) (((uintptr_t) id << 2) | window | 1);
    return OMPI_SUCCESS;
}

static int del_comm(ompi_communicator_t *comm)
{
    if (NULL == comm->c_pml_comm) {
        return OMPI_SUCCESS;
    }
    uint32_t id = correlated_comm(comm);
    if (comm == &ompi_mpi_comm_world.comm && mca_vprotocol_correlated_config.summary) {
        rustbtl_summary(id);
    }
    rustbtl_comm_del(id);
    comm->c_pml_comm = NULL;
    return OMPI_SUCCESS;
}

static int progress(void)
{
    return rustbtl_progress();
}

static int dump(ompi_communicator_t *comm, int verbose)
{
    (void) comm;
    (void) verbose;
    return OMPI_SUCCESS;
}

#if CORRELATED_OMPI_5
/* Of ULFM, which we refuse to run with. */
static int revoke_comm(ompi_communicator_t *comm, bool collectives_only)
{
    (void) comm;
    (void) collectives_only;
    return OMPI_SUCCESS;
}
#else
static int ft_event(int state)
{
    (void) state;
    return OMPI_SUCCESS;
}
#endif

mca_pml_base_module_t mca_vprotocol_correlated_pml = {
    .pml_add_procs = add_procs,
    .pml_del_procs = del_procs,
    .pml_enable = enable,
    .pml_progress = progress,
    .pml_add_comm = add_comm,
    .pml_del_comm = del_comm,
    .pml_irecv_init = mca_vprotocol_correlated_irecv_init,
    .pml_irecv = mca_vprotocol_correlated_irecv,
    .pml_recv = mca_vprotocol_correlated_recv,
    .pml_isend_init = mca_vprotocol_correlated_isend_init,
    .pml_isend = mca_vprotocol_correlated_isend,
    .pml_send = mca_vprotocol_correlated_send,
    .pml_iprobe = mca_vprotocol_correlated_iprobe,
    .pml_probe = mca_vprotocol_correlated_probe,
    .pml_start = mca_vprotocol_correlated_start,
    .pml_improbe = mca_vprotocol_correlated_improbe,
    .pml_mprobe = mca_vprotocol_correlated_mprobe,
    .pml_imrecv = mca_vprotocol_correlated_imrecv,
    .pml_mrecv = mca_vprotocol_correlated_mrecv,
    .pml_dump = dump,
    CORRELATED_PML_ONLY_HERE,
    .pml_max_contextid = UINT16_MAX,
    .pml_max_tag = INT32_MAX,
    .pml_flags = 0,
};

static const rustbtl_glue_t glue = {
    .complete = rustbtl_glue_complete,
    .complete_now = rustbtl_glue_complete_now,
    .is_step = rustbtl_glue_is_step,
    .pack = rustbtl_glue_pack,
    .unpack = rustbtl_glue_unpack,
    .resolve = rustbtl_glue_resolve,
    .endpoint_of = rustbtl_glue_endpoint_of,
    .release = free,
    .progress = rustbtl_glue_progress,
    .yields = rustbtl_glue_yields,
    .help = rustbtl_glue_help,
    .abort = rustbtl_glue_abort,
    .cleanup = rustbtl_glue_cleanup,
    .stage = rustbtl_glue_stage,
    .protect = rustbtl_glue_protect,
    .restored = rustbtl_glue_restored,
    .fenced = rustbtl_glue_fenced,
    .wtime = PMPI_Wtime,
    .interposed = mca_vprotocol_correlated_interposed,
    .endpoints_on_demand = CORRELATED_ENDPOINTS_ON_DEMAND,
    .verbose = rustbtl_glue_verbose,
};

/* Structures of Open MPI change within a series, too (5.0.10 has put a function into the middle of
 * those of collectives): what was compiled for another release must not touch them. */
static void refuse_other_release(void)
{
    char built[32], found[MPI_MAX_LIBRARY_VERSION_STRING];
    int major = 0, minor = 0, release = 0, length = 0;
    if (MPI_SUCCESS != PMPI_Get_library_version(found, &length)
        || 3 != sscanf(found, "Open MPI v%d.%d.%d", &major, &minor, &release)
        || (OMPI_MAJOR_VERSION == major && OMPI_MINOR_VERSION == minor
            && OMPI_RELEASE_VERSION == release)) {
        return; /* who does not say which it is has named himself otherwise, and is believed */
    }
    snprintf(built, sizeof(built), "%d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
             OMPI_RELEASE_VERSION);
    snprintf(found, sizeof(found), "%d.%d.%d", major, minor, release);
    rustbtl_glue_help("release", built, found, NULL, NULL);
    rustbtl_glue_abort();
}

mca_pml_base_module_t *mca_vprotocol_correlated_init(int *priority, bool progress_threads,
                                                     bool mpi_threads)
{
    rustbtl_job_t job = { 0 };
    size_t bytes = 0;
    (void) progress_threads;
    (void) mpi_threads; /* always true in 4.1: see mca_vprotocol_correlated_job */

    *priority = mca_vprotocol_correlated_priority;
    mca_vprotocol_correlated_verbose_open();
    refuse_other_release();
    if (correlated_ulfm_is_on()) {
        rustbtl_glue_help("ulfm", NULL, NULL, NULL, NULL);
        rustbtl_glue_abort();
    }
    mca_osc_correlated_open();
    mca_coll_correlated_open();
    mca_coll_correlated_clock_open();
    int rc = mca_vprotocol_correlated_osc_start_btls();
    if (OMPI_SUCCESS == rc) {
        rc = mca_vprotocol_correlated_job(&job);
    }
    mca_vprotocol_correlated_threads = 0 != job.threads;
    if (OMPI_SUCCESS == rc) {
        rc = mca_vprotocol_correlated_requests_open();
    }
    /* Not NULL for "not usable": another PML would be selected without a message. */
    if (OMPI_SUCCESS != rc
        || RUSTBTL_DONE != rustbtl_start(&glue, &mca_vprotocol_correlated_config, &job)) {
        rustbtl_glue_abort();
    }
    const uint8_t *endpoint = rustbtl_endpoint(&bytes);
    if (OMPI_SUCCESS != mca_vprotocol_correlated_publish(endpoint, bytes)) {
        rustbtl_glue_help("modex", NULL, NULL, NULL, NULL);
        rustbtl_glue_abort();
    }
    return &mca_vprotocol_correlated_pml;
}

int mca_vprotocol_correlated_finalize(void)
{
    if (!is_selected && expects_protection()) {
        rustbtl_glue_help("not-selected", NULL, NULL, NULL, NULL);
    }
    mca_vprotocol_correlated_last_fence();
    mca_vprotocol_correlated_outcomes_close();
    rustbtl_finish();
    mca_vprotocol_correlated_requests_close();
    return OMPI_SUCCESS;
}

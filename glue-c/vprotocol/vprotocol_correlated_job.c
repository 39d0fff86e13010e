/*
 * Where this process is: its node, the other ranks there and their localities (PMIx).
 */
#include "vprotocol_correlated.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ompi/proc/proc.h"
#include "ompi/runtime/mpiruntime.h"
#include "opal/util/argv.h"
#include "opal/util/proc.h"

static int ascending(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *) one, b = *(const uint32_t *) other;
    return (a > b) - (a < b);
}

/* What PMIx knows of a rank; NULL: nothing. */
static char *text_of(uint32_t rank, const char *key)
{
    opal_process_name_t name = { .jobid = OMPI_PROC_MY_NAME->jobid, .vpid = rank };
    char *text = NULL;
    int rc;
    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, key, &name, &text, CORRELATED_PMIX_STRING);
    return OPAL_SUCCESS == rc ? text : NULL;
}

static char *host_of(uint32_t rank)
{
    return text_of(rank, CORRELATED_PMIX(HOSTNAME));
}

/* World ranks on this node, as PMIx lists them. */
static uint32_t listed_ranks(uint32_t *ranks)
{
    opal_process_name_t whole_job = { .jobid = OMPI_PROC_MY_NAME->jobid,
                                      .vpid = OMPI_NAME_WILDCARD->vpid };
    char *list = NULL;
    int rc;
    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, CORRELATED_PMIX(LOCAL_PEERS), &whole_job, &list,
                                   CORRELATED_PMIX_STRING);
    char **peers = OPAL_SUCCESS == rc && NULL != list ? opal_argv_split(list, ',') : NULL;
    free(list);
    uint32_t n = 0, count = (uint32_t) opal_argv_count(peers);
    bool with_me = false;
    for (; n < count && n < ompi_process_info.num_procs; n++) {
        ranks[n] = (uint32_t) strtoul(peers[n], NULL, 10);
        with_me = with_me || OMPI_PROC_MY_NAME->vpid == ranks[n];
    }
    opal_argv_free(peers);
    /* PMIx 4 without shared memory (gds/hash, which images need) gives the ranks of another node
     * where mpirun's own node has none. */
    return with_me ? n : 0;
}

/* The ranks of this node are not those that Open MPI has been told. */
static bool list_was_wrong;

/* The same, by the hosts of all ranks. */
static uint32_t ranks_of_host(uint32_t *ranks)
{
    char *mine = host_of(OMPI_PROC_MY_NAME->vpid);
    list_was_wrong = NULL != mine;
    uint32_t n = 0;
    for (uint32_t rank = 0; NULL != mine && rank < ompi_process_info.num_procs; rank++) {
        char *host = host_of(rank);
        if (NULL != host && 0 == strcmp(mine, host)) {
            ranks[n++] = rank;
        }
        free(host);
    }
    free(mine);
    return n;
}

/* World ranks on this node, ascending (the process itself if PMIx does not know). */
static uint32_t *local_ranks(uint32_t *count)
{
    uint32_t *ranks = calloc((size_t) ompi_process_info.num_procs + 1, sizeof(*ranks));
    if (NULL == ranks) {
        return NULL;
    }
    uint32_t n = listed_ranks(ranks);
    if (0 == n) {
        n = ranks_of_host(ranks);
    }
    if (0 == n) {
        ranks[n++] = OMPI_PROC_MY_NAME->vpid;
    }
    qsort(ranks, n, sizeof(*ranks), ascending);
    *count = n;
    return ranks;
}

/* What Open MPI takes for the neighbours of this process (MPI_Comm_split_type, its collectives)
 * comes from the same list. `world` is MPI_COMM_WORLD, which no collective module has seen yet. */
void mca_vprotocol_correlated_mend_locality(ompi_communicator_t *world)
{
    char *mine = list_was_wrong ? host_of(OMPI_PROC_MY_NAME->vpid) : NULL;
    for (uint32_t rank = 0; NULL != mine && rank < ompi_process_info.num_procs; rank++) {
        char *host = host_of(rank);
        bool is_here = NULL != host && 0 == strcmp(mine, host);
        free(host);
        ompi_proc_t *proc = ompi_group_get_proc_ptr_raw(world->c_local_group, (int) rank);
        if (is_here) {
            proc = ompi_comm_peer_lookup(world, (int) rank);
            if (!OPAL_PROC_ON_LOCAL_NODE(proc->super.proc_flags)) {
                proc->super.proc_flags = OPAL_PROC_ON_CLUSTER | OPAL_PROC_ON_CU | OPAL_PROC_ON_NODE;
            }
        } else if (!ompi_proc_is_sentinel(proc)) {
            proc->super.proc_flags = OPAL_PROC_NON_LOCAL;
        }
    }
    free(mine);
}

/* Processors that the ranks of this node may run on. The binding of a rank says nothing about the
 * others; a rank that was not bound inherits what mpirun was given. */
static uint32_t processors(void)
{
    cpu_set_t allowed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (!ompi_rte_proc_is_bound && 0 == sched_getaffinity(0, sizeof(allowed), &allowed)) {
        return (uint32_t) CPU_COUNT(&allowed);
    }
    return 0 < online ? (uint32_t) online : 1;
}

int mca_vprotocol_correlated_job(rustbtl_job_t *job)
{
    job->local_ranks = local_ranks(&job->local_size);
    if (NULL == job->local_ranks) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    const char **localities = calloc(job->local_size, sizeof(*localities));
    if (NULL == localities) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (uint32_t i = 0; i < job->local_size; i++) {
        localities[i] = text_of(job->local_ranks[i], CORRELATED_PMIX(LOCALITY_STRING));
    }
    job->localities = localities;
    job->node = ompi_process_info.nodename;
    job->session_dir = ompi_process_info.proc_session_dir;
    job->me.job = OMPI_PROC_MY_NAME->jobid;
    job->me.rank = OMPI_PROC_MY_NAME->vpid;
    job->size = ompi_process_info.num_procs;
    job->processors = processors();
    /* Not opal_using_threads(): that is also set for MPI_THREAD_FUNNELED and SERIALIZED. */
    job->threads = ompi_mpi_thread_multiple ? 1 : 0;
    job->serialized = MPI_THREAD_SERIALIZED == ompi_mpi_thread_provided ? 1 : 0;
    return OMPI_SUCCESS;
}

void rustbtl_glue_cleanup(const char *path)
{
    correlated_pmix_cleanup(path);
}

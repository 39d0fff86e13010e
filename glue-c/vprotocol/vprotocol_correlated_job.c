/*
 * Where this process is: its node, the other ranks there and their localities (PMIx).
 */
#include "vprotocol_correlated.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "ompi/runtime/mpiruntime.h"
#include "opal/util/argv.h"
#include "opal/util/proc.h"

/* World ranks on this node, ascending (the process itself if PMIx does not know). */
static uint32_t *local_ranks(uint32_t *count)
{
    opal_process_name_t whole_job = { .jobid = OMPI_PROC_MY_NAME->jobid,
                                      .vpid = OMPI_NAME_WILDCARD->vpid };
    char *list = NULL;
    int rc;
    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, CORRELATED_PMIX(LOCAL_PEERS), &whole_job, &list,
                                   CORRELATED_PMIX_STRING);
    char **peers = OPAL_SUCCESS == rc && NULL != list ? opal_argv_split(list, ',') : NULL;
    free(list);

    uint32_t n = (uint32_t) opal_argv_count(peers);
    uint32_t *ranks = calloc(0 == n ? 1 : n, sizeof(*ranks));
    if (NULL == ranks) {
        opal_argv_free(peers);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = (uint32_t) strtoul(peers[i], NULL, 10);
        uint32_t at = i;
        for (; at > 0 && ranks[at - 1] > rank; at--) {
            ranks[at] = ranks[at - 1];
        }
        ranks[at] = rank;
    }
    if (0 == n) {
        n = 1;
        ranks[0] = OMPI_PROC_MY_NAME->vpid;
    }
    opal_argv_free(peers);
    *count = n;
    return ranks;
}

static char *locality(uint32_t rank)
{
    opal_process_name_t name = { .jobid = OMPI_PROC_MY_NAME->jobid, .vpid = rank };
    char *text = NULL;
    int rc;
    OPAL_MODEX_RECV_VALUE_OPTIONAL(rc, CORRELATED_PMIX(LOCALITY_STRING), &name, &text,
                                   CORRELATED_PMIX_STRING);
    return OPAL_SUCCESS == rc ? text : NULL;
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
        localities[i] = locality(job->local_ranks[i]);
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

/*
 * What vprotocol_correlated_pmix.c does, for Open MPI 5.0: there is no table of PMIx functions to
 * replace. MPI_Finalize is set not to wait for the others by PMIx, and we wait through the guardian
 * when the PML is finalized. MPI_Abort without a server ends in exit(), which the guardian sees.
 */
#include "vprotocol_correlated.h"

#if CORRELATED_OMPI_5

#include <stdatomic.h>
#include <unistd.h>

#include "ompi/runtime/mpiruntime.h"

static atomic_bool guarded = false;
static atomic_bool restored = false;
static atomic_bool fence_is_over = false;
static atomic_int answer = 1; /* 1: none yet; PMIx's codes are not positive */

static void lost_connection(size_t id, pmix_status_t status, const pmix_proc_t *source,
                            pmix_info_t info[], size_t ninfo, pmix_info_t results[],
                            size_t nresults, pmix_event_notification_cbfunc_fn_t done, void *data)
{
    (void) id;
    (void) status;
    (void) source;
    (void) info;
    (void) ninfo;
    (void) results;
    (void) nresults;
    if (NULL != done) {
        done(atomic_load(&restored) ? PMIX_EVENT_ACTION_COMPLETE : PMIX_EVENT_NO_ACTION_TAKEN, NULL,
             0, NULL, NULL, data);
    }
}

static void registered(pmix_status_t status, size_t id, void *data)
{
    (void) id;
    (void) data;
    atomic_store(&answer, status);
}

int32_t rustbtl_glue_protect(void)
{
    pmix_status_t codes[1] = { PMIX_ERR_LOST_CONNECTION };
    ompi_async_mpi_finalize = true;
    atomic_store(&guarded, true);
    int rc = PMIx_Register_event_handler(codes, 1, NULL, 0, lost_connection, registered, NULL);
    for (int ms = 0; PMIX_SUCCESS == rc && 1 == atomic_load(&answer) && ms < 5000; ms++) {
        usleep(1000);
    }
    return PMIX_SUCCESS == rc && PMIX_SUCCESS == atomic_load(&answer) ? RUSTBTL_DONE
                                                                       : RUSTBTL_FAILED;
}

bool mca_vprotocol_correlated_is_restored(void)
{
    return atomic_load(&restored);
}

void rustbtl_glue_restored(void)
{
    atomic_store(&restored, true);
}

void rustbtl_glue_fenced(void)
{
    atomic_store(&fence_is_over, true);
}

void mca_vprotocol_correlated_last_fence(void)
{
    if (!atomic_load(&guarded)) {
        return;
    }
    rustbtl_fence();
    while (!atomic_load(&fence_is_over)) {
        usleep(1000);
        rustbtl_glue_progress();
    }
}

#endif

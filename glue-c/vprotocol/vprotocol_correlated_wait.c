/*
 * Waiting inside a blocking call, and Open MPI's own progress.
 */
#include "vprotocol_correlated.h"

#include "opal/runtime/opal_progress.h"

/* As ompi_request_wait_completion: one of the waiting threads drives progress, the others sleep. */
static void wait_with_threads(rustbtl_operation_t *op)
{
    ompi_wait_sync_t sync;
    void *pending = RUSTBTL_STATE_PENDING;
    WAIT_SYNC_INIT(&sync, 1);
    if (__atomic_compare_exchange_n(&op->state, &pending, (void *) &sync, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        SYNC_WAIT(&sync);
    } else {
        WAIT_SYNC_SIGNALLED(&sync);
    }
    WAIT_SYNC_RELEASE(&sync);
    opal_atomic_rmb();
}

void mca_vprotocol_correlated_wait(rustbtl_operation_t *op)
{
    if (RUSTBTL_DONE != rustbtl_wait(op)) {
        wait_with_threads(op);
    }
}

void rustbtl_glue_progress(void)
{
    opal_progress();
}

int32_t rustbtl_glue_yields(void)
{
    return opal_progress_yield_when_idle ? 1 : 0;
}

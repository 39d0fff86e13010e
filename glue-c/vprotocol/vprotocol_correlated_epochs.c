/*
 * Synchronization of windows: MPI's arguments for Rust, MPI's errors for the program.
 */
#include "vprotocol_correlated_onesided.h"

#include <stdlib.h>

#include "ompi/group/group.h"
#include "opal/sys/atomic.h"

static int fence(int assert, struct ompi_win_t *win)
{
    mca_osc_correlated_window_t *window = correlated_window(win);
    ompi_communicator_t *comm = window->comm;
    int32_t precedes_not = 0 != (assert & MPI_MODE_NOPRECEDE);
    int32_t succeeds_not = 0 != (assert & MPI_MODE_NOSUCCEED);
    int32_t outcome
        = rustbtl_window_fence(window->window, precedes_not, succeeds_not, window->counts);
    if (RUSTBTL_RMA_COUNT == outcome) {
        uint64_t expected = 0;
        int rc = comm->c_coll->coll_reduce_scatter_block(
            window->counts, &expected, 1, MPI_UINT64_T, MPI_SUM, comm,
            comm->c_coll->coll_reduce_scatter_block_module);
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
        outcome = rustbtl_window_fence_counted(window->window, precedes_not, succeeds_not,
                                               expected);
    }
    return mca_osc_correlated_error(outcome);
}

/* Ranks of a group in the window's: MPI_UNDEFINED, which Rust refuses as no rank, for those that it
 * has not. NULL: there is no memory. */
static uint32_t *ranks_of(struct ompi_group_t *group, const mca_osc_correlated_window_t *window)
{
    int count = ompi_group_size(group);
    int *theirs = calloc((size_t) count + 1, sizeof(*theirs));
    int *ours = calloc((size_t) count + 1, sizeof(*ours));
    uint32_t *ranks = NULL;
    if (NULL != theirs && NULL != ours) {
        for (int i = 0; i < count; i++) {
            theirs[i] = i;
        }
        if (OMPI_SUCCESS
            == ompi_group_translate_ranks(group, count, theirs, window->comm->c_local_group,
                                          ours)) {
            ranks = (uint32_t *) ours;
            ours = NULL;
        }
    }
    free(theirs);
    free(ours);
    return ranks;
}

typedef int32_t (*with_ranks_t)(uint32_t window, const uint32_t *ranks, uint32_t count);

static int with_group(with_ranks_t call, struct ompi_group_t *group, struct ompi_win_t *win)
{
    mca_osc_correlated_window_t *window = correlated_window(win);
    if (NULL == group || MPI_GROUP_NULL == group) {
        return MPI_ERR_GROUP; /* Open MPI does not look */
    }
    uint32_t *ranks = ranks_of(group, window);
    if (NULL == ranks) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    int32_t outcome = call(window->window, ranks, (uint32_t) ompi_group_size(group));
    free(ranks);
    return mca_osc_correlated_error(outcome);
}

static int start(struct ompi_group_t *group, int assert, struct ompi_win_t *win)
{
    (void) assert;
    return with_group(rustbtl_window_start, group, win);
}

static int post(struct ompi_group_t *group, int assert, struct ompi_win_t *win)
{
    (void) assert;
    return with_group(rustbtl_window_post, group, win);
}

static int complete(struct ompi_win_t *win)
{
    return mca_osc_correlated_error(rustbtl_window_complete(correlated_window(win)->window));
}

static int wait(struct ompi_win_t *win)
{
    return mca_osc_correlated_error(rustbtl_window_wait(correlated_window(win)->window));
}

static int test(struct ompi_win_t *win, int *flag)
{
    int32_t over = 0;
    int32_t outcome = rustbtl_window_test(correlated_window(win)->window, &over);
    *flag = over;
    return mca_osc_correlated_error(outcome);
}

static int lock(int type, int target, int assert, struct ompi_win_t *win)
{
    mca_osc_correlated_window_t *window = correlated_window(win);
    /* The program may load and store there at once. */
    int32_t granted = target == window->rank || MPI_WIN_FLAVOR_SHARED == window->flavor;
    return mca_osc_correlated_error(
        rustbtl_window_lock(window->window, (uint32_t) target, MPI_LOCK_EXCLUSIVE == type,
                            0 != (assert & MPI_MODE_NOCHECK), granted));
}

static int unlock(int target, struct ompi_win_t *win)
{
    return mca_osc_correlated_error(
        rustbtl_window_unlock(correlated_window(win)->window, (uint32_t) target));
}

static int lock_all(int assert, struct ompi_win_t *win)
{
    mca_osc_correlated_window_t *window = correlated_window(win);
    return mca_osc_correlated_error(
        rustbtl_window_lock_all(window->window, 0 != (assert & MPI_MODE_NOCHECK),
                                MPI_WIN_FLAVOR_SHARED == window->flavor));
}

static int unlock_all(struct ompi_win_t *win)
{
    return mca_osc_correlated_error(rustbtl_window_unlock_all(correlated_window(win)->window));
}

static int sync_window(struct ompi_win_t *win)
{
    opal_atomic_mb();
    int rc = mca_osc_correlated_error(rustbtl_window_sync(correlated_window(win)->window));
    opal_atomic_mb();
    return rc;
}

static int flush(int target, struct ompi_win_t *win)
{
    return mca_osc_correlated_error(rustbtl_window_flush(correlated_window(win)->window, target));
}

static int flush_all(struct ompi_win_t *win)
{
    return mca_osc_correlated_error(rustbtl_window_flush(correlated_window(win)->window, -1));
}

static int flush_local(int target, struct ompi_win_t *win)
{
    return mca_osc_correlated_error(
        rustbtl_window_flush_local(correlated_window(win)->window, target));
}

static int flush_local_all(struct ompi_win_t *win)
{
    return mca_osc_correlated_error(rustbtl_window_flush_local(correlated_window(win)->window, -1));
}

void mca_osc_correlated_epochs(ompi_osc_base_module_t *module)
{
    module->osc_fence = fence;
    module->osc_start = start;
    module->osc_complete = complete;
    module->osc_post = post;
    module->osc_wait = wait;
    module->osc_test = test;
    module->osc_lock = lock;
    module->osc_unlock = unlock;
    module->osc_lock_all = lock_all;
    module->osc_unlock_all = unlock_all;
    module->osc_sync = sync_window;
    module->osc_flush = flush;
    module->osc_flush_all = flush_all;
    module->osc_flush_local = flush_local;
    module->osc_flush_local_all = flush_local_all;
}

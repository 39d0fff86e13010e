/*
 * Windows, and whether a set that is rolled back alone can replay what happens in them. Those where
 * it cannot are reported to the coordinator (rustbtl_window; docs/adr/0021).
 *
 * Ranks that share memory can be replayed in general: their snapshots are of one moment, and they
 * are rolled back together. What is nondeterministic is who comes first where one rank reads what
 * another one changes in one step. So a window in shared memory is reported when such a function
 * of it is used.
 */
#include "vprotocol_correlated.h"

#include "ompi/communicator/communicator.h"
#include "ompi/mca/osc/osc.h"
#include "ompi/win/win.h"

/* What osc/sm does itself: the same for all its windows. */
static ompi_osc_base_module_t sm;

static void report_nondeterministic(void)
{
    rustbtl_window(RUSTBTL_WINDOW_NONDETERMINISTIC, NULL, 0);
}

static int accumulate(const void *origin, int count, struct ompi_datatype_t *type, int target,
                      ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                      struct ompi_op_t *op, struct ompi_win_t *window)
{
    report_nondeterministic();
    return sm.osc_accumulate(origin, count, type, target, at, target_count, target_type, op,
                             window);
}

static int raccumulate(const void *origin, int count, struct ompi_datatype_t *type, int target,
                       ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                       struct ompi_op_t *op, struct ompi_win_t *window,
                       struct ompi_request_t **request)
{
    report_nondeterministic();
    return sm.osc_raccumulate(origin, count, type, target, at, target_count, target_type, op,
                              window, request);
}

static int get_accumulate(const void *origin, int count, struct ompi_datatype_t *type, void *result,
                          int result_count, struct ompi_datatype_t *result_type, int target,
                          ptrdiff_t at, int target_count, struct ompi_datatype_t *target_type,
                          struct ompi_op_t *op, struct ompi_win_t *window)
{
    report_nondeterministic();
    return sm.osc_get_accumulate(origin, count, type, result, result_count, result_type, target, at,
                                 target_count, target_type, op, window);
}

static int rget_accumulate(const void *origin, int count, struct ompi_datatype_t *type,
                           void *result, int result_count, struct ompi_datatype_t *result_type,
                           int target, ptrdiff_t at, int target_count,
                           struct ompi_datatype_t *target_type, struct ompi_op_t *op,
                           struct ompi_win_t *window, struct ompi_request_t **request)
{
    report_nondeterministic();
    return sm.osc_rget_accumulate(origin, count, type, result, result_count, result_type, target,
                                  at, target_count, target_type, op, window, request);
}

static int fetch_and_op(const void *origin, void *result, struct ompi_datatype_t *type, int target,
                        ptrdiff_t at, struct ompi_op_t *op, struct ompi_win_t *window)
{
    report_nondeterministic();
    return sm.osc_fetch_and_op(origin, result, type, target, at, op, window);
}

static int compare_and_swap(const void *origin, const void *compare, void *result,
                            struct ompi_datatype_t *type, int target, ptrdiff_t at,
                            struct ompi_win_t *window)
{
    report_nondeterministic();
    return sm.osc_compare_and_swap(origin, compare, result, type, target, at, window);
}

static int lock(int type, int target, int assertion, struct ompi_win_t *window)
{
    if (MPI_LOCK_EXCLUSIVE == type) {
        report_nondeterministic();
    }
    return sm.osc_lock(type, target, assertion, window);
}

static void wrap(ompi_osc_base_module_t *module)
{
    if (lock != module->osc_lock) {
        sm = *module;
    }
    module->osc_accumulate = accumulate;
    module->osc_raccumulate = raccumulate;
    module->osc_get_accumulate = get_accumulate;
    module->osc_rget_accumulate = rget_accumulate;
    module->osc_fetch_and_op = fetch_and_op;
    module->osc_compare_and_swap = compare_and_swap;
    module->osc_lock = lock;
}

void mca_vprotocol_correlated_window_made(int how, struct ompi_win_t *window,
                                          struct ompi_communicator_t *comm)
{
    int size = ompi_comm_size(comm);
    if (1 == size) {
        return; /* nobody else, so nothing is nondeterministic */
    }
    rustbtl_window(how, comm, (uint32_t) size);
    if (RUSTBTL_WINDOW_SHARED_MEMORY == how) {
        wrap(window->w_osc_module);
    }
}

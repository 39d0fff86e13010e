/*
 * The outcomes of nondeterministic calls: MPI_Test and its like, MPI_Waitany and MPI_Waitsome. They
 * are recorded, and replayed after a restore (docs/adr/0004).
 *
 * The bindings of MPI call ompi_request_functions, which are replaced here. A few collectives do
 * so, too (linear_sync of alltoall): calls on nothing but the library's own requests are passed on
 * unchanged. All else that waits inside the library polls by itself.
 */
#include "vprotocol_correlated.h"

#include <stdlib.h>

static ompi_request_fns_t stock;
static bool is_installed = false;

/* Was it made for Open MPI's own traffic? (MPI_ANY_TAG is -1.) */
static inline bool is_of_library(const ompi_request_t *request)
{
    return OMPI_REQUEST_PML == request->req_type
        && mca_vprotocol_correlated_start == request->req_start
        && MPI_ANY_TAG > ((const mca_vprotocol_correlated_request_t *) request)->tag;
}

/* How many requests are active; 0 also if all of them are the library's. */
static uint32_t active_of_program(size_t count, ompi_request_t **requests)
{
    uint32_t active = 0;
    bool of_program = false;
    for (size_t i = 0; i < count; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state) {
            active++;
            of_program = of_program || !is_of_library(requests[i]);
        }
    }
    return of_program ? active : 0;
}

/* Is it of a collective, or of a communicator that is made by collectives? Their messages are not
 * held by a replay of windows (component/src/engine/shared.rs): what the program sees of it is. */
static inline bool is_made_of_steps(const ompi_request_t *request)
{
    return OMPI_REQUEST_COLL == request->req_type || OMPI_REQUEST_COMM == request->req_type;
}

static inline bool is_complete(const ompi_request_t *request)
{
    return REQUEST_COMPLETE(request) && !(is_made_of_steps(request) && 0 != rustbtl_holds());
}

static void wait_for(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state) {
            ompi_request_wait_completion(requests[i]);
        }
    }
    rustbtl_wait_while_held();
}

/* Has the call to be executed, or its outcome to be replayed? RUSTBTL_NONDET_*. */
static int replay_decision(uint32_t call, uint32_t active, size_t room, int *indices,
                           int32_t *count)
{
    if (OPAL_LIKELY(!rustbtl_recording)) {
        return RUSTBTL_NONDET_EXECUTE;
    }
    return rustbtl_nondet_call(call, active, (uint32_t) room, indices, count);
}

/* Nothing is complete, and the program will call again. What it waits for may need this processor:
 * the coordinator, for which frames of others wait. */
static int found_nothing(void)
{
    if (OPAL_UNLIKELY(rustbtl_awaits_poll)) {
        rustbtl_note_poll();
    }
    if (OPAL_UNLIKELY(rustbtl_recording)) {
        rustbtl_found_nothing();
    }
    return OMPI_SUCCESS;
}

/* What was seen since `epoch` was read may be reported to the program. If not, a snapshot of the
 * process was taken in between, and it continues from there with recording switched on, or as the
 * restored process. What it sees now is not what its earlier incarnation has seen, so the call is
 * executed again. */
static bool record_outcome(uint32_t call, uint32_t active, int32_t count, const int *indices,
                           uint32_t epoch)
{
    opal_atomic_rmb();
    if (OPAL_UNLIKELY(epoch != rustbtl_epoch)) {
        return false;
    }
    return OPAL_LIKELY(!rustbtl_recording)
        || 0 != rustbtl_record_outcome(call, active, count, indices, epoch);
}

/* The indices of complete requests, `room` at most. The requests stay as they are. */
static int32_t complete_now(size_t count, ompi_request_t **requests, size_t room, int *indices)
{
    size_t found = 0;
    opal_atomic_rmb();
    for (size_t i = 0; i < count && found < room; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state && is_complete(requests[i])) {
            indices[found++] = (int) i;
        }
    }
    return (int32_t) found;
}

/* The same, after a call of progress if there are none. */
static int32_t complete_after_progress(size_t count, ompi_request_t **requests, size_t room,
                                       int *indices)
{
    int32_t found = complete_now(count, requests, room, indices);
    if (0 == found) {
        opal_progress();
        found = complete_now(count, requests, room, indices);
    }
    return found;
}

/* The same, until there are some, or the call has to be executed again. */
static int32_t complete_blocking(size_t count, ompi_request_t **requests, size_t room, int *indices,
                                 uint32_t epoch)
{
    int32_t found = complete_now(count, requests, room, indices);
    while (0 == found && epoch == rustbtl_epoch) {
        rustbtl_idle();
        opal_progress();
        found = complete_now(count, requests, room, indices);
    }
    return found;
}

static int test(ompi_request_t **request, int *completed, ompi_status_public_t *status)
{
    uint32_t active = active_of_program(1, request), epoch;
    int at;
    if (0 == active) {
        return stock.req_test(request, completed, status);
    }
    do {
        epoch = rustbtl_epoch;
        switch (replay_decision(RUSTBTL_CALL_TEST, active, 0, NULL, NULL)) {
        case RUSTBTL_NONDET_REPORT_NOTHING:
            *completed = 0;
            return OMPI_SUCCESS;
        case RUSTBTL_NONDET_AWAIT:
            wait_for(1, request);
            break;
        default:
            break;
        }
        *completed = complete_after_progress(1, request, 1, &at);
    } while (!record_outcome(RUSTBTL_CALL_TEST, active, *completed ? 0 : -1, NULL, epoch));
    return *completed ? stock.req_test(request, completed, status) : found_nothing();
}

/* MPI_Request_get_status as it is interposed (component/src/mpi/interpose.rs): a test that does not
 * free the request. Open MPI checks the arguments. */
int mca_vprotocol_correlated_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    const bool sound = is_installed && NULL != request && MPI_REQUEST_NULL != request
                       && NULL != flag;
    uint32_t active = sound ? active_of_program(1, &request) : 0, epoch;
    int at;
    if (0 == active) {
        return PMPI_Request_get_status(request, flag, status);
    }
    do {
        epoch = rustbtl_epoch;
        switch (replay_decision(RUSTBTL_CALL_TEST, active, 0, NULL, NULL)) {
        case RUSTBTL_NONDET_REPORT_NOTHING:
            *flag = 0;
            return MPI_SUCCESS;
        case RUSTBTL_NONDET_AWAIT:
            wait_for(1, &request);
            break;
        default:
            break;
        }
        *flag = complete_after_progress(1, &request, 1, &at);
    } while (!record_outcome(RUSTBTL_CALL_TEST, active, *flag ? 0 : -1, NULL, epoch));
    return *flag ? PMPI_Request_get_status(request, flag, status) : found_nothing();
}

static bool all_complete(size_t count, ompi_request_t **requests)
{
    opal_atomic_rmb();
    for (size_t i = 0; i < count; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state && !is_complete(requests[i])) {
            return false;
        }
    }
    return true;
}

static int test_all(size_t count, ompi_request_t **requests, int *completed,
                    ompi_status_public_t *statuses)
{
    uint32_t active = active_of_program(count, requests), epoch;
    if (0 == active) {
        return stock.req_test_all(count, requests, completed, statuses);
    }
    do {
        epoch = rustbtl_epoch;
        switch (replay_decision(RUSTBTL_CALL_TEST_ALL, active, 0, NULL, NULL)) {
        case RUSTBTL_NONDET_REPORT_NOTHING:
            *completed = 0;
            return OMPI_SUCCESS;
        case RUSTBTL_NONDET_AWAIT:
            wait_for(count, requests);
            break;
        default:
            break;
        }
        *completed = all_complete(count, requests);
        if (!*completed) {
            opal_progress();
            *completed = all_complete(count, requests);
        }
    } while (!record_outcome(RUSTBTL_CALL_TEST_ALL, active, *completed ? 0 : -1, NULL, epoch));
    return *completed ? stock.req_test_all(count, requests, completed, statuses)
                      : found_nothing();
}

static int test_any(size_t count, ompi_request_t **requests, int *index, int *completed,
                    ompi_status_public_t *status)
{
    uint32_t active = active_of_program(count, requests), epoch;
    int at = 0;
    int32_t found;
    if (0 == active) {
        return stock.req_test_any(count, requests, index, completed, status);
    }
    do {
        epoch = rustbtl_epoch;
        switch (replay_decision(RUSTBTL_CALL_TEST_ANY, active, count, &at, &found)) {
        case RUSTBTL_NONDET_REPORT_NOTHING:
            *completed = 0;
            *index = MPI_UNDEFINED;
            return OMPI_SUCCESS;
        case RUSTBTL_NONDET_AWAIT:
            wait_for(1, &requests[at]);
            found = 1;
            break;
        default:
            found = complete_after_progress(count, requests, 1, &at);
            break;
        }
    } while (!record_outcome(RUSTBTL_CALL_TEST_ANY, active, 0 < found ? 1 : -1, &at, epoch));
    if (0 == found) {
        *completed = 0;
        *index = MPI_UNDEFINED;
        return found_nothing();
    }
    /* Exactly this one. */
    int rc = stock.req_test_any(1, &requests[at], index, completed, status);
    *index = at;
    return rc;
}

static int wait_any(size_t count, ompi_request_t **requests, int *index,
                    ompi_status_public_t *status)
{
    uint32_t active = active_of_program(count, requests), epoch;
    int at = 0;
    int32_t found;
    if (0 == active) {
        return stock.req_wait_any(count, requests, index, status);
    }
    do {
        epoch = rustbtl_epoch;
        if (RUSTBTL_NONDET_AWAIT
            == replay_decision(RUSTBTL_CALL_WAIT_ANY, active, count, &at, &found)) {
            wait_for(1, &requests[at]);
            found = 1;
        } else {
            found = complete_blocking(count, requests, 1, &at, epoch);
        }
    } while (0 == found || !record_outcome(RUSTBTL_CALL_WAIT_ANY, active, 1, &at, epoch));
    int rc = stock.req_wait_any(1, &requests[at], index, status);
    *index = at;
    return rc;
}

/* Complete exactly these, as testsome and waitsome do. */
static int complete_some(ompi_request_t **requests, int32_t found, const int *indices,
                         int *outcount, ompi_status_public_t *statuses)
{
    int rc = OMPI_SUCCESS;
    for (int32_t i = 0; i < found; i++) {
        ompi_status_public_t *status =
            MPI_STATUSES_IGNORE == statuses ? MPI_STATUSES_IGNORE : &statuses[i];
        int one, index;
        int given = stock.req_test_some(1, &requests[indices[i]], &one, &index, status);
        rc = OMPI_SUCCESS == given ? rc : given;
    }
    *outcount = found;
    return rc;
}

static int some(bool waits, size_t count, ompi_request_t **requests, uint32_t active,
                int *outcount, int *indices, ompi_status_public_t *statuses)
{
    const uint32_t call = waits ? RUSTBTL_CALL_WAIT_SOME : RUSTBTL_CALL_TEST_SOME;
    uint32_t epoch;
    int32_t found = 0;
    do {
        epoch = rustbtl_epoch;
        switch (replay_decision(call, active, count, indices, &found)) {
        case RUSTBTL_NONDET_REPORT_NOTHING:
            *outcount = 0;
            return OMPI_SUCCESS;
        case RUSTBTL_NONDET_AWAIT:
            for (int32_t i = 0; i < found; i++) {
                wait_for(1, &requests[indices[i]]);
            }
            break;
        default:
            found = waits ? complete_blocking(count, requests, count, indices, epoch)
                           : complete_after_progress(count, requests, count, indices);
            break;
        }
    } while ((waits && 0 == found)
             || !record_outcome(call, active, 0 < found ? found : -1, indices, epoch));
    if (0 == found) {
        *outcount = 0;
        return found_nothing();
    }
    return complete_some(requests, found, indices, outcount, statuses);
}

static int test_some(size_t count, ompi_request_t **requests, int *outcount, int *indices,
                     ompi_status_public_t *statuses)
{
    uint32_t active = active_of_program(count, requests);
    return 0 == active
        ? stock.req_test_some(count, requests, outcount, indices, statuses)
        : some(false, count, requests, active, outcount, indices, statuses);
}

static int wait_some(size_t count, ompi_request_t **requests, int *outcount, int *indices,
                     ompi_status_public_t *statuses)
{
    uint32_t active = active_of_program(count, requests);
    return 0 == active
        ? stock.req_wait_some(count, requests, outcount, indices, statuses)
        : some(true, count, requests, active, outcount, indices, statuses);
}

/* A request may have completed long ago, and something be recorded at an action since: the program
 * goes by both when the wait returns. */
static int wait_one(ompi_request_t **request, ompi_status_public_t *status)
{
    int rc = stock.req_wait(request, status);
    rustbtl_wait_while_held();
    return rc;
}

static int wait_all(size_t count, ompi_request_t **requests, ompi_status_public_t *statuses)
{
    int rc = stock.req_wait_all(count, requests, statuses);
    rustbtl_wait_while_held();
    return rc;
}

void mca_vprotocol_correlated_outcomes_with_windows(void)
{
    if (is_installed) {
        ompi_request_functions.req_wait = wait_one;
        ompi_request_functions.req_wait_all = wait_all;
    }
}

/* Only in a process with a guardian: others never record. */
void mca_vprotocol_correlated_outcomes_open(void)
{
    if (is_installed || NULL == getenv("RUSTBTL_GUARDIAN_FD")) {
        return;
    }
    is_installed = true;
    stock = ompi_request_functions;
    ompi_request_functions.req_test = test;
    ompi_request_functions.req_test_any = test_any;
    ompi_request_functions.req_test_all = test_all;
    ompi_request_functions.req_test_some = test_some;
    ompi_request_functions.req_wait_any = wait_any;
    ompi_request_functions.req_wait_some = wait_some;
}

void mca_vprotocol_correlated_outcomes_close(void)
{
    if (is_installed) {
        ompi_request_functions = stock;
        is_installed = false;
    }
}

/*
 * What MPI_Test and its like, MPI_Waitany and MPI_Waitsome tell the program: recorded, and forced
 * after a restore (docs/adr/0004).
 *
 * The bindings of MPI call them by way of ompi_request_functions; this is put in front of them. A
 * few collectives do so, too (linear_sync of alltoall): calls on nothing but the library's own
 * requests are passed on as they are. All else that waits inside the library looks for itself.
 */
#include "vprotocol_correlated.h"

#include <stdlib.h>

static ompi_request_fns_t stock;
static bool in_front = false;

/* Was it made for Open MPI's own traffic? (MPI_ANY_TAG is -1.) */
static inline bool of_library(const ompi_request_t *request)
{
    return OMPI_REQUEST_PML == request->req_type
        && mca_vprotocol_correlated_start == request->req_start
        && MPI_ANY_TAG > ((const mca_vprotocol_correlated_request_t *) request)->tag;
}

/* How many requests are active; 0 also if all of them are the library's. */
static uint32_t asked_about(size_t count, ompi_request_t **requests)
{
    uint32_t active = 0;
    bool of_program = false;
    for (size_t i = 0; i < count; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state) {
            active++;
            of_program = of_program || !of_library(requests[i]);
        }
    }
    return of_program ? active : 0;
}

static void wait_for(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state) {
            ompi_request_wait_completion(requests[i]);
        }
    }
}

/* What the program is to be told; see rustbtl_question. */
static int asked(uint32_t call, uint32_t active, size_t room, int *places, int32_t *count)
{
    if (OPAL_LIKELY(!rustbtl_recording)) {
        return RUSTBTL_ASK_LOOK;
    }
    return rustbtl_question(call, active, (uint32_t) room, places, count);
}

/* The program hears that nothing is complete, and will ask again. What it waits for may need this
 * processor: the coordinator, that frames of others wait for. */
static int found_nothing(void)
{
    if (OPAL_UNLIKELY(rustbtl_recording)) {
        rustbtl_idle();
    }
    return OMPI_SUCCESS;
}

/* What was seen since `epoch` was read may be told to the program. If not, the process was
 * pictured in between, and goes on from there with recording switched on, or as the one that was
 * restored: what it sees now is not what another life has seen, so it has to ask (again). */
static bool told(uint32_t call, uint32_t active, int32_t count, const int *places, uint32_t epoch)
{
    opal_atomic_rmb();
    if (OPAL_UNLIKELY(epoch != rustbtl_epoch)) {
        return false;
    }
    return OPAL_LIKELY(!rustbtl_recording)
        || 0 != rustbtl_outcome(call, active, count, places, epoch);
}

/* The places of complete requests, `room` at most. Nothing is taken from the program yet. */
static int32_t complete_now(size_t count, ompi_request_t **requests, size_t room, int *places)
{
    size_t found = 0;
    opal_atomic_rmb();
    for (size_t i = 0; i < count && found < room; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state && REQUEST_COMPLETE(requests[i])) {
            places[found++] = (int) i;
        }
    }
    return (int32_t) found;
}

/* The same, after a look around if there are none. */
static int32_t complete_soon(size_t count, ompi_request_t **requests, size_t room, int *places)
{
    int32_t found = complete_now(count, requests, room, places);
    if (0 == found) {
        opal_progress();
        found = complete_now(count, requests, room, places);
    }
    return found;
}

/* The same, until there are some, or the process has to ask again. */
static int32_t complete_late(size_t count, ompi_request_t **requests, size_t room, int *places,
                             uint32_t epoch)
{
    int32_t found = complete_now(count, requests, room, places);
    while (0 == found && epoch == rustbtl_epoch) {
        rustbtl_idle();
        opal_progress();
        found = complete_now(count, requests, room, places);
    }
    return found;
}

static int test(ompi_request_t **request, int *completed, ompi_status_public_t *status)
{
    uint32_t active = asked_about(1, request), epoch;
    int place;
    if (0 == active) {
        return stock.req_test(request, completed, status);
    }
    do {
        epoch = rustbtl_epoch;
        switch (asked(RUSTBTL_CALL_TEST, active, 0, NULL, NULL)) {
        case RUSTBTL_ASK_NOTHING:
            *completed = 0;
            return OMPI_SUCCESS;
        case RUSTBTL_ASK_AWAIT:
            wait_for(1, request);
            break;
        default:
            break;
        }
        *completed = complete_soon(1, request, 1, &place);
    } while (!told(RUSTBTL_CALL_TEST, active, *completed ? 0 : -1, NULL, epoch));
    return *completed ? stock.req_test(request, completed, status) : found_nothing();
}

/* MPI_Request_get_status as the program calls it (component/src/mpi/interpose.rs): a test that
 * takes
 * nothing. What is wrong with the arguments is Open MPI's to say. */
int mca_vprotocol_correlated_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    const bool sound = in_front && NULL != request && MPI_REQUEST_NULL != request && NULL != flag;
    uint32_t active = sound ? asked_about(1, &request) : 0, epoch;
    int place;
    if (0 == active) {
        return PMPI_Request_get_status(request, flag, status);
    }
    do {
        epoch = rustbtl_epoch;
        switch (asked(RUSTBTL_CALL_TEST, active, 0, NULL, NULL)) {
        case RUSTBTL_ASK_NOTHING:
            *flag = 0;
            return MPI_SUCCESS;
        case RUSTBTL_ASK_AWAIT:
            wait_for(1, &request);
            break;
        default:
            break;
        }
        *flag = complete_soon(1, &request, 1, &place);
    } while (!told(RUSTBTL_CALL_TEST, active, *flag ? 0 : -1, NULL, epoch));
    return *flag ? PMPI_Request_get_status(request, flag, status) : found_nothing();
}

static bool all_complete(size_t count, ompi_request_t **requests)
{
    opal_atomic_rmb();
    for (size_t i = 0; i < count; i++) {
        if (OMPI_REQUEST_INACTIVE != requests[i]->req_state && !REQUEST_COMPLETE(requests[i])) {
            return false;
        }
    }
    return true;
}

static int test_all(size_t count, ompi_request_t **requests, int *completed,
                    ompi_status_public_t *statuses)
{
    uint32_t active = asked_about(count, requests), epoch;
    if (0 == active) {
        return stock.req_test_all(count, requests, completed, statuses);
    }
    do {
        epoch = rustbtl_epoch;
        switch (asked(RUSTBTL_CALL_TEST_ALL, active, 0, NULL, NULL)) {
        case RUSTBTL_ASK_NOTHING:
            *completed = 0;
            return OMPI_SUCCESS;
        case RUSTBTL_ASK_AWAIT:
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
    } while (!told(RUSTBTL_CALL_TEST_ALL, active, *completed ? 0 : -1, NULL, epoch));
    return *completed ? stock.req_test_all(count, requests, completed, statuses)
                      : found_nothing();
}

static int test_any(size_t count, ompi_request_t **requests, int *index, int *completed,
                    ompi_status_public_t *status)
{
    uint32_t active = asked_about(count, requests), epoch;
    int place = 0;
    int32_t places;
    if (0 == active) {
        return stock.req_test_any(count, requests, index, completed, status);
    }
    do {
        epoch = rustbtl_epoch;
        switch (asked(RUSTBTL_CALL_TEST_ANY, active, count, &place, &places)) {
        case RUSTBTL_ASK_NOTHING:
            *completed = 0;
            *index = MPI_UNDEFINED;
            return OMPI_SUCCESS;
        case RUSTBTL_ASK_AWAIT:
            wait_for(1, &requests[place]);
            places = 1;
            break;
        default:
            places = complete_soon(count, requests, 1, &place);
            break;
        }
    } while (!told(RUSTBTL_CALL_TEST_ANY, active, 0 < places ? 1 : -1, &place, epoch));
    if (0 == places) {
        *completed = 0;
        *index = MPI_UNDEFINED;
        return found_nothing();
    }
    /* This one it was. */
    int rc = stock.req_test_any(1, &requests[place], index, completed, status);
    *index = place;
    return rc;
}

static int wait_any(size_t count, ompi_request_t **requests, int *index,
                    ompi_status_public_t *status)
{
    uint32_t active = asked_about(count, requests), epoch;
    int place = 0;
    int32_t places;
    if (0 == active) {
        return stock.req_wait_any(count, requests, index, status);
    }
    do {
        epoch = rustbtl_epoch;
        if (RUSTBTL_ASK_AWAIT == asked(RUSTBTL_CALL_WAIT_ANY, active, count, &place, &places)) {
            wait_for(1, &requests[place]);
            places = 1;
        } else {
            places = complete_late(count, requests, 1, &place, epoch);
        }
    } while (0 == places || !told(RUSTBTL_CALL_WAIT_ANY, active, 1, &place, epoch));
    int rc = stock.req_wait_any(1, &requests[place], index, status);
    *index = place;
    return rc;
}

/* These it were: as testsome and waitsome give them. */
static int give_some(ompi_request_t **requests, int32_t places, const int *indices, int *outcount,
                     ompi_status_public_t *statuses)
{
    int rc = OMPI_SUCCESS;
    for (int32_t i = 0; i < places; i++) {
        ompi_status_public_t *status =
            MPI_STATUSES_IGNORE == statuses ? MPI_STATUSES_IGNORE : &statuses[i];
        int one, index;
        int given = stock.req_test_some(1, &requests[indices[i]], &one, &index, status);
        rc = OMPI_SUCCESS == given ? rc : given;
    }
    *outcount = places;
    return rc;
}

static int some(bool waits, size_t count, ompi_request_t **requests, uint32_t active,
                int *outcount, int *indices, ompi_status_public_t *statuses)
{
    const uint32_t call = waits ? RUSTBTL_CALL_WAIT_SOME : RUSTBTL_CALL_TEST_SOME;
    uint32_t epoch;
    int32_t places = 0;
    do {
        epoch = rustbtl_epoch;
        switch (asked(call, active, count, indices, &places)) {
        case RUSTBTL_ASK_NOTHING:
            *outcount = 0;
            return OMPI_SUCCESS;
        case RUSTBTL_ASK_AWAIT:
            for (int32_t i = 0; i < places; i++) {
                wait_for(1, &requests[indices[i]]);
            }
            break;
        default:
            places = waits ? complete_late(count, requests, count, indices, epoch)
                           : complete_soon(count, requests, count, indices);
            break;
        }
    } while ((waits && 0 == places)
             || !told(call, active, 0 < places ? places : -1, indices, epoch));
    if (0 == places) {
        *outcount = 0;
        return found_nothing();
    }
    return give_some(requests, places, indices, outcount, statuses);
}

static int test_some(size_t count, ompi_request_t **requests, int *outcount, int *indices,
                     ompi_status_public_t *statuses)
{
    uint32_t active = asked_about(count, requests);
    return 0 == active
        ? stock.req_test_some(count, requests, outcount, indices, statuses)
        : some(false, count, requests, active, outcount, indices, statuses);
}

static int wait_some(size_t count, ompi_request_t **requests, int *outcount, int *indices,
                     ompi_status_public_t *statuses)
{
    uint32_t active = asked_about(count, requests);
    return 0 == active
        ? stock.req_wait_some(count, requests, outcount, indices, statuses)
        : some(true, count, requests, active, outcount, indices, statuses);
}

/* Only where a guardian looks after the process: nobody else ever records. */
void mca_vprotocol_correlated_outcomes_open(void)
{
    if (in_front || NULL == getenv("RUSTBTL_GUARDIAN_FD")) {
        return;
    }
    in_front = true;
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
    if (in_front) {
        ompi_request_functions = stock;
        in_front = false;
    }
}

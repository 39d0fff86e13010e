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

/* How many requests are active; 0 also if nothing is to be recorded. */
static uint32_t asked_about(size_t count, ompi_request_t **requests)
{
    uint32_t active = 0;
    bool of_program = false;
    if (OPAL_LIKELY(!rustbtl_recording)) {
        return 0;
    }
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

static int test(ompi_request_t **request, int *completed, ompi_status_public_t *status)
{
    uint32_t active = asked_about(1, request);
    if (0 == active) {
        return stock.req_test(request, completed, status);
    }
    switch (rustbtl_question(RUSTBTL_CALL_TEST, active, 0, NULL, NULL)) {
    case RUSTBTL_ASK_NOTHING:
        *completed = 0;
        return OMPI_SUCCESS;
    case RUSTBTL_ASK_AWAIT:
        wait_for(1, request);
        break;
    default:
        break;
    }
    int rc = stock.req_test(request, completed, status);
    rustbtl_outcome(RUSTBTL_CALL_TEST, active, *completed ? 0 : -1, NULL);
    return rc;
}

static int test_all(size_t count, ompi_request_t **requests, int *completed,
                    ompi_status_public_t *statuses)
{
    uint32_t active = asked_about(count, requests);
    if (0 == active) {
        return stock.req_test_all(count, requests, completed, statuses);
    }
    switch (rustbtl_question(RUSTBTL_CALL_TEST_ALL, active, 0, NULL, NULL)) {
    case RUSTBTL_ASK_NOTHING:
        *completed = 0;
        return OMPI_SUCCESS;
    case RUSTBTL_ASK_AWAIT:
        wait_for(count, requests);
        break;
    default:
        break;
    }
    int rc = stock.req_test_all(count, requests, completed, statuses);
    rustbtl_outcome(RUSTBTL_CALL_TEST_ALL, active, *completed ? 0 : -1, NULL);
    return rc;
}

/* This one it was: as testany and waitany give it. */
static int give_one(ompi_request_t **requests, int32_t place, int *index,
                    ompi_status_public_t *status)
{
    int completed = 0;
    bool persistent = requests[place]->req_persistent;
    wait_for(1, &requests[place]);
    *index = place;
    int rc = stock.req_test(&requests[place], &completed, status);
    return persistent ? OMPI_SUCCESS : rc;
}

static int test_any(size_t count, ompi_request_t **requests, int *index, int *completed,
                    ompi_status_public_t *status)
{
    uint32_t active = asked_about(count, requests);
    int32_t place = 0, places = 0;
    if (0 == active) {
        return stock.req_test_any(count, requests, index, completed, status);
    }
    int rc;
    switch (rustbtl_question(RUSTBTL_CALL_TEST_ANY, active, (uint32_t) count, &place, &places)) {
    case RUSTBTL_ASK_NOTHING:
        *completed = 0;
        *index = MPI_UNDEFINED;
        return OMPI_SUCCESS;
    case RUSTBTL_ASK_AWAIT:
        rc = give_one(requests, place, index, status);
        *completed = 1;
        break;
    default:
        rc = stock.req_test_any(count, requests, index, completed, status);
        place = *index;
        break;
    }
    rustbtl_outcome(RUSTBTL_CALL_TEST_ANY, active, *completed ? 1 : -1, &place);
    return rc;
}

static int wait_any(size_t count, ompi_request_t **requests, int *index,
                    ompi_status_public_t *status)
{
    uint32_t active = asked_about(count, requests);
    int32_t place = 0, places = 0;
    if (0 == active) {
        return stock.req_wait_any(count, requests, index, status);
    }
    int rc;
    if (RUSTBTL_ASK_AWAIT
        == rustbtl_question(RUSTBTL_CALL_WAIT_ANY, active, (uint32_t) count, &place, &places)) {
        rc = give_one(requests, place, index, status);
    } else {
        rc = stock.req_wait_any(count, requests, index, status);
        place = *index;
    }
    rustbtl_outcome(RUSTBTL_CALL_WAIT_ANY, active, 1, &place);
    return rc;
}

/* These it were: as testsome and waitsome give them. */
static int give_some(ompi_request_t **requests, int32_t places, const int *indices, int *outcount,
                     ompi_status_public_t *statuses)
{
    int rc = OMPI_SUCCESS;
    for (int32_t i = 0; i < places; i++) {
        ompi_request_t **request = &requests[indices[i]];
        ompi_status_public_t *status =
            MPI_STATUSES_IGNORE == statuses ? MPI_STATUS_IGNORE : &statuses[i];
        int completed = 0;
        wait_for(1, request);
        int error = (*request)->req_status.MPI_ERROR;
        (void) stock.req_test(request, &completed, status);
        if (MPI_STATUS_IGNORE != status) {
            status->MPI_ERROR = error;
        }
        if (MPI_SUCCESS != error) {
            rc = MPI_ERR_IN_STATUS;
        }
    }
    *outcount = places;
    return rc;
}

static int some(uint32_t call, ompi_request_wait_some_fn_t look, size_t count,
                ompi_request_t **requests, int *outcount, int *indices,
                ompi_status_public_t *statuses)
{
    uint32_t active = asked_about(count, requests);
    int32_t places = 0;
    if (0 == active) {
        return look(count, requests, outcount, indices, statuses);
    }
    int rc;
    switch (rustbtl_question(call, active, (uint32_t) count, indices, &places)) {
    case RUSTBTL_ASK_NOTHING:
        *outcount = 0;
        return OMPI_SUCCESS;
    case RUSTBTL_ASK_AWAIT:
        rc = give_some(requests, places, indices, outcount, statuses);
        break;
    default:
        rc = look(count, requests, outcount, indices, statuses);
        break;
    }
    rustbtl_outcome(call, active, 0 < *outcount ? *outcount : -1, indices);
    return rc;
}

static int test_some(size_t count, ompi_request_t **requests, int *outcount, int *indices,
                     ompi_status_public_t *statuses)
{
    return some(RUSTBTL_CALL_TEST_SOME, stock.req_test_some, count, requests, outcount, indices,
                statuses);
}

static int wait_some(size_t count, ompi_request_t **requests, int *outcount, int *indices,
                     ompi_status_public_t *statuses)
{
    return some(RUSTBTL_CALL_WAIT_SOME, stock.req_wait_some, count, requests, outcount, indices,
                statuses);
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

/*
 * Receives.
 */
#include "vprotocol_correlated.h"

static inline int outcome_of(const rustbtl_operation_t *op, ompi_status_public_t *status)
{
    if (MPI_STATUS_IGNORE != status) {
        correlated_status(status, op);
    }
    return OPAL_UNLIKELY(op->outcome & RUSTBTL_TRUNCATED) ? MPI_ERR_TRUNCATE : OMPI_SUCCESS;
}

int mca_vprotocol_correlated_recv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                  int source, int tag, ompi_communicator_t *comm,
                                  ompi_status_public_t *status)
{
    if (OPAL_LIKELY(correlated_contiguous(datatype, count))) {
        rustbtl_operation_t op;
        correlated_operation(&op, RUSTBTL_ON_STACK, buffer, count, datatype);
        int32_t outcome = rustbtl_receive(&op, correlated_comm(comm), source, tag);
        if (RUSTBTL_PENDING == outcome) {
            mca_vprotocol_correlated_wait(&op);
        }
        return outcome_of(&op, status);
    }
    mca_vprotocol_correlated_request_t *request = mca_vprotocol_correlated_request_new(
        CORRELATED_RECEIVE, buffer, count, datatype, source, tag, comm, false);
    if (NULL == request) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    int rc = mca_vprotocol_correlated_request_post(request);
    if (OMPI_SUCCESS != rc) {
        mca_vprotocol_correlated_request_drop(request);
        return rc;
    }
    return mca_vprotocol_correlated_request_finish(request, status);
}

static inline int receive(void *buffer, size_t count, ompi_datatype_t *datatype, int source,
                          int tag, ompi_communicator_t *comm, bool persistent,
                          ompi_request_t **handle)
{
    mca_vprotocol_correlated_request_t *request = mca_vprotocol_correlated_request_new(
        CORRELATED_RECEIVE, buffer, count, datatype, source, tag, comm, persistent);
    if (OPAL_UNLIKELY(NULL == request)) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    int rc = persistent ? OMPI_SUCCESS : mca_vprotocol_correlated_request_post(request);
    if (OPAL_UNLIKELY(OMPI_SUCCESS != rc)) {
        mca_vprotocol_correlated_request_drop(request);
        return rc;
    }
    *handle = &request->ompi;
    return OMPI_SUCCESS;
}

/* Into memory with gaps. Out of line, so that others need not save registers for it. */
static __attribute__((noinline)) int receive_scattered(void *buffer, size_t count,
                                                       ompi_datatype_t *datatype, int source,
                                                       int tag, ompi_communicator_t *comm,
                                                       ompi_request_t **handle)
{
    return receive(buffer, count, datatype, source, tag, comm, false, handle);
}

int mca_vprotocol_correlated_irecv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                   int source, int tag, ompi_communicator_t *comm,
                                   ompi_request_t **handle)
{
    if (OPAL_LIKELY(correlated_contiguous(datatype, count))) {
        return mca_vprotocol_correlated_request_receive(buffer, count, datatype, source, tag, comm,
                                                        handle);
    }
    return receive_scattered(buffer, count, datatype, source, tag, comm, handle);
}

int mca_vprotocol_correlated_irecv_init(void *buffer, size_t count, ompi_datatype_t *datatype,
                                        int source, int tag, ompi_communicator_t *comm,
                                        ompi_request_t **handle)
{
    return receive(buffer, count, datatype, source, tag, comm, true, handle);
}

/* Receive what a probe claimed, into a new request. */
static int receive_claimed(void *buffer, size_t count, ompi_datatype_t *datatype,
                           ompi_message_t **message,
                           mca_vprotocol_correlated_request_t **posted)
{
    uint64_t claimed = (uint64_t) (uintptr_t) (*message)->req_ptr;
    mca_vprotocol_correlated_request_t *request = mca_vprotocol_correlated_request_new(
        CORRELATED_RECEIVE, buffer, count, datatype, (*message)->peer, MPI_ANY_TAG,
        (*message)->comm, false);
    if (NULL == request) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    ompi_message_return(*message);
    *message = MPI_MESSAGE_NULL;
    int rc = mca_vprotocol_correlated_request_post_claimed(request, claimed);
    if (OMPI_SUCCESS != rc) {
        mca_vprotocol_correlated_request_drop(request);
        return rc;
    }
    *posted = request;
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_imrecv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                    ompi_message_t **message, ompi_request_t **handle)
{
    mca_vprotocol_correlated_request_t *request = NULL;
    int rc = receive_claimed(buffer, count, datatype, message, &request);
    if (OMPI_SUCCESS == rc) {
        *handle = &request->ompi;
    }
    return rc;
}

int mca_vprotocol_correlated_mrecv(void *buffer, size_t count, ompi_datatype_t *datatype,
                                   ompi_message_t **message, ompi_status_public_t *status)
{
    mca_vprotocol_correlated_request_t *request = NULL;
    int rc = receive_claimed(buffer, count, datatype, message, &request);
    return OMPI_SUCCESS != rc ? rc : mca_vprotocol_correlated_request_finish(request, status);
}

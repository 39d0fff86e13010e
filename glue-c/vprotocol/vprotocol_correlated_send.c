/*
 * Sends.
 */
#include "vprotocol_correlated.h"

#include <string.h>

#include "ompi/mca/pml/base/pml_base_bsend.h"

static inline int32_t synchronous(mca_pml_base_send_mode_t mode)
{
    return MCA_PML_BASE_SEND_SYNCHRONOUS == mode;
}

int mca_vprotocol_correlated_error(int32_t outcome)
{
    return RUSTBTL_LOG_FULL == outcome ? MPI_ERR_NO_MEM : OMPI_ERROR;
}

int mca_vprotocol_correlated_send(const void *buffer, size_t count, ompi_datatype_t *datatype,
                                  int to, int tag, mca_pml_base_send_mode_t mode,
                                  ompi_communicator_t *comm)
{
    if (OPAL_UNLIKELY(MCA_PML_BASE_SEND_BUFFERED == mode)) {
        return mca_vprotocol_correlated_send_buffered(buffer, count, datatype, to, tag, comm);
    }
    if (OPAL_LIKELY(correlated_contiguous(datatype, count))) {
        rustbtl_operation_t op;
        correlated_operation(&op, RUSTBTL_ON_STACK, buffer, count, datatype);
        int32_t outcome = rustbtl_send(&op, correlated_comm(comm), to, tag, synchronous(mode));
        if (OPAL_LIKELY(RUSTBTL_DONE == outcome)) {
            return OMPI_SUCCESS;
        }
        if (OPAL_UNLIKELY(RUSTBTL_PENDING != outcome)) {
            return mca_vprotocol_correlated_error(outcome);
        }
        mca_vprotocol_correlated_wait(&op);
        return OMPI_SUCCESS;
    }
    mca_vprotocol_correlated_request_t *request = mca_vprotocol_correlated_request_new(
        CORRELATED_SEND, (void *) buffer, count, datatype, to, tag, comm, false);
    if (NULL == request) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    request->mode = mode;
    int rc = mca_vprotocol_correlated_request_post(request);
    if (OMPI_SUCCESS != rc) {
        mca_vprotocol_correlated_request_drop(request);
        return rc;
    }
    return mca_vprotocol_correlated_request_finish(request, MPI_STATUS_IGNORE);
}

int mca_vprotocol_correlated_isend(const void *buffer, size_t count, ompi_datatype_t *datatype,
                                   int to, int tag, mca_pml_base_send_mode_t mode,
                                   ompi_communicator_t *comm, ompi_request_t **handle)
{
    if (OPAL_UNLIKELY(MCA_PML_BASE_SEND_BUFFERED == mode)) {
        *handle = CORRELATED_SEND_COMPLETE;
        return mca_vprotocol_correlated_send_buffered(buffer, count, datatype, to, tag, comm);
    }
    if (OPAL_LIKELY(correlated_contiguous(datatype, count)) && !synchronous(mode)) {
        /* Most short messages are sent at once: no request is needed. */
        rustbtl_operation_t op;
        correlated_operation(&op, RUSTBTL_ON_STACK, buffer, count, datatype);
        if (OPAL_LIKELY(!correlated_waits_for_match(comm, op.bytes)
                        && 0 != rustbtl_send_now(&op, correlated_comm(comm), to, tag))) {
            *handle = &ompi_request_empty;
            return OMPI_SUCCESS;
        }
    }
    mca_vprotocol_correlated_request_t *request = mca_vprotocol_correlated_request_new(
        CORRELATED_SEND, (void *) buffer, count, datatype, to, tag, comm, false);
    if (OPAL_UNLIKELY(NULL == request)) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    request->mode = mode;
    int rc = mca_vprotocol_correlated_request_post(request);
    if (OPAL_UNLIKELY(OMPI_SUCCESS != rc)) {
        mca_vprotocol_correlated_request_drop(request);
        return rc;
    }
    if (OPAL_LIKELY(REQUEST_COMPLETE(&request->ompi))) {
        mca_vprotocol_correlated_request_drop(request);
        *handle = CORRELATED_SEND_COMPLETE;
        return OMPI_SUCCESS;
    }
    *handle = &request->ompi;
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_isend_init(const void *buffer, size_t count,
                                        ompi_datatype_t *datatype, int to, int tag,
                                        mca_pml_base_send_mode_t mode, ompi_communicator_t *comm,
                                        ompi_request_t **handle)
{
    mca_vprotocol_correlated_request_t *request = mca_vprotocol_correlated_request_new(
        CORRELATED_SEND, (void *) buffer, count, datatype, to, tag, comm, true);
    if (NULL == request) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    request->mode = mode;
    *handle = &request->ompi;
    return OMPI_SUCCESS;
}

/* Pack a whole message. */
static int pack_all(const void *buffer, size_t count, const ompi_datatype_t *datatype, void *into,
                    size_t bytes)
{
    if (correlated_contiguous(datatype, count)) {
        memcpy(into, (const char *) buffer + datatype->super.true_lb, bytes);
        return OMPI_SUCCESS;
    }
    opal_convertor_t convertor;
    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    int rc = opal_convertor_copy_and_prepare_for_send(ompi_mpi_local_convertor, &datatype->super,
                                                      count, buffer, 0, &convertor);
    if (OMPI_SUCCESS == rc) {
        rustbtl_glue_pack(&convertor, 0, into, bytes);
    }
    OBJ_DESTRUCT(&convertor);
    return rc;
}

int mca_vprotocol_correlated_send_buffered(const void *buffer, size_t count,
                                           ompi_datatype_t *datatype, int to, int tag,
                                           ompi_communicator_t *comm)
{
    size_t bytes = datatype->super.size * count;
    /* Empty messages take room in the buffer, too: it must be there (MPI-3.1 section 3.6). */
    void *copy = mca_pml_base_bsend_request_alloc_buf(0 == bytes ? 1 : bytes);
    if (NULL == copy) {
        /* The failed call has made progress: messages may have left the buffer. */
        copy = mca_pml_base_bsend_request_alloc_buf(0 == bytes ? 1 : bytes);
    }
    if (NULL == copy) {
        return OMPI_ERR_BUFFER;
    }
    int rc = pack_all(buffer, count, datatype, copy, bytes);
    mca_vprotocol_correlated_request_t *request =
        OMPI_SUCCESS != rc ? NULL
                           : mca_vprotocol_correlated_request_new(
                                 CORRELATED_BUFFERED, copy, bytes, MPI_BYTE, to, tag, comm, false);
    if (NULL == request) {
        mca_pml_base_bsend_request_free(copy);
        return OMPI_SUCCESS != rc ? rc : OMPI_ERR_OUT_OF_RESOURCE;
    }
    request->mode = MCA_PML_BASE_SEND_STANDARD;
    rc = mca_vprotocol_correlated_request_post(request);
    if (OMPI_SUCCESS != rc) {
        mca_pml_base_bsend_request_free(copy);
    }
    mca_vprotocol_correlated_request_drop(request);
    return rc;
}

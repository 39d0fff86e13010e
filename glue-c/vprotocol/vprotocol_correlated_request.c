/*
 * MPI requests of sends and receives that do not complete at once, and of persistent ones.
 */
#include "vprotocol_correlated.h"

#include "ompi/mca/coll/base/coll_tags.h"
#include "ompi/mca/pml/base/pml_base_bsend.h"

static opal_free_list_t free_requests;

static int request_free(ompi_request_t **handle);
static int request_cancel(ompi_request_t *handle, int flag);

static void request_construct(mca_vprotocol_correlated_request_t *request)
{
    request->ompi.req_type = OMPI_REQUEST_PML;
    request->ompi.req_start = mca_vprotocol_correlated_start;
    request->ompi.req_free = request_free;
    request->ompi.req_cancel = request_cancel;
    request->datatype = NULL;
    request->comm = NULL;
    request->uses_convertor = false;
    OBJ_CONSTRUCT(&request->convertor, opal_convertor_t);
}

static void request_destruct(mca_vprotocol_correlated_request_t *request)
{
    OBJ_DESTRUCT(&request->convertor);
}

OBJ_CLASS_INSTANCE(mca_vprotocol_correlated_request_t, ompi_request_t, request_construct,
                   request_destruct);

static inline mca_vprotocol_correlated_request_t *of_operation(rustbtl_operation_t *op)
{
    return (mca_vprotocol_correlated_request_t *)
        ((char *) op - offsetof(mca_vprotocol_correlated_request_t, op));
}

int mca_vprotocol_correlated_requests_open(void)
{
    OBJ_CONSTRUCT(&free_requests, opal_free_list_t);
    return opal_free_list_init(&free_requests, sizeof(mca_vprotocol_correlated_request_t),
                               opal_cache_line_size,
                               OBJ_CLASS(mca_vprotocol_correlated_request_t), 0,
                               opal_cache_line_size, 64, -1, 64, NULL, 0, NULL, NULL, NULL);
}

void mca_vprotocol_correlated_requests_close(void)
{
    OBJ_DESTRUCT(&free_requests);
}

/* A request has no datatype and uses no convertor when it comes from here: a new one does not, nor
 * one that was released. NULL: the list is empty, or in use by threads. */
static inline mca_vprotocol_correlated_request_t *request_get_quickly(void)
{
    return OPAL_UNLIKELY(mca_vprotocol_correlated_threads)
               ? NULL
               : (mca_vprotocol_correlated_request_t *) opal_lifo_pop_st(&free_requests.super);
}

static mca_vprotocol_correlated_request_t *request_get(void)
{
    opal_free_list_item_t *item = mca_vprotocol_correlated_threads
                                      ? opal_free_list_get_mt(&free_requests)
                                      : opal_free_list_get_st(&free_requests);
    return (mca_vprotocol_correlated_request_t *) item;
}

mca_vprotocol_correlated_request_t *
mca_vprotocol_correlated_request_new(mca_vprotocol_correlated_kind_t kind, void *buffer,
                                     size_t count, ompi_datatype_t *datatype, int peer, int tag,
                                     ompi_communicator_t *comm, bool persistent)
{
    mca_vprotocol_correlated_request_t *request = request_get();
    if (OPAL_UNLIKELY(NULL == request)) {
        return NULL;
    }
    OMPI_REQUEST_INIT(&request->ompi, persistent);
    request->ompi.req_mpi_object.comm = comm;
    if (CORRELATED_RECEIVE == kind) {
        request->ompi.req_status.MPI_SOURCE = MPI_ANY_SOURCE;
        request->ompi.req_status.MPI_TAG = MPI_ANY_TAG;
        request->ompi.req_status._ucount = 0;
    } else {
        /* As ob1 has it when a send is complete. MPI leaves it undefined, but parts of Open MPI
         * read it: osc/pt2pt knows by the tag to which epoch the answer of an atomic belongs. */
        request->ompi.req_status.MPI_SOURCE = comm->c_my_rank;
        request->ompi.req_status.MPI_TAG = tag;
        request->ompi.req_status._ucount = count * datatype->super.size;
    }
    request->ompi.req_status.MPI_ERROR = MPI_SUCCESS;
    request->ompi.req_status._cancelled = 0;
    request->references = 1;
    request->kind = kind;
    request->peer = peer;
    request->tag = tag;
    request->buffer = buffer;
    request->count = count;
    request->comm = NULL;
    if (OPAL_UNLIKELY(persistent || !correlated_contiguous(datatype, count))) {
        OMPI_DATATYPE_RETAIN(datatype);
        request->datatype = datatype;
    } else {
        correlated_operation(&request->op, RUSTBTL_IN_REQUEST, buffer, count, datatype);
    }
    if (persistent) {
        OBJ_RETAIN(comm);
    }
    return request;
}

/* Last user gone, and something is left to be done, or there are threads. Like all that is out of
 * line here: so that others need not save registers for it. */
static __attribute__((noinline)) void request_strip(mca_vprotocol_correlated_request_t *request)
{
    if (NULL != request->datatype) {
        if (request->uses_convertor) {
            opal_convertor_cleanup(&request->convertor);
            request->uses_convertor = false;
        }
        OMPI_DATATYPE_RELEASE_NO_NULLIFY(request->datatype);
        request->datatype = NULL;
    }
    if (request->ompi.req_persistent) {
        OBJ_RELEASE(request->ompi.req_mpi_object.comm);
    }
    OMPI_REQUEST_FINI(&request->ompi);
    if (mca_vprotocol_correlated_threads) {
        opal_free_list_return_mt(&free_requests, &request->ompi.super);
    } else {
        opal_free_list_return_st(&free_requests, &request->ompi.super);
    }
}

/* Last user gone. */
static inline void request_release(mca_vprotocol_correlated_request_t *request)
{
    if (OPAL_UNLIKELY(NULL != request->datatype || request->ompi.req_persistent
                      || MPI_UNDEFINED != request->ompi.req_f_to_c_index
                      || mca_vprotocol_correlated_threads)) {
        request_strip(request);
        return;
    }
    request->ompi.req_state = OMPI_REQUEST_INVALID; /* OMPI_REQUEST_FINI */
    opal_free_list_return_st(&free_requests, &request->ompi.super);
}

static inline void request_hold(mca_vprotocol_correlated_request_t *request)
{
    if (mca_vprotocol_correlated_threads) {
        (void) __atomic_fetch_add(&request->references, 1, __ATOMIC_RELAXED);
    } else {
        request->references++;
    }
}

static inline void request_drop(mca_vprotocol_correlated_request_t *request)
{
    int32_t left = mca_vprotocol_correlated_threads
                       ? __atomic_sub_fetch(&request->references, 1, __ATOMIC_ACQ_REL)
                       : --request->references;
    if (0 == left) {
        request_release(request);
    }
}

void mca_vprotocol_correlated_request_drop(mca_vprotocol_correlated_request_t *request)
{
    request_drop(request);
}

/* Make the operation ready to be posted (again). */
static int request_prepare(mca_vprotocol_correlated_request_t *request)
{
    ompi_datatype_t *datatype = request->datatype;
    if (OPAL_LIKELY(NULL == datatype)) {
        return OMPI_SUCCESS; /* request_new has done it */
    }
    correlated_operation(&request->op, RUSTBTL_IN_REQUEST, request->buffer, request->count,
                         datatype);
    if (correlated_contiguous(datatype, request->count)) {
        return OMPI_SUCCESS;
    }
    if (request->uses_convertor) {
        opal_convertor_cleanup(&request->convertor);
    }
    request->uses_convertor = true;
    request->op.convertor = &request->convertor;
    /* The packed form is the local one: every process of a job has the same architecture (Open MPI
     * as Debian builds it refuses others). */
    return CORRELATED_RECEIVE == request->kind
               ? opal_convertor_copy_and_prepare_for_recv(ompi_mpi_local_convertor,
                                                          &datatype->super, request->count,
                                                          request->buffer, 0, &request->convertor)
               : opal_convertor_copy_and_prepare_for_send(ompi_mpi_local_convertor,
                                                          &datatype->super, request->count,
                                                          request->buffer, 0,
                                                          &request->convertor);
}

/* Results of a receive into the request's status. */
static inline void request_received(mca_vprotocol_correlated_request_t *request)
{
    ompi_status_public_t *status = &request->ompi.req_status;
    correlated_status(status, &request->op);
    status->MPI_ERROR = OPAL_UNLIKELY(request->op.outcome & RUSTBTL_TRUNCATED) ? MPI_ERR_TRUNCATE
                                                                               : MPI_SUCCESS;
}

/* The same for any operation. */
static void request_fill(mca_vprotocol_correlated_request_t *request)
{
    if (CORRELATED_RECEIVE == request->kind) {
        request_received(request);
    } else if (OPAL_UNLIKELY(CORRELATED_BUFFERED == request->kind)) {
        mca_pml_base_bsend_request_free(request->buffer);
    }
}

/* What the engine answered to a receive that nobody waits for yet, if that is not "later". */
static __attribute__((noinline)) int
request_not_pending(mca_vprotocol_correlated_request_t *request, int32_t outcome)
{
    OBJ_RELEASE(request->comm);
    request->comm = NULL;
    request->references = 1;
    if (OPAL_UNLIKELY(RUSTBTL_DONE != outcome)) {
        mca_vprotocol_correlated_request_drop(request);
        return mca_vprotocol_correlated_error(outcome);
    }
    request_received(request);
    request->ompi.req_complete = REQUEST_COMPLETED;
    return OMPI_SUCCESS;
}

static inline int request_receive(mca_vprotocol_correlated_request_t *request, void *buffer,
                                  size_t count, const ompi_datatype_t *datatype, int source,
                                  int tag, ompi_communicator_t *comm, ompi_request_t **handle)
{
    OMPI_REQUEST_INIT(&request->ompi, false);
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    request->ompi.req_mpi_object.comm = comm;
    /* Open MPI reads it of requests that are pending, too, where another one has failed. */
    request->ompi.req_status.MPI_ERROR = MPI_SUCCESS;
    request->kind = CORRELATED_RECEIVE;
    request->tag = tag;
    correlated_operation(&request->op, RUSTBTL_IN_REQUEST, buffer, count, datatype);
    /* With threads it may be complete before the call returns. */
    request->references = 2;
    request->comm = comm;
    OBJ_RETAIN(comm);
    *handle = &request->ompi;
    int32_t outcome = rustbtl_receive_later(&request->op, correlated_comm(comm), source, tag);
    return OPAL_LIKELY(RUSTBTL_PENDING == outcome) ? OMPI_SUCCESS
                                                   : request_not_pending(request, outcome);
}

static __attribute__((noinline)) int
request_get_and_receive(void *buffer, size_t count, const ompi_datatype_t *datatype, int source,
                        int tag, ompi_communicator_t *comm, ompi_request_t **handle)
{
    mca_vprotocol_correlated_request_t *request = request_get();
    if (OPAL_UNLIKELY(NULL == request)) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    return request_receive(request, buffer, count, datatype, source, tag, comm, handle);
}

int mca_vprotocol_correlated_request_receive(void *buffer, size_t count,
                                             const ompi_datatype_t *datatype, int source, int tag,
                                             ompi_communicator_t *comm, ompi_request_t **handle)
{
    mca_vprotocol_correlated_request_t *request = request_get_quickly();
    if (OPAL_UNLIKELY(NULL == request)) {
        return request_get_and_receive(buffer, count, datatype, source, tag, comm, handle);
    }
    return request_receive(request, buffer, count, datatype, source, tag, comm, handle);
}

/* What the engine answered to a post. `request` holds a reference for the engine. */
static int request_posted(mca_vprotocol_correlated_request_t *request, int32_t outcome)
{
    if (RUSTBTL_DONE == outcome) {
        /* Nobody can be waiting yet, and no callback is set yet, except for persistent requests
         * that were started once more: those are completed by ompi_request_complete. */
        request_fill(request);
        if (NULL != request->ompi.req_complete_cb) {
            ompi_request_complete(&request->ompi, true);
        } else {
            request->ompi.req_complete = REQUEST_COMPLETED;
        }
        OBJ_RELEASE(request->comm);
        request->comm = NULL;
        mca_vprotocol_correlated_request_drop(request);
        return OMPI_SUCCESS;
    }
    if (OPAL_UNLIKELY(RUSTBTL_PENDING != outcome)) {
        OBJ_RELEASE(request->comm);
        request->comm = NULL;
        request->ompi.req_state = OMPI_REQUEST_INACTIVE;
        request->ompi.req_complete = REQUEST_COMPLETED;
        mca_vprotocol_correlated_request_drop(request);
        return mca_vprotocol_correlated_error(outcome);
    }
    return OMPI_SUCCESS;
}

static int request_ready(mca_vprotocol_correlated_request_t *request)
{
    int rc = request_prepare(request);
    if (OPAL_UNLIKELY(OMPI_SUCCESS != rc)) {
        return rc;
    }
    request->ompi.req_state = OMPI_REQUEST_ACTIVE;
    /* The communicator must not go (del_comm) before its operations are over. */
    request->comm = request->ompi.req_mpi_object.comm;
    OBJ_RETAIN(request->comm);
    request_hold(request);
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_request_post(mca_vprotocol_correlated_request_t *request)
{
    int rc = request_ready(request);
    if (OPAL_UNLIKELY(OMPI_SUCCESS != rc)) {
        return rc;
    }
    uint32_t comm = correlated_comm(request->comm);
    int32_t outcome =
        CORRELATED_RECEIVE == request->kind
            ? rustbtl_receive_later(&request->op, comm, request->peer, request->tag)
            : rustbtl_send(&request->op, comm, request->peer, request->tag,
                           MCA_PML_BASE_SEND_SYNCHRONOUS == request->mode
                               || correlated_waits_for_match(request->comm, request->op.bytes));
    return request_posted(request, outcome);
}

int mca_vprotocol_correlated_request_post_claimed(mca_vprotocol_correlated_request_t *request,
                                                  uint64_t message)
{
    int rc = request_ready(request);
    if (OPAL_UNLIKELY(OMPI_SUCCESS != rc)) {
        return rc;
    }
    return request_posted(request, rustbtl_receive_claimed(&request->op, message));
}

/* A blocking call's operation, with threads: the protocol of ompi_request_complete. The operation
 * is gone once `state` says that it is complete. */
static void complete_on_stack(rustbtl_operation_t *op)
{
    void *before =
        __atomic_exchange_n(&op->state, RUSTBTL_STATE_COMPLETE, __ATOMIC_ACQ_REL);
    if (RUSTBTL_STATE_PENDING != before) {
        wait_sync_update((ompi_wait_sync_t *) before, 1, OPAL_SUCCESS);
    }
}

void rustbtl_glue_complete(rustbtl_operation_t *op)
{
    if (RUSTBTL_ON_STACK == op->kind) {
        complete_on_stack(op);
        return;
    }
    if (OPAL_UNLIKELY(RUSTBTL_FETCHES == op->kind)) {
        mca_osc_correlated_fetched(op);
        return;
    }
    mca_vprotocol_correlated_request_t *request = of_operation(op);
    request_fill(request);
    ompi_communicator_t *comm = request->comm;
    request->comm = NULL;
    /* Once it is complete the program may start it again or free it: it is not touched after this,
     * except for our reference. */
    ompi_request_complete(&request->ompi, true);
    mca_vprotocol_correlated_request_drop(request);
    OBJ_RELEASE(comm);
}

static __attribute__((noinline)) int32_t wake(ompi_wait_sync_t *sync, int error)
{
    wait_sync_update(sync, 1, error);
    return 1;
}

int32_t rustbtl_glue_is_step(rustbtl_operation_t *op)
{
    int tag = of_operation(op)->tag;
    return MCA_COLL_BASE_TAG_NONBLOCKING_BASE >= tag && MCA_COLL_BASE_TAG_NONBLOCKING_END <= tag;
}

int32_t rustbtl_glue_complete_now(rustbtl_operation_t *op)
{
    mca_vprotocol_correlated_request_t *request = of_operation(op);
    ompi_communicator_t *comm = request->comm;
    /* Callbacks, and whatever is destroyed with the last reference, call Rust again. */
    if (NULL != request->ompi.req_complete_cb || 1 == request->references
        || 1 == ((opal_object_t *) comm)->obj_reference_count) {
        return 0;
    }
    if (OPAL_LIKELY(CORRELATED_RECEIVE == request->kind)) {
        request_received(request);
    } else if (CORRELATED_BUFFERED == request->kind) {
        return 0;
    }
    request->comm = NULL;
    (void) opal_obj_update((opal_object_t *) comm, -1); /* OBJ_RELEASE; it is not the last */
    request->references--;
    /* As ompi_request_complete, but no other thread reads it. */
    void *waits = (void *) request->ompi.req_complete;
    request->ompi.req_complete = REQUEST_COMPLETED;
    if (OPAL_UNLIKELY(MPI_SUCCESS != request->ompi.req_status.MPI_ERROR
                      || opal_using_threads())) {
        return REQUEST_PENDING == waits ? 1 : wake(waits, request->ompi.req_status.MPI_ERROR);
    }
    if (REQUEST_PENDING != waits) {
        /* wait_sync_update, where nobody sleeps. */
        (void) OPAL_THREAD_ADD_FETCH32(&((ompi_wait_sync_t *) waits)->count, -1);
    }
    return 1;
}

int mca_vprotocol_correlated_request_finish(mca_vprotocol_correlated_request_t *request,
                                            ompi_status_public_t *status)
{
    ompi_request_wait_completion(&request->ompi);
    int rc = request->ompi.req_status.MPI_ERROR;
    if (MPI_STATUS_IGNORE != status) {
        OMPI_COPY_STATUS(status, request->ompi.req_status, false);
    }
    mca_vprotocol_correlated_request_drop(request);
    return rc;
}

/* The program may reuse the buffer once it knows from the receiver that the message has come. */
static __attribute__((noinline)) int free_pending_send(mca_vprotocol_correlated_request_t *request)
{
    rustbtl_release(&request->op);
    request_drop(request);
    return OMPI_SUCCESS;
}

static int request_free(ompi_request_t **handle)
{
    mca_vprotocol_correlated_request_t *request = (mca_vprotocol_correlated_request_t *) *handle;
    *handle = MPI_REQUEST_NULL;
    if (OPAL_UNLIKELY(CORRELATED_SEND == request->kind
                      && OMPI_REQUEST_ACTIVE == request->ompi.req_state
                      && !REQUEST_COMPLETE(&request->ompi))) {
        return free_pending_send(request);
    }
    /* If it is still active, the engine's reference keeps it until it is complete. */
    request_drop(request);
    return OMPI_SUCCESS;
}

/* Was it in time? That is nondeterministic: it depends on when messages arrive. */
static bool cancel_now(mca_vprotocol_correlated_request_t *request)
{
    bool complete = REQUEST_COMPLETE(&request->ompi);
    if (MPI_ANY_TAG <= request->tag) {
        return 0 != rustbtl_cancel_recorded(&request->op, complete);
    }
    return !complete && 0 != rustbtl_cancel(&request->op);
}

static int request_cancel(ompi_request_t *handle, int flag)
{
    mca_vprotocol_correlated_request_t *request = (mca_vprotocol_correlated_request_t *) handle;
    (void) flag;
    /* Sends are not cancelled (nor are they by ob1): they complete as without MPI_Cancel. */
    if (CORRELATED_RECEIVE != request->kind || OMPI_REQUEST_ACTIVE != handle->req_state
        || !cancel_now(request)) {
        return OMPI_SUCCESS;
    }
    ompi_communicator_t *comm = request->comm;
    request->comm = NULL;
    handle->req_status.MPI_SOURCE = MPI_ANY_SOURCE;
    handle->req_status.MPI_TAG = MPI_ANY_TAG;
    handle->req_status.MPI_ERROR = MPI_SUCCESS;
    handle->req_status._ucount = 0;
    handle->req_status._cancelled = 1;
    ompi_request_complete(handle, true);
    mca_vprotocol_correlated_request_drop(request);
    OBJ_RELEASE(comm);
    return OMPI_SUCCESS;
}

static int start_one(mca_vprotocol_correlated_request_t *request)
{
    request->ompi.req_status.MPI_ERROR = MPI_SUCCESS;
    request->ompi.req_status._cancelled = 0;
    if (CORRELATED_SEND == request->kind && MCA_PML_BASE_SEND_BUFFERED == request->mode) {
        int rc = mca_vprotocol_correlated_send_buffered(request->buffer, request->count,
                                                        request->datatype, request->peer,
                                                        request->tag,
                                                        request->ompi.req_mpi_object.comm);
        if (OMPI_SUCCESS == rc) {
            request->ompi.req_state = OMPI_REQUEST_ACTIVE;
            request->ompi.req_complete = REQUEST_PENDING;
            ompi_request_complete(&request->ompi, true);
        }
        return rc;
    }
    request->ompi.req_complete = REQUEST_PENDING;
    return mca_vprotocol_correlated_request_post(request);
}

int mca_vprotocol_correlated_start(size_t count, ompi_request_t **requests)
{
    for (size_t i = 0; i < count; i++) {
        if (NULL == requests[i] || OMPI_REQUEST_PML != requests[i]->req_type) {
            continue;
        }
        int rc = start_one((mca_vprotocol_correlated_request_t *) requests[i]);
        if (OMPI_SUCCESS != rc) {
            return rc;
        }
    }
    return OMPI_SUCCESS;
}

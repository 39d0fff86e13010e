/*
 * The modules: descriptors, messages, memory of neighbours.
 */
#include "btl_rustbtl.h"

#include <limits.h>
#include <string.h>

#include "opal/datatype/opal_datatype.h"

static void construct_frag(mca_btl_rustbtl_frag_t *frag)
{
    frag->base.des_segments = frag->segments;
    frag->base.order = MCA_BTL_NO_ORDER;
}

OBJ_CLASS_INSTANCE(mca_btl_rustbtl_frag_t, mca_btl_base_descriptor_t, construct_frag, NULL);

/* ---- descriptors ---------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static mca_btl_rustbtl_frag_t *new_frag(mca_btl_rustbtl_module_t *module,
                                        mca_btl_base_endpoint_t *endpoint, size_t size,
                                        uint32_t flags)
{
    opal_free_list_t *list = size <= module->super.btl_eager_limit ? &module->small
                                                                   : &module->large;
    mca_btl_rustbtl_frag_t *frag = (mca_btl_rustbtl_frag_t *) opal_free_list_get(list);
    if (OPAL_UNLIKELY(NULL == frag)) {
        return NULL;
    }
    frag->module = module;
    frag->endpoint = endpoint;
    frag->list = list;
    frag->done = NULL;
    frag->segments[0].seg_addr.pval = frag->data;
    frag->segments[0].seg_len = size;
    frag->base.des_segment_count = 1;
    frag->base.des_flags = flags;
    frag->base.order = MCA_BTL_NO_ORDER;
    return frag;
}

static mca_btl_base_descriptor_t *module_alloc(mca_btl_base_module_t *base,
                                               mca_btl_base_endpoint_t *endpoint, uint8_t order,
                                               size_t size, uint32_t flags)
{
    (void) order;
    if (OPAL_UNLIKELY(size > base->btl_max_send_size)) {
        return NULL;
    }
    mca_btl_rustbtl_frag_t *frag
        = new_frag((mca_btl_rustbtl_module_t *) base, endpoint, size, flags);
    return NULL == frag ? NULL : &frag->base;
}

static int module_free(mca_btl_base_module_t *base, mca_btl_base_descriptor_t *descriptor)
{
    (void) base;
    mca_btl_rustbtl_frag_t *frag = (mca_btl_rustbtl_frag_t *) descriptor;
    opal_free_list_return(frag->list, (opal_free_list_item_t *) frag);
    return OPAL_SUCCESS;
}

/* Data behind `reserve` bytes for a header: where it lies, if it is in one piece. */
static mca_btl_base_descriptor_t *module_prepare_src(mca_btl_base_module_t *base,
                                                     mca_btl_base_endpoint_t *endpoint,
                                                     opal_convertor_t *convertor, uint8_t order,
                                                     size_t reserve, size_t *size, uint32_t flags)
{
    (void) order;
    bool in_place = 0 == opal_convertor_need_buffers(convertor);
    size_t bytes = least(*size, base->btl_max_send_size - reserve);
    mca_btl_rustbtl_frag_t *frag = new_frag((mca_btl_rustbtl_module_t *) base, endpoint,
                                            in_place ? reserve : reserve + bytes, flags);
    if (OPAL_UNLIKELY(NULL == frag)) {
        return NULL;
    }
    struct iovec piece = { .iov_base = in_place ? NULL : frag->data + reserve, .iov_len = bytes };
    uint32_t count = 1;
    int rc = opal_convertor_pack(convertor, &piece, &count, &bytes);
    if (OPAL_UNLIKELY(0 > rc)) {
        module_free(base, &frag->base);
        return NULL;
    }
    *size = bytes;
    if (in_place) {
        frag->segments[1].seg_addr.pval = piece.iov_base;
        frag->segments[1].seg_len = bytes;
        frag->base.des_segment_count = 2;
    } else {
        frag->segments[0].seg_len = reserve + bytes;
    }
    return &frag->base;
}

/* ---- messages ------------------------------------------------------------------------------- */

/* It is sent, or never will be. */
static void finish(mca_btl_rustbtl_frag_t *frag, bool callback, int status)
{
    bool ours = 0 != (frag->base.des_flags & MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (NULL != frag->done) {
        frag->done(&frag->module->super, frag->endpoint, frag->done_address, frag->done_handle,
                       frag->done_context, frag->done_data, status);
    } else if (callback && NULL != frag->base.des_cbfunc) {
        frag->base.des_cbfunc(&frag->module->super, frag->endpoint, &frag->base, status);
    }
    if (ours) {
        module_free(&frag->module->super, &frag->base);
    }
}

void mca_btl_rustbtl_over(void *cookie, int32_t accepted)
{
    finish(cookie, true, accepted ? OPAL_SUCCESS : OPAL_ERR_UNREACH);
}

int mca_btl_rustbtl_unreachable(const mca_btl_base_endpoint_t *endpoint)
{
    mca_btl_rustbtl_lost(endpoint->name.jobid, endpoint->name.vpid,
                         "there is no connection any more");
    return OPAL_ERR_UNREACH;
}

static int module_send(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                       mca_btl_base_descriptor_t *descriptor, mca_btl_base_tag_t tag)
{
    (void) base;
    mca_btl_rustbtl_frag_t *frag = (mca_btl_rustbtl_frag_t *) descriptor;
    bool two = 1 < descriptor->des_segment_count;
    rustbtl_btl_message_t message = {
        .first = frag->segments[0].seg_addr.pval,
        .first_bytes = frag->segments[0].seg_len,
        .second = two ? frag->segments[1].seg_addr.pval : NULL,
        .second_bytes = two ? frag->segments[1].seg_len : 0,
    };
    frag->endpoint = endpoint;
    bool wants_callback = 0 != (descriptor->des_flags & MCA_BTL_DES_SEND_ALWAYS_CALLBACK);
    int32_t rc = mca_btl_rustbtl_core->send(mca_btl_rustbtl, endpoint->peer, tag, &message, frag);
    if (OPAL_LIKELY(RUSTBTL_BTL_DONE == rc)) {
        finish(frag, wants_callback, OPAL_SUCCESS);
        return 1;
    }
    return RUSTBTL_BTL_NO_ROOM == rc ? OPAL_SUCCESS : mca_btl_rustbtl_unreachable(endpoint);
}

static void pack(void *of, uint8_t *into, size_t bytes)
{
    struct iovec piece = { .iov_base = into, .iov_len = bytes };
    uint32_t count = 1;
    (void) opal_convertor_pack(of, &piece, &count, &bytes);
}

static int module_sendi(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                        opal_convertor_t *convertor, void *header, size_t header_size,
                        size_t payload_size, uint8_t order, uint32_t flags,
                        mca_btl_base_tag_t tag, mca_btl_base_descriptor_t **descriptor)
{
    size_t bytes = header_size + payload_size;
    int32_t rc = RUSTBTL_BTL_NO_ROOM;
    rustbtl_btl_message_t message = {
        .first = header, .first_bytes = header_size, .second_bytes = payload_size };
    if (OPAL_UNLIKELY(bytes > base->btl_eager_limit)) {
        rc = RUSTBTL_BTL_NO_ROOM;
    } else if (0 == payload_size) {
        rc = mca_btl_rustbtl_core->send_now(mca_btl_rustbtl, endpoint->peer, tag, &message);
    } else if (0 == opal_convertor_need_buffers(convertor)) {
        void *start;
        opal_convertor_get_current_pointer(convertor, &start);
        message.second = start;
        rc = mca_btl_rustbtl_core->send_now(mca_btl_rustbtl, endpoint->peer, tag, &message);
    } else {
        rc = mca_btl_rustbtl_core->send_packed(mca_btl_rustbtl, endpoint->peer, tag, &message, pack,
                                               convertor);
    }
    if (OPAL_LIKELY(RUSTBTL_BTL_DONE == rc)) {
        return OPAL_SUCCESS;
    }
    if (RUSTBTL_BTL_DOWN == rc) {
        return mca_btl_rustbtl_unreachable(endpoint);
    }
    if (NULL != descriptor) {
        *descriptor = module_alloc(base, endpoint, order, bytes, flags);
    }
    return OPAL_ERR_OUT_OF_RESOURCE;
}

void mca_btl_rustbtl_arrived(int32_t way, uint32_t from, uint8_t tag, const uint8_t *start,
                             size_t bytes)
{
    mca_btl_base_module_t *module = &mca_btl_rustbtl_modules[way].super;
    mca_btl_active_message_callback_t *active = mca_btl_base_active_message_trigger + tag;
    mca_btl_base_segment_t segment = { .seg_addr.pval = (void *) start, .seg_len = bytes };
    if (OPAL_UNLIKELY(NULL == active->cbfunc)) {
        return; /* nobody is interested (any more) */
    }
#if CORRELATED_OMPI_5
    /* Open MPI's own operations on memory, which it makes of messages, answer to the endpoint. */
    bool is_answered = MCA_BTL_TAG_BTL_BASE == (tag & 0xF0);
    const mca_btl_base_receive_descriptor_t received = {
        .endpoint = is_answered ? mca_btl_rustbtl_meet_sender(way, from)
                                : mca_btl_rustbtl_endpoint(from),
        .des_segments = &segment, .des_segment_count = 1, .tag = tag, .cbdata = active->cbdata };
    active->cbfunc(module, &received);
#else
    (void) from;
    mca_btl_base_descriptor_t received = { .des_segments = &segment, .des_segment_count = 1 };
    active->cbfunc(module, tag, &received, active->cbdata);
#endif
}

/* ---- memory of neighbours ------------------------------------------------------------------- */

static int module_get(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                      void *local_address, uint64_t remote_address,
                      mca_btl_base_registration_handle_t *local_handle,
                      mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
                      int order, mca_btl_base_rdma_completion_fn_t done, void *context,
                      void *data)
{
    (void) remote_handle;
    (void) flags;
    (void) order;
    int32_t rc = mca_btl_rustbtl_core->read(mca_btl_rustbtl, endpoint->peer, remote_address,
                                            local_address, size);
    if (OPAL_UNLIKELY(RUSTBTL_BTL_DONE != rc)) {
        return OPAL_ERR_NOT_SUPPORTED; /* ob1 has it sent then */
    }
    done(base, endpoint, local_address, local_handle, context, data, OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

static int module_put(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                      void *local_address, uint64_t remote_address,
                      mca_btl_base_registration_handle_t *local_handle,
                      mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
                      int order, mca_btl_base_rdma_completion_fn_t done, void *context,
                      void *data)
{
    (void) remote_handle;
    (void) flags;
    (void) order;
    int32_t rc = mca_btl_rustbtl_core->write(mca_btl_rustbtl, endpoint->peer, remote_address,
                                             local_address, size);
    if (OPAL_UNLIKELY(RUSTBTL_BTL_DONE != rc)) {
        return OPAL_ERR_NOT_SUPPORTED;
    }
    done(base, endpoint, local_address, local_handle, context, data, OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

mca_btl_rustbtl_frag_t *mca_btl_rustbtl_operation(mca_btl_base_module_t *module,
                                                  mca_btl_base_endpoint_t *endpoint,
                                                  mca_btl_base_rdma_completion_fn_t done,
                                                  void *local_address,
                                                  mca_btl_base_registration_handle_t *local_handle,
                                                  void *context, void *data)
{
    mca_btl_rustbtl_frag_t *frag = new_frag((mca_btl_rustbtl_module_t *) module, endpoint, 0,
                                            MCA_BTL_DES_FLAGS_BTL_OWNERSHIP);
    if (OPAL_LIKELY(NULL != frag)) {
        frag->done = done;
        frag->done_address = local_address;
        frag->done_handle = local_handle;
        frag->done_context = context;
        frag->done_data = data;
    }
    return frag;
}

/* To another node: messages that bring it come before any that is sent later. */
static int module_put_far(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                          void *local_address, uint64_t remote_address,
                          mca_btl_base_registration_handle_t *local_handle,
                          mca_btl_base_registration_handle_t *remote_handle, size_t size,
                          int flags, int order, mca_btl_base_rdma_completion_fn_t done,
                          void *context, void *data)
{
    (void) remote_handle;
    (void) flags;
    (void) order;
    mca_btl_rustbtl_frag_t *frag = mca_btl_rustbtl_operation(base, endpoint, done, local_address,
                                                             local_handle, context, data);
    if (OPAL_UNLIKELY(NULL == frag)) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    int32_t rc = mca_btl_rustbtl_core->put(mca_btl_rustbtl, endpoint->peer, remote_address,
                                           local_address, size, frag);
    if (RUSTBTL_BTL_DONE == rc) {
        finish(frag, true, OPAL_SUCCESS);
    }
    return RUSTBTL_BTL_DOWN == rc ? mca_btl_rustbtl_unreachable(endpoint) : OPAL_SUCCESS;
}

/* ---- the modules ---------------------------------------------------------------------------- */

static int module_finalize(mca_btl_base_module_t *base)
{
    mca_btl_rustbtl_module_t *module = (mca_btl_rustbtl_module_t *) base;
    module->open = false;
    for (int i = 0; i < RUSTBTL_BTL_MODULES; i++) {
        if (mca_btl_rustbtl_modules[i].open) {
            return OPAL_SUCCESS;
        }
    }
    /* The last one. Descriptors that wait are sent before their memory goes. */
    if (NULL != mca_btl_rustbtl) {
        rustbtl_btl_t *btl = mca_btl_rustbtl;
        mca_btl_rustbtl = NULL;
        mca_btl_rustbtl_core->close(btl);
        mca_btl_rustbtl_free_endpoints();
    }
    for (int i = 0; i < RUSTBTL_BTL_MODULES; i++) {
        if (mca_btl_rustbtl_modules[i].listed) {
            OBJ_DESTRUCT(&mca_btl_rustbtl_modules[i].small);
            OBJ_DESTRUCT(&mca_btl_rustbtl_modules[i].large);
        }
    }
    return OPAL_SUCCESS;
}

#define FUNCTIONS                                                                                  \
    .btl_component = &mca_btl_rustbtl_component, .btl_add_procs = mca_btl_rustbtl_add_procs,       \
    .btl_del_procs = mca_btl_rustbtl_del_procs, .btl_finalize = module_finalize,                   \
    .btl_alloc = module_alloc, .btl_free = module_free, .btl_prepare_src = module_prepare_src,     \
    .btl_send = module_send, .btl_sendi = module_sendi,                                            \
    .btl_register_error = mca_btl_rustbtl_register_error

mca_btl_rustbtl_module_t mca_btl_rustbtl_modules[RUSTBTL_BTL_MODULES] = {
    { .super = { FUNCTIONS }, .way = RUSTBTL_BTL_NODE },
    { .super = { FUNCTIONS }, .way = RUSTBTL_BTL_NETWORK },
    { .super = { FUNCTIONS }, .way = RUSTBTL_BTL_ONE_SIDED },
};

static void fill(mca_btl_base_module_t *module, size_t eager, size_t largest)
{
    module->btl_eager_limit = least(eager, largest);
    module->btl_rndv_eager_limit = module->btl_eager_limit;
    module->btl_max_send_size = largest;
    /* Nothing is registered, so nothing is gained by overlapping it with a transfer. */
    module->btl_rdma_pipeline_send_length = module->btl_eager_limit;
    module->btl_rdma_pipeline_frag_size = SIZE_MAX;
    module->btl_min_rdma_pipeline_size = SIZE_MAX;
    module->btl_exclusivity = mca_btl_rustbtl_params.exclusivity;
    module->btl_flags = MCA_BTL_FLAGS_SEND | MCA_BTL_FLAGS_SEND_INPLACE;
}

/* No message goes by the third module; ob1 refuses one that would not take its headers. */
#define OPERATION_BYTES 256

void mca_btl_rustbtl_fill_modules(uint32_t local_ranks)
{
    mca_btl_rustbtl_params_t *params = &mca_btl_rustbtl_params;
    rustbtl_btl_settings_t *settings = &params->settings;
    settings->shm = params->shm;
    settings->single_copy = params->single_copy;
    settings->tcp_ipv4 = params->ipv4;
    settings->tcp_ipv6 = params->ipv6;
    settings->tcp_encrypt = params->encrypt;
    mca_btl_base_module_t *node = &mca_btl_rustbtl_modules[RUSTBTL_BTL_NODE].super;
    fill(node, params->shm_eager_limit,
         mca_btl_rustbtl_core->node_bytes_max(settings->shm_ring, local_ranks));
    node->btl_latency = 1;
    node->btl_bandwidth = 40000;
    if (params->single_copy) {
        node->btl_flags |= MCA_BTL_FLAGS_RDMA;
        node->btl_get = module_get;
        node->btl_put = module_put;
        node->btl_get_limit = node->btl_put_limit = SIZE_MAX;
    }
    mca_btl_base_module_t *network = &mca_btl_rustbtl_modules[RUSTBTL_BTL_NETWORK].super;
    fill(network, params->tcp_eager_limit, settings->tcp_max_bytes);
    network->btl_latency = 100;
    network->btl_bandwidth = 1000;
    if (params->tcp_put) {
        /* The receiver asks for it at once, in one piece. */
        network->btl_flags |= MCA_BTL_FLAGS_PUT;
        network->btl_put = module_put_far;
        network->btl_put_limit = SIZE_MAX;
        network->btl_rdma_pipeline_send_length = settings->tcp_max_bytes;
        network->btl_rdma_pipeline_frag_size = INT_MAX;
        network->btl_min_rdma_pipeline_size = 0;
    }
    mca_btl_base_module_t *one_sided = &mca_btl_rustbtl_modules[RUSTBTL_BTL_ONE_SIDED].super;
    fill(one_sided, OPERATION_BYTES, OPERATION_BYTES);
    mca_btl_rustbtl_fill_one_sided(one_sided);
}

static int open_list(opal_free_list_t *list, size_t bytes)
{
    OBJ_CONSTRUCT(list, opal_free_list_t);
    return opal_free_list_init(list, sizeof(mca_btl_rustbtl_frag_t) + bytes, opal_cache_line_size,
                               OBJ_CLASS(mca_btl_rustbtl_frag_t), 0, opal_cache_line_size, 0, -1,
                               8, NULL, 0, NULL, NULL, NULL);
}

int mca_btl_rustbtl_open_lists(mca_btl_rustbtl_module_t *module)
{
    int rc = open_list(&module->small, module->super.btl_eager_limit);
    if (OPAL_SUCCESS == rc) {
        rc = open_list(&module->large, module->super.btl_max_send_size);
    }
    module->listed = true;
    module->open = OPAL_SUCCESS == rc;
    return rc;
}

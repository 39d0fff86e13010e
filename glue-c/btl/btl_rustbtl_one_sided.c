/*
 * The module for one-sided communication: memory of all processes, this one included. Neighbours'
 * memory is read and written directly, where the kernel permits that; everything else a process is
 * asked to do itself. Each operation is over when its effect is visible to all.
 */
#include "btl_rustbtl.h"

#include <string.h>

/* The arguments of a function of Open MPI that say how an operation ends. */
typedef struct ending_t {
    mca_btl_base_rdma_completion_fn_t done;
    void *address;
    mca_btl_base_registration_handle_t *handle;
    void *context;
    void *data;
} ending_t;

static int is_done(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                   const ending_t *ending)
{
    ending->done(base, endpoint, ending->address, ending->handle, ending->context, ending->data,
                 OPAL_SUCCESS);
    return OPAL_SUCCESS;
}

static mca_btl_rustbtl_frag_t *operation(mca_btl_base_module_t *base,
                                         mca_btl_base_endpoint_t *endpoint, const ending_t *ending)
{
    return mca_btl_rustbtl_operation(base, endpoint, ending->done, ending->address, ending->handle,
                                     ending->context, ending->data);
}

static bool is_neighbour(const mca_btl_base_endpoint_t *endpoint)
{
    return RUSTBTL_BTL_NODE == mca_btl_rustbtl_core->way(endpoint->peer);
}

static int is_asked(const mca_btl_base_endpoint_t *endpoint, int32_t rc)
{
    return RUSTBTL_BTL_DOWN == rc ? mca_btl_rustbtl_unreachable(endpoint) : OPAL_SUCCESS;
}

static int get(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint, void *local_address,
               uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
               mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
               int order, mca_btl_base_rdma_completion_fn_t done, void *context, void *data)
{
    const ending_t ending = { done, local_address, local_handle, context, data };
    (void) remote_handle;
    (void) flags;
    (void) order;
    if (NULL == endpoint->peer) {
        memmove(local_address, (const void *) (uintptr_t) remote_address, size);
        return is_done(base, endpoint, &ending);
    }
    if (is_neighbour(endpoint)
        && RUSTBTL_BTL_DONE == mca_btl_rustbtl_core->read(mca_btl_rustbtl, endpoint->peer,
                                                          remote_address, local_address, size)) {
        return is_done(base, endpoint, &ending);
    }
    mca_btl_rustbtl_frag_t *frag = operation(base, endpoint, &ending);
    if (OPAL_UNLIKELY(NULL == frag)) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return is_asked(endpoint, mca_btl_rustbtl_core->ask_read(mca_btl_rustbtl, endpoint->peer,
                                                             remote_address, local_address, size,
                                                             frag));
}

static int put(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint, void *local_address,
               uint64_t remote_address, mca_btl_base_registration_handle_t *local_handle,
               mca_btl_base_registration_handle_t *remote_handle, size_t size, int flags,
               int order, mca_btl_base_rdma_completion_fn_t done, void *context, void *data)
{
    const ending_t ending = { done, local_address, local_handle, context, data };
    (void) remote_handle;
    (void) flags;
    (void) order;
    if (NULL == endpoint->peer) {
        memmove((void *) (uintptr_t) remote_address, local_address, size);
        return is_done(base, endpoint, &ending);
    }
    if (is_neighbour(endpoint)
        && RUSTBTL_BTL_DONE == mca_btl_rustbtl_core->write(mca_btl_rustbtl, endpoint->peer,
                                                           remote_address, local_address, size)) {
        return is_done(base, endpoint, &ending);
    }
    mca_btl_rustbtl_frag_t *frag = operation(base, endpoint, &ending);
    if (OPAL_UNLIKELY(NULL == frag)) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return is_asked(endpoint, mca_btl_rustbtl_core->ask_write(mca_btl_rustbtl, endpoint->peer,
                                                              remote_address, local_address, size,
                                                              frag));
}

/* ---- atomics -------------------------------------------------------------------------------- */

/* `into`: NULL, or where the value goes that was there before. */
static int change(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                  const rustbtl_btl_atomic_t *atomic, void *into, const ending_t *ending)
{
    if (NULL == endpoint->peer) {
        /* By the processor, as other processes' changes of this memory are executed here. */
        uint64_t before = mca_btl_rustbtl_core->change(atomic);
        if (NULL != into) {
            memcpy(into, &before, atomic->narrow ? 4 : 8);
        }
        return is_done(base, endpoint, ending);
    }
    mca_btl_rustbtl_frag_t *frag = operation(base, endpoint, ending);
    if (OPAL_UNLIKELY(NULL == frag)) {
        return OPAL_ERR_OUT_OF_RESOURCE;
    }
    return is_asked(endpoint, mca_btl_rustbtl_core->ask_change(mca_btl_rustbtl, endpoint->peer,
                                                               atomic, into, frag));
}

/* 0: not one of those that are offered. */
static uint8_t change_of(mca_btl_base_atomic_op_t op)
{
    switch (op) {
    case MCA_BTL_ATOMIC_ADD:
        return RUSTBTL_BTL_ADD;
    case MCA_BTL_ATOMIC_AND:
        return RUSTBTL_BTL_AND;
    case MCA_BTL_ATOMIC_OR:
        return RUSTBTL_BTL_OR;
    case MCA_BTL_ATOMIC_XOR:
        return RUSTBTL_BTL_XOR;
    case MCA_BTL_ATOMIC_SWAP:
        return RUSTBTL_BTL_SWAP;
    default:
        return 0;
    }
}

static bool is_offered(const rustbtl_btl_atomic_t *atomic, int flags)
{
    return 0 != atomic->change && 0 == (flags & MCA_BTL_ATOMIC_FLAG_FLOAT);
}

static int fetching(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                    void *local_address, uint64_t remote_address,
                    mca_btl_base_registration_handle_t *local_handle,
                    mca_btl_base_registration_handle_t *remote_handle, mca_btl_base_atomic_op_t op,
                    uint64_t operand, int flags, int order,
                    mca_btl_base_rdma_completion_fn_t done, void *context, void *data)
{
    const ending_t ending = { done, local_address, local_handle, context, data };
    const rustbtl_btl_atomic_t atomic = {
        .address = remote_address, .operand = operand, .change = change_of(op),
        .narrow = 0 != (flags & MCA_BTL_ATOMIC_FLAG_32BIT) };
    (void) remote_handle;
    (void) order;
    if (!is_offered(&atomic, flags)) {
        return OPAL_ERR_NOT_SUPPORTED;
    }
    return change(base, endpoint, &atomic, local_address, &ending);
}

static int not_fetching(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                        uint64_t remote_address, mca_btl_base_registration_handle_t *remote_handle,
                        mca_btl_base_atomic_op_t op, uint64_t operand, int flags, int order,
                        mca_btl_base_rdma_completion_fn_t done, void *context, void *data)
{
    return fetching(base, endpoint, NULL, remote_address, NULL, remote_handle, op, operand, flags,
                    order, done, context, data);
}

static int compare_and_swap(mca_btl_base_module_t *base, mca_btl_base_endpoint_t *endpoint,
                            void *local_address, uint64_t remote_address,
                            mca_btl_base_registration_handle_t *local_handle,
                            mca_btl_base_registration_handle_t *remote_handle, uint64_t compare,
                            uint64_t value, int flags, int order,
                            mca_btl_base_rdma_completion_fn_t done, void *context, void *data)
{
    const ending_t ending = { done, local_address, local_handle, context, data };
    const rustbtl_btl_atomic_t atomic = {
        .address = remote_address, .operand = value, .compare = compare,
        .change = RUSTBTL_BTL_COMPARE_AND_SWAP,
        .narrow = 0 != (flags & MCA_BTL_ATOMIC_FLAG_32BIT) };
    (void) remote_handle;
    (void) order;
    return change(base, endpoint, &atomic, local_address, &ending);
}

void mca_btl_rustbtl_fill_one_sided(mca_btl_base_module_t *module)
{
    /* Without SEND, and with endpoints of its own, ob1 does not use it. Least and greatest of two
     * values are not offered: Open MPI does not say whether they have a sign. */
    module->btl_flags = MCA_BTL_FLAGS_RDMA | MCA_BTL_FLAGS_ATOMIC_OPS | MCA_BTL_FLAGS_ATOMIC_FOPS;
#ifdef MCA_BTL_FLAGS_RDMA_REMOTE_COMPLETION
    module->btl_flags |= MCA_BTL_FLAGS_RDMA_REMOTE_COMPLETION;
#endif
    module->btl_atomic_flags = MCA_BTL_ATOMIC_SUPPORTS_ADD | MCA_BTL_ATOMIC_SUPPORTS_AND
                               | MCA_BTL_ATOMIC_SUPPORTS_OR | MCA_BTL_ATOMIC_SUPPORTS_XOR
                               | MCA_BTL_ATOMIC_SUPPORTS_SWAP | MCA_BTL_ATOMIC_SUPPORTS_CSWAP
                               | MCA_BTL_ATOMIC_SUPPORTS_32BIT | MCA_BTL_ATOMIC_SUPPORTS_GLOB;
    module->btl_get = get;
    module->btl_put = put;
    module->btl_get_limit = module->btl_put_limit = SIZE_MAX;
    module->btl_atomic_op = not_fetching;
    module->btl_atomic_fop = fetching;
    module->btl_atomic_cswap = compare_and_swap;
    /* What bml/r2 adds up for ob1 must not change. */
    module->btl_latency = 50;
    module->btl_bandwidth = 1;
    module->btl_rdma_pipeline_send_length = 0;
    module->btl_min_rdma_pipeline_size = 0;
}

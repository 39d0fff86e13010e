/*
 * The collectives whose blocks have different lengths, and data that is not one piece. The
 * component is vprotocol_correlated_collectives.c.
 */
#include "vprotocol_correlated_collectives.h"

/* ---- buffers that are not one piece --------------------------------------------------------- */

static int convert(const correlated_buffer_t *buffer, bool pack)
{
    opal_convertor_t convertor;
    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    const opal_datatype_t *type = &buffer->type->super;
    int rc = pack ? opal_convertor_copy_and_prepare_for_send(ompi_mpi_local_convertor, type,
                                                             buffer->count, buffer->user, 0,
                                                             &convertor)
                  : opal_convertor_copy_and_prepare_for_recv(ompi_mpi_local_convertor, type,
                                                             buffer->count, buffer->user, 0,
                                                             &convertor);
    size_t bytes = buffer->count * type->size;
    if (OMPI_SUCCESS == rc && pack) {
        rustbtl_glue_pack(&convertor, 0, buffer->copy, bytes);
    } else if (OMPI_SUCCESS == rc) {
        rustbtl_glue_unpack(&convertor, 0, buffer->copy, bytes);
    }
    OBJ_DESTRUCT(&convertor);
    return rc;
}

int32_t mca_coll_correlated_pack(void *buffers)
{
    const correlated_buffers_t *all = buffers;
    int rc = OMPI_SUCCESS;
    for (int i = 0; i < all->count && OMPI_SUCCESS == rc; i++) {
        const correlated_buffer_t *buffer = &all->buffers[i];
        if (NULL != buffer->copy && buffer->has_data) {
            rc = convert(buffer, true);
        }
    }
    return OMPI_SUCCESS == rc ? RUSTBTL_DONE : RUSTBTL_FAILED;
}

int mca_coll_correlated_unpack(correlated_buffer_t *buffer, int rc, bool changed)
{
    if (OMPI_SUCCESS == rc && changed) {
        rc = convert(buffer, false);
    }
    free(buffer->copy);
    return rc;
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* Blocks for which no memory is allocated. */
#define FEW 16

/* What a member gives and gets: first the blocks that it gives. */
typedef struct {
    rustbtl_block_t few_blocks[FEW];
    correlated_buffer_t few_buffers[FEW];
    rustbtl_block_t *blocks;
    correlated_buffer_t *buffers;
    int count;
    int given; /* of them */
    bool has_copies;
    size_t longest;
} blocks_t;

static int blocks_begin(blocks_t *all, int most)
{
    all->blocks = all->few_blocks;
    all->buffers = all->few_buffers;
    all->count = all->given = 0;
    all->has_copies = false;
    all->longest = 0;
    if (FEW < most) {
        all->blocks = malloc((size_t) most * (sizeof *all->blocks + sizeof *all->buffers));
        all->buffers = (correlated_buffer_t *) (all->blocks + most);
    }
    return NULL == all->blocks ? OMPI_ERR_OUT_OF_RESOURCE : OMPI_SUCCESS;
}

/* One more; it is given, if `gives`, and has data that is given, if `has_data`. */
static int block_add(blocks_t *all, int rc, const void *user, int count, ompi_datatype_t *type,
                     bool gives, bool has_data)
{
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    correlated_buffer_t *buffer = &all->buffers[all->count];
    rc = correlated_buffer_open(buffer, user, (size_t) count, type, has_data);
    if (OMPI_SUCCESS == rc) {
        size_t bytes = (size_t) count * type->super.size;
        all->blocks[all->count++] = (rustbtl_block_t) { .start = buffer->start, .bytes = bytes };
        all->given += gives;
        all->has_copies = all->has_copies || NULL != buffer->copy;
        all->longest = bytes > all->longest ? bytes : all->longest;
    }
    return rc;
}

/* One for each member, as MPI's functions have them. */
static int blocks_add(blocks_t *all, int rc, const void *user, const int *counts, const int *at,
                      ompi_datatype_t *type, int size, bool gives, bool has_data)
{
    ptrdiff_t extent = type->super.ub - type->super.lb;
    for (int i = 0; i < size; i++) {
        rc = block_add(all, rc, (const char *) user + at[i] * extent, counts[i], type, gives,
                       has_data);
    }
    return rc;
}

/* The call. */
static int blocks_exchange(blocks_t *all, int rc, rustbtl_collective_t *call,
                           mca_coll_base_module_t *module)
{
    correlated_buffers_t packs = { .buffers = all->buffers, .count = all->count };
    if (OMPI_SUCCESS == rc) {
        call->bytes = all->longest;
        call->packs = all->has_copies ? &packs : NULL;
        rc = rustbtl_collective(correlated_collectives(module)->group, call);
        rc = RUSTBTL_BELOW == rc ? rc : correlated_outcome(rc);
    }
    for (int i = 0; i < all->count; i++) {
        rc = correlated_buffer_close(&all->buffers[i], rc, i >= all->given);
    }
    if (all->blocks != all->few_blocks) {
        free(all->blocks);
    }
    return rc;
}

/* ---- the collectives ------------------------------------------------------------------------ */

static int gatherv(const void *from, int from_count, ompi_datatype_t *from_type, void *into,
                   const int *counts, const int *at, ompi_datatype_t *into_type, int root,
                   ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int size = ompi_comm_size(comm);
    bool is_root = root == ompi_comm_rank(comm), in_place = MPI_IN_PLACE == from;
    blocks_t all;
    int rc = blocks_begin(&all, size + 1);
    if (!in_place) {
        rc = block_add(&all, rc, from, from_count, from_type, true, true);
    }
    if (is_root) {
        rc = blocks_add(&all, rc, into, counts, at, into_type, size, false, in_place);
    }
    rustbtl_collective_t call = {
        .gives = in_place ? all.blocks + root : all.blocks,
        .gets = in_place ? all.blocks : all.blocks + 1,
        .kind = RUSTBTL_GATHERV,
        .root = (uint32_t) root,
        .tag = MCA_COLL_BASE_TAG_GATHERV,
    };
    rc = blocks_exchange(&all, rc, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(gatherv)(from, from_count, from_type, into, counts, at, into_type,
                                         root, comm, CORRELATED_BELOW(gatherv_module));
    }
    return rc;
}

static int scatterv(const void *from, const int *counts, const int *at, ompi_datatype_t *from_type,
                    void *into, int into_count, ompi_datatype_t *into_type, int root,
                    ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int size = ompi_comm_size(comm);
    bool is_root = root == ompi_comm_rank(comm), in_place = MPI_IN_PLACE == into;
    blocks_t all;
    int rc = blocks_begin(&all, size + 1);
    if (is_root) {
        rc = blocks_add(&all, rc, from, counts, at, from_type, size, true, true);
    }
    if (!in_place) {
        rc = block_add(&all, rc, into, into_count, into_type, false, false);
    }
    rustbtl_collective_t call = {
        .gives = all.blocks,
        .gets = in_place ? all.blocks + root : all.blocks + all.given,
        .kind = RUSTBTL_SCATTERV,
        .root = (uint32_t) root,
        .tag = MCA_COLL_BASE_TAG_SCATTERV,
    };
    rc = blocks_exchange(&all, rc, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(scatterv)(from, counts, at, from_type, into, into_count, into_type,
                                          root, comm, CORRELATED_BELOW(scatterv_module));
    }
    return rc;
}

static int allgatherv(const void *from, int from_count, ompi_datatype_t *from_type, void *into,
                      const int *counts, const int *at, ompi_datatype_t *into_type,
                      ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int size = ompi_comm_size(comm);
    bool in_place = MPI_IN_PLACE == from;
    blocks_t all;
    int rc = blocks_begin(&all, size + 1);
    if (!in_place) {
        rc = block_add(&all, rc, from, from_count, from_type, true, true);
    }
    rc = blocks_add(&all, rc, into, counts, at, into_type, size, false, in_place);
    rustbtl_collective_t call = {
        .gives = in_place ? all.blocks + ompi_comm_rank(comm) : all.blocks,
        .gets = all.blocks + all.given,
        .kind = RUSTBTL_ALLGATHERV,
        .tag = MCA_COLL_BASE_TAG_ALLGATHERV,
    };
    rc = blocks_exchange(&all, rc, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(allgatherv)(from, from_count, from_type, into, counts, at,
                                            into_type, comm, CORRELATED_BELOW(allgatherv_module));
    }
    return rc;
}

static int alltoallv(const void *from, const int *from_counts, const int *from_at,
                     ompi_datatype_t *from_type, void *into, const int *counts, const int *at,
                     ompi_datatype_t *into_type, ompi_communicator_t *comm,
                     mca_coll_base_module_t *module)
{
    int size = ompi_comm_size(comm);
    bool in_place = MPI_IN_PLACE == from;
    blocks_t all;
    int rc = blocks_begin(&all, 2 * size);
    if (!in_place) {
        rc = blocks_add(&all, rc, from, from_counts, from_at, from_type, size, true, true);
    }
    rc = blocks_add(&all, rc, into, counts, at, into_type, size, false, in_place);
    rustbtl_collective_t call = {
        .gives = all.blocks,
        .gets = all.blocks + all.given,
        .kind = RUSTBTL_ALLTOALLV,
        .tag = MCA_COLL_BASE_TAG_ALLTOALLV,
    };
    rc = blocks_exchange(&all, rc, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(alltoallv)(from, from_counts, from_at, from_type, into, counts, at,
                                           into_type, comm, CORRELATED_BELOW(alltoallv_module));
    }
    return rc;
}

static int alltoallw(const void *from, const int *from_counts, const int *from_at,
                     ompi_datatype_t *const *from_types, void *into, const int *counts,
                     const int *at, ompi_datatype_t *const *into_types, ompi_communicator_t *comm,
                     mca_coll_base_module_t *module)
{
    int size = ompi_comm_size(comm);
    bool in_place = MPI_IN_PLACE == from;
    blocks_t all;
    int rc = blocks_begin(&all, 2 * size);
    for (int i = 0; !in_place && i < size; i++) {
        rc = block_add(&all, rc, (const char *) from + from_at[i], from_counts[i], from_types[i],
                       true, true);
    }
    for (int i = 0; i < size; i++) {
        rc = block_add(&all, rc, (char *) into + at[i], counts[i], into_types[i], false, in_place);
    }
    rustbtl_collective_t call = {
        .gives = all.blocks,
        .gets = all.blocks + all.given,
        .kind = RUSTBTL_ALLTOALLV,
        .tag = MCA_COLL_BASE_TAG_ALLTOALLW,
    };
    rc = blocks_exchange(&all, rc, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(alltoallw)(from, from_counts, from_at, from_types, into, counts,
                                           at, into_types, comm,
                                           CORRELATED_BELOW(alltoallw_module));
    }
    return rc;
}

static int reduce_scatter(const void *from, void *into, const int *counts, ompi_datatype_t *type,
                          ompi_op_t *op, ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int size = ompi_comm_size(comm);
    int32_t rc = RUSTBTL_BELOW;
    if (OPAL_LIKELY(correlated_can_fold(op, type))) {
        const char *data = MPI_IN_PLACE == from ? into : from;
        blocks_t all;
        rc = blocks_begin(&all, size + 1);
        for (int i = 0; i < size; i++) {
            rc = block_add(&all, rc, data, counts[i], type, true, true);
            data += (size_t) counts[i] * type->super.size;
        }
        rc = block_add(&all, rc, into, counts[ompi_comm_rank(comm)], type, false, false);
        rustbtl_collective_t call = {
            .element = type->super.size,
            .op = op,
            .datatype = type,
            .gives = all.blocks,
            .gets = all.blocks + all.given,
            .kind = RUSTBTL_REDUCE_SCATTER,
            .tag = MCA_COLL_BASE_TAG_REDUCE_SCATTER,
        };
        rc = blocks_exchange(&all, rc, &call, module);
    }
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(reduce_scatter)(from, into, counts, type, op, comm,
                                                CORRELATED_BELOW(reduce_scatter_module));
    }
    return rc;
}

void mca_coll_correlated_varying(mca_coll_base_module_t *module, bool over_sets)
{
    module->coll_allgatherv = allgatherv;
    module->coll_reduce_scatter = reduce_scatter;
    if (over_sets) {
        /* Not all members know how long the others are. */
        return;
    }
    module->coll_alltoallv = alltoallv;
    module->coll_alltoallw = alltoallw;
    module->coll_gatherv = gatherv;
    module->coll_scatterv = scatterv;
}

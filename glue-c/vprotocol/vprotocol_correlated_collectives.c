/*
 * The collective component "correlated": for communicators whose ranks are of one correlated set,
 * and some of those of several sets. What happens is Rust (component/src/mpi/collectives,
 * docs/adr/0040, 0041).
 *
 * As the one-sided component it is no DSO of its own: the PML's init appends it to the framework's
 * list. So the user's list of components is read here.
 */
#include "vprotocol_correlated_collectives.h"

#include "ompi/mca/coll/base/base.h"
#include "opal/mca/base/base.h"

/* Above tuned and han, below what users ask for (hcoll, monitoring). */
#define PRIORITY 76
static void module_construct(mca_coll_correlated_module_t *module)
{
    module->group = NULL;
    memset(&module->below, 0, sizeof(module->below));
}

static void module_destruct(mca_coll_correlated_module_t *module)
{
    rustbtl_collectives_free(module->group);
#define RELEASE(name)                                                                              \
    if (NULL != module->below.coll_##name##_module) {                                              \
        OBJ_RELEASE(module->below.coll_##name##_module);                                           \
    }
    CORRELATED_EACH_COLLECTIVE(RELEASE)
#undef RELEASE
}

static OBJ_CLASS_INSTANCE(mca_coll_correlated_module_t, mca_coll_base_module_t, module_construct,
                          module_destruct);

/* ---- what Rust calls ------------------------------------------------------------------------ */

static int32_t give(int rc, ompi_request_t *request, void **handle)
{
    *handle = NULL;
    if (OMPI_SUCCESS != rc) {
        return MPI_ERR_NO_MEM == rc ? RUSTBTL_LOG_FULL : RUSTBTL_FAILED;
    }
    if (CORRELATED_SEND_COMPLETE != request && &ompi_request_empty != request) {
        *handle = request;
    }
    return RUSTBTL_DONE;
}

static int32_t send_bytes(void *comm, uint32_t to, int32_t tag, const uint8_t *bytes,
                          uint64_t length, void **handle)
{
    ompi_request_t *request = &ompi_request_empty;
    int rc = mca_vprotocol_correlated_isend(bytes, length, MPI_BYTE, (int) to, tag,
                                            MCA_PML_BASE_SEND_STANDARD, comm, &request);
    return give(rc, request, handle);
}

static int32_t receive_bytes(void *comm, uint32_t from, int32_t tag, uint8_t *bytes,
                             uint64_t length, void **handle)
{
    ompi_request_t *request = &ompi_request_empty;
    int rc = mca_vprotocol_correlated_irecv(bytes, length, MPI_BYTE, (int) from, tag, comm,
                                            &request);
    return give(rc, request, handle);
}

static int32_t test_request(void *handle)
{
    ompi_request_t *request = handle;
    if (!REQUEST_COMPLETE(request)) {
        rustbtl_complete_held(&((mca_vprotocol_correlated_request_t *) request)->op);
        if (!REQUEST_COMPLETE(request)) {
            return 0;
        }
    }
    bool well = MPI_SUCCESS == request->req_status.MPI_ERROR;
    (void) ompi_request_free(&request);
    return well ? 1 : 2;
}

static void fold(void *op, void *datatype, const uint8_t *a, const uint8_t *b, uint8_t *out,
                 uint64_t elements)
{
    ompi_op_t *with = op;
    ompi_datatype_t *type = datatype;
    if (b != out && ompi_op_is_intrinsic(with)) {
        ompi_3buff_op_reduce(with, (void *) a, (void *) b, out, (int) elements, type);
        return;
    }
    if (b != out) {
        memcpy(out, b, elements * type->super.size);
    }
    ompi_op_reduce(with, (void *) a, out, elements, type);
}

/* ---- the collectives ------------------------------------------------------------------------ */

static int barrier(ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    (void) comm;
    rustbtl_collective_t call = { .kind = RUSTBTL_BARRIER, .tag = MCA_COLL_BASE_TAG_BARRIER };
    return correlated_outcome(rustbtl_collective(correlated_collectives(module)->group, &call));
}

static int bcast(void *buffer, int count, ompi_datatype_t *type, int root,
                 ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    bool is_root = root == ompi_comm_rank(comm);
    correlated_buffer_t data;
    int rc = correlated_buffer_open(&data, buffer, (size_t) count, type, is_root);
    correlated_buffers_t packs = { .buffers = &data, .count = 1 };
    if (OPAL_LIKELY(OMPI_SUCCESS == rc)) {
        rustbtl_collective_t call = {
            .from = data.start,
            .into = data.start,
            .bytes = (size_t) count * type->super.size,
            .kind = RUSTBTL_BCAST,
            .root = (uint32_t) root,
            .tag = MCA_COLL_BASE_TAG_BCAST,
            .packs = NULL != data.copy ? &packs : NULL,
        };
        int32_t code = rustbtl_collective(correlated_collectives(module)->group, &call);
        rc = RUSTBTL_BELOW == code ? code : correlated_outcome(code);
    }
    rc = correlated_buffer_close(&data, rc, !is_root);
    return OPAL_LIKELY(RUSTBTL_BELOW != rc)
               ? rc
               : CORRELATED_BELOW(bcast)(buffer, count, type, root, comm,
                                         CORRELATED_BELOW(bcast_module));
}

/* Those that fold. RUSTBTL_BELOW: they cannot. */
static inline int32_t folded(const void *from, void *into, size_t count, ompi_datatype_t *type,
                             ompi_op_t *op, uint32_t kind, int root, int tag,
                             mca_coll_base_module_t *module)
{
    if (OPAL_UNLIKELY(!correlated_can_fold(op, type))) {
        return RUSTBTL_BELOW;
    }
    rustbtl_collective_t call = {
        .from = MPI_IN_PLACE == from ? into : from,
        .into = into,
        .bytes = count * type->super.size,
        .element = type->super.size,
        .op = op,
        .datatype = type,
        .kind = kind,
        .root = (uint32_t) root,
        .tag = tag,
        .commutes = ompi_op_is_commute(op),
    };
    return rustbtl_collective(correlated_collectives(module)->group, &call);
}

static int reduce(const void *from, void *into, int count, ompi_datatype_t *type, ompi_op_t *op,
                  int root, ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int32_t code = folded(from, into, (size_t) count, type, op, RUSTBTL_REDUCE, root,
                          MCA_COLL_BASE_TAG_REDUCE, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == code)) {
        return CORRELATED_BELOW(reduce)(from, into, count, type, op, root, comm,
                                        CORRELATED_BELOW(reduce_module));
    }
    return correlated_outcome(code);
}

static int allreduce(const void *from, void *into, int count, ompi_datatype_t *type, ompi_op_t *op,
                     ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int32_t code = folded(from, into, (size_t) count, type, op, RUSTBTL_ALLREDUCE, 0,
                          MCA_COLL_BASE_TAG_ALLREDUCE, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == code)) {
        return CORRELATED_BELOW(allreduce)(from, into, count, type, op, comm,
                                           CORRELATED_BELOW(allreduce_module));
    }
    return correlated_outcome(code);
}

static int scan(const void *from, void *into, int count, ompi_datatype_t *type, ompi_op_t *op,
                ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int32_t code = folded(from, into, (size_t) count, type, op, RUSTBTL_SCAN, 0,
                          MCA_COLL_BASE_TAG_SCAN, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == code)) {
        return CORRELATED_BELOW(scan)(from, into, count, type, op, comm,
                                      CORRELATED_BELOW(scan_module));
    }
    return correlated_outcome(code);
}

static int exscan(const void *from, void *into, int count, ompi_datatype_t *type, ompi_op_t *op,
                  ompi_communicator_t *comm, mca_coll_base_module_t *module)
{
    int32_t code = folded(from, into, (size_t) count, type, op, RUSTBTL_EXSCAN, 0,
                          MCA_COLL_BASE_TAG_EXSCAN, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == code)) {
        return CORRELATED_BELOW(exscan)(from, into, count, type, op, comm,
                                        CORRELATED_BELOW(exscan_module));
    }
    return correlated_outcome(code);
}

static int reduce_scatter_block(const void *from, void *into, int count, ompi_datatype_t *type,
                                ompi_op_t *op, ompi_communicator_t *comm,
                                mca_coll_base_module_t *module)
{
    int32_t code = folded(from, into, (size_t) count, type, op, RUSTBTL_REDUCE_SCATTER_BLOCK, 0,
                          MCA_COLL_BASE_TAG_REDUCE_SCATTER_BLOCK, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == code)) {
        return CORRELATED_BELOW(reduce_scatter_block)(from, into, count, type, op, comm,
                                           CORRELATED_BELOW(reduce_scatter_block_module));
    }
    return correlated_outcome(code);
}

/* What one member gives and gets. `from` NULL: its data is in the result, `offset` bytes behind its
 * beginning. `into` NULL: it gets nothing. */
typedef struct {
    const void *from;
    size_t from_count;
    ompi_datatype_t *from_type;
    void *into;
    size_t into_count;
    ompi_datatype_t *into_type;
    size_t offset;
    /* Its result is in its data, `offset` bytes behind that. */
    bool result_in_data;
} exchange_t;

static int exchanged(const exchange_t *what, rustbtl_collective_t *call,
                     mca_coll_base_module_t *module)
{
    correlated_buffer_t both[2] = { { .copy = NULL }, { .copy = NULL } };
    correlated_buffer_t *from = &both[0], *into = &both[1];
    correlated_buffers_t packs = { .buffers = both, .count = 2 };
    int rc = OMPI_SUCCESS;
    if (NULL != what->into_type) {
        rc = correlated_buffer_open(into, what->into, what->into_count, what->into_type,
                                    NULL == what->from_type);
        call->into = into->start;
    }
    if (OMPI_SUCCESS == rc && NULL != what->from_type) {
        rc = correlated_buffer_open(from, what->from, what->from_count, what->from_type, true);
        call->from = from->start;
    }
    if (OPAL_LIKELY(OMPI_SUCCESS == rc)) {
        if (OPAL_UNLIKELY(NULL != from->copy || NULL != into->copy)) {
            call->packs = &packs;
        }
        if (NULL == what->from_type) {
            call->from = call->into + what->offset;
        } else if (what->result_in_data) {
            call->into = (uint8_t *) call->from + what->offset;
        }
        rc = rustbtl_collective(correlated_collectives(module)->group, call);
    }
    if (RUSTBTL_BELOW != rc) {
        rc = RUSTBTL_DONE == rc ? OMPI_SUCCESS : OMPI_ERROR;
    }
    rc = correlated_buffer_close(into, rc, true);
    return correlated_buffer_close(from, rc, false);
}

static int allgather(const void *from, int from_count, ompi_datatype_t *from_type, void *into,
                     int into_count, ompi_datatype_t *into_type, ompi_communicator_t *comm,
                     mca_coll_base_module_t *module)
{
    bool in_place = MPI_IN_PLACE == from;
    size_t bytes = (size_t) into_count * into_type->super.size;
    exchange_t what = {
        .from = from,
        .from_count = (size_t) from_count,
        .from_type = in_place ? NULL : from_type,
        .into = into,
        .into_count = (size_t) into_count * (size_t) ompi_comm_size(comm),
        .into_type = into_type,
        .offset = bytes * (size_t) ompi_comm_rank(comm),
    };
    rustbtl_collective_t call = {
        .bytes = bytes,
        .kind = RUSTBTL_ALLGATHER,
        .tag = MCA_COLL_BASE_TAG_ALLGATHER,
    };
    int rc = exchanged(&what, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(allgather)(from, from_count, from_type, into, into_count, into_type,
                                           comm,
                                           CORRELATED_BELOW(allgather_module));
    }
    return rc;
}

static int alltoall(const void *from, int from_count, ompi_datatype_t *from_type, void *into,
                    int into_count, ompi_datatype_t *into_type, ompi_communicator_t *comm,
                    mca_coll_base_module_t *module)
{
    bool in_place = MPI_IN_PLACE == from;
    size_t size = (size_t) ompi_comm_size(comm);
    exchange_t what = {
        .from = from,
        .from_count = (size_t) from_count * size,
        .from_type = in_place ? NULL : from_type,
        .into = into,
        .into_count = (size_t) into_count * size,
        .into_type = into_type,
    };
    rustbtl_collective_t call = {
        .bytes = (size_t) into_count * into_type->super.size,
        .kind = RUSTBTL_ALLTOALL,
        .tag = MCA_COLL_BASE_TAG_ALLTOALL,
    };
    int rc = exchanged(&what, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(alltoall)(from, from_count, from_type, into, into_count, into_type,
                                          comm,
                                          CORRELATED_BELOW(alltoall_module));
    }
    return rc;
}

static int gather(const void *from, int from_count, ompi_datatype_t *from_type, void *into,
                  int into_count, ompi_datatype_t *into_type, int root, ompi_communicator_t *comm,
                  mca_coll_base_module_t *module)
{
    bool is_root = root == ompi_comm_rank(comm), in_place = MPI_IN_PLACE == from;
    size_t bytes = is_root ? (size_t) into_count * into_type->super.size
                           : (size_t) from_count * from_type->super.size;
    exchange_t what = {
        .from = from,
        .from_count = (size_t) from_count,
        .from_type = in_place ? NULL : from_type,
        .into = into,
        .into_count = (size_t) into_count * (size_t) ompi_comm_size(comm),
        .into_type = is_root ? into_type : NULL,
        .offset = bytes * (size_t) root,
    };
    rustbtl_collective_t call = {
        .bytes = bytes,
        .kind = RUSTBTL_GATHER,
        .root = (uint32_t) root,
        .tag = MCA_COLL_BASE_TAG_GATHER,
    };
    int rc = exchanged(&what, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(gather)(from, from_count, from_type, into, into_count, into_type,
                                        root, comm,
                                        CORRELATED_BELOW(gather_module));
    }
    return rc;
}

static int scatter(const void *from, int from_count, ompi_datatype_t *from_type, void *into,
                   int into_count, ompi_datatype_t *into_type, int root, ompi_communicator_t *comm,
                   mca_coll_base_module_t *module)
{
    bool is_root = root == ompi_comm_rank(comm), in_place = MPI_IN_PLACE == into;
    size_t bytes = is_root ? (size_t) from_count * from_type->super.size
                           : (size_t) into_count * into_type->super.size;
    exchange_t what = {
        .from = from,
        .from_count = (size_t) from_count * (size_t) ompi_comm_size(comm),
        .from_type = is_root ? from_type : NULL,
        .into = into,
        .into_count = (size_t) into_count,
        .into_type = in_place ? NULL : into_type,
        .offset = in_place ? bytes * (size_t) root : 0,
        .result_in_data = in_place,
    };
    rustbtl_collective_t call = {
        .bytes = bytes,
        .kind = RUSTBTL_SCATTER,
        .root = (uint32_t) root,
        .tag = MCA_COLL_BASE_TAG_SCATTER,
    };
    int rc = exchanged(&what, &call, module);
    if (OPAL_UNLIKELY(RUSTBTL_BELOW == rc)) {
        return CORRELATED_BELOW(scatter)(from, from_count, from_type, into, into_count, into_type,
                                         root, comm,
                                         CORRELATED_BELOW(scatter_module));
    }
    return rc;
}

/* ---- the component -------------------------------------------------------------------------- */

static int enable(mca_coll_base_module_t *super, ompi_communicator_t *comm)
{
    mca_coll_correlated_module_t *module = correlated_collectives(super);
    rustbtl_collective_setup_t setup = {
        .comm = comm,
        .directory = mca_vprotocol_correlated_config.shm_directory,
        .send = send_bytes,
        .receive = receive_bytes,
        .test = test_request,
        .fold = fold,
        .pack = mca_coll_correlated_pack,
        .bytes_max = mca_vprotocol_correlated_collectives_memory,
        .rank = (uint32_t) ompi_comm_rank(comm),
        .size = (uint32_t) ompi_comm_size(comm),
        .ranks_max = mca_vprotocol_correlated_collectives_ranks_max,
    };
    if (NULL != module->super.coll_barrier
        && NULL == (module->group = rustbtl_collectives_make(&setup))) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    /* What ours pass on must not go past the engine. */
    mca_coll_correlated_take_out(comm);
    /* What is below would be destroyed when ours takes its place. */
#define KEEP(name)                                                                                 \
    module->below.coll_##name = comm->c_coll->coll_##name;                                         \
    module->below.coll_##name##_module = comm->c_coll->coll_##name##_module;                       \
    if (NULL != module->below.coll_##name##_module) {                                              \
        OBJ_RETAIN(module->below.coll_##name##_module);                                            \
    }
    CORRELATED_EACH_COLLECTIVE(KEEP)
#undef KEEP
    /* Intercommunicators have not all of them. */
#define CLEAR(name)                                                                                \
    if (NULL == module->below.coll_##name) {                                                       \
        module->super.coll_##name = NULL;                                                          \
    }
    CORRELATED_EACH_NONBLOCKING_COLLECTIVE(CLEAR)
#undef CLEAR
    return OMPI_SUCCESS;
}

static int init_query(bool progress_threads, bool mpi_threads)
{
    (void) progress_threads;
    (void) mpi_threads;
    return OMPI_SUCCESS;
}

/* Are windows of this job replayed, so that nonblocking collectives are to be counted? */
static bool counts_nonblocking(void)
{
    return mca_vprotocol_correlated_one_sided && NULL != getenv("RUSTBTL_GUARDIAN_FD");
}

/* Which blocking collectives are ours: RUSTBTL_COLLECTIVES_*. The same at all members: it depends
 * on the map of sets, and parameters. */
static int32_t blocking_ones(ompi_communicator_t *comm, uint32_t size)
{
    if (!mca_vprotocol_correlated_collectives || OMPI_COMM_IS_INTER(comm) || 2 > size) {
        return RUSTBTL_COLLECTIVES_NONE;
    }
    int32_t which = rustbtl_collectives_may(comm, size,
                                            mca_vprotocol_correlated_collectives_ranks_max);
    return RUSTBTL_COLLECTIVES_SETS == which && !mca_vprotocol_correlated_collectives_over_sets
               ? RUSTBTL_COLLECTIVES_NONE : which;
}

static mca_coll_base_module_t *comm_query(ompi_communicator_t *comm, int *priority)
{
    uint32_t size = (uint32_t) ompi_comm_size(comm);
    *priority = -1;
    if (mca_vprotocol_correlated_pml.pml_isend != mca_pml.pml_isend) {
        return NULL;
    }
    int32_t which = blocking_ones(comm, size);
    bool counts = counts_nonblocking() && (2 <= size || OMPI_COMM_IS_INTER(comm));
    if (RUSTBTL_COLLECTIVES_NONE == which && !counts) {
        return NULL;
    }
    mca_coll_correlated_module_t *module = OBJ_NEW(mca_coll_correlated_module_t);
    if (NULL == module) {
        return NULL;
    }
    *priority = PRIORITY;
    module->super.coll_module_enable = enable;
    if (counts) {
        mca_coll_correlated_nonblocking(&module->super);
    }
    if (RUSTBTL_COLLECTIVES_NONE == which) {
        return &module->super;
    }
    if (RUSTBTL_COLLECTIVES_SETS == which && !mca_vprotocol_correlated_collectives_over_sets_all) {
        /* Those that gain by it. */
        module->super.coll_allreduce = allreduce;
        module->super.coll_barrier = barrier;
        module->super.coll_bcast = bcast;
        module->super.coll_gather = gather;
        module->super.coll_reduce = reduce;
        return &module->super;
    }
#define OFFER(name) module->super.coll_##name = name;
    CORRELATED_EACH_EQUAL_COLLECTIVE(OFFER)
#undef OFFER
    mca_coll_correlated_varying(&module->super, RUSTBTL_COLLECTIVES_SETS == which);
    return &module->super;
}

static mca_coll_base_component_t component = {
    .collm_version = {
        CORRELATED_COLL_VERSION,
        .mca_component_name = "correlated",
        MCA_BASE_MAKE_VERSION(component, CORRELATED_VERSION_MAJOR, CORRELATED_VERSION_MINOR,
                              CORRELATED_VERSION_RELEASE),
    },
    .collm_data = { MCA_BASE_METADATA_PARAM_NONE },
    .collm_init_query = init_query,
    .collm_comm_query = comm_query,
};

/* Does the user's list of components, `a,b` or `^a,b`, have us? */
static bool is_wanted(const char *list)
{
    if (NULL == list || '\0' == list[0]) {
        return true;
    }
    bool excludes = '^' == list[0], named = false;
    char *words = strdup(excludes ? list + 1 : list), *rest = NULL;
    for (char *word = strtok_r(words, ",", &rest); NULL != word;
         word = strtok_r(NULL, ",", &rest)) {
        named = named || 0 == strcmp(word, "correlated");
    }
    free(words);
    return named != excludes;
}

void mca_coll_correlated_open(void)
{
    if (!(mca_vprotocol_correlated_collectives || counts_nonblocking())
        || !is_wanted(mca_vprotocol_correlated_selection("coll"))) {
        return;
    }
    mca_base_component_list_item_t *item = OBJ_NEW(mca_base_component_list_item_t);
    if (NULL != item) {
        item->cli_component = (const mca_base_component_t *) &component;
        opal_list_append(&ompi_coll_base_framework.framework_components, &item->super);
    }
}

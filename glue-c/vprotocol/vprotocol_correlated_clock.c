/*
 * The collective component "correlated_clock": collectives of other components that bypass the
 * engine (docs/adr/0038). What they have under way is in no image. In a protected job whose sets
 * are all rolled back together, blocking ones are counted, so that a checkpoint can wait until none
 * is half done; in all other protected jobs, after a restart, and where they do not block, the
 * functions of the component below are put in their place. Communicators on which nothing bypasses
 * the engine have none of this.
 */
#include "vprotocol_correlated_collectives.h"

#include "glue_clock.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/base/coll_base_util.h"
#include "opal/mca/base/base.h"

/* Above all: what is enabled after it is not seen. */
#define PRIORITY 100
/* Most components that are told apart on one communicator. */
#define COMPONENTS_MAX 16

typedef struct {
    mca_coll_base_module_t super;
    mca_coll_base_comm_coll_t past;  /* those that bypass the engine */
    mca_coll_base_comm_coll_t below; /* those that take their place */
    uint32_t handle;
} clock_module_t;

#define EACH_BLOCKING(DO)                                                                          \
    CORRELATED_EACH_EQUAL_COLLECTIVE(DO)                                                           \
    CORRELATED_EACH_VARYING_COLLECTIVE(DO)

/* Those that are never counted. */
#define EACH_OTHER(DO)                                                                             \
    CORRELATED_EACH_NONBLOCKING_COLLECTIVE(DO)                                                     \
    DO(neighbor_allgather)                                                                         \
    DO(neighbor_allgatherv)                                                                        \
    DO(neighbor_alltoall)                                                                          \
    DO(neighbor_alltoallv)                                                                         \
    DO(neighbor_alltoallw)                                                                         \
    DO(allgather_init)                                                                             \
    DO(allgatherv_init)                                                                            \
    DO(allreduce_init)                                                                             \
    DO(alltoall_init)                                                                              \
    DO(alltoallv_init)                                                                             \
    DO(alltoallw_init)                                                                             \
    DO(barrier_init)                                                                               \
    DO(bcast_init)                                                                                 \
    DO(exscan_init)                                                                                \
    DO(gather_init)                                                                                \
    DO(gatherv_init)                                                                               \
    DO(reduce_init)                                                                                \
    DO(reduce_scatter_block_init)                                                                  \
    DO(reduce_scatter_init)                                                                        \
    DO(scan_init)                                                                                  \
    DO(scatter_init)                                                                               \
    DO(scatterv_init)                                                                              \
    DO(neighbor_allgather_init)                                                                    \
    DO(neighbor_allgatherv_init)                                                                   \
    DO(neighbor_alltoall_init)                                                                     \
    DO(neighbor_alltoallv_init)                                                                    \
    DO(neighbor_alltoallw_init)

static void construct(clock_module_t *module)
{
    memset(&module->past, 0, sizeof(module->past));
    memset(&module->below, 0, sizeof(module->below));
    module->handle = RUSTBTL_NOT_COUNTED;
}

static void destruct(clock_module_t *module)
{
#define RELEASE(name)                                                                              \
    if (NULL != module->past.coll_##name##_module) {                                               \
        OBJ_RELEASE(module->past.coll_##name##_module);                                            \
        OBJ_RELEASE(module->below.coll_##name##_module);                                           \
    }
    EACH_BLOCKING(RELEASE)
#undef RELEASE
}

static OBJ_CLASS_INSTANCE(clock_module_t, mca_coll_base_module_t, construct, destruct);

/* ---- who bypasses the engine ---------------------------------------------------------------- */

static bool is_in(const char *name, const char *const *names)
{
    for (; NULL != *names; names++) {
        if (0 == strcmp(name, *names)) {
            return true;
        }
    }
    return false;
}

/* Theirs are messages, or our own. */
static const char *const over_messages[] = { "adapt", "basic", "correlated", "han",  "inter",
                                             "libnbc", "self", "tuned",      NULL };
/* They pass on to what was below them when they were enabled. */
static const char *const passing_on[] = { "accelerator", "cuda", "monitoring", "sync", NULL };

/* What module_list says of a function, `at` its place in a module. */
typedef struct {
    bool bypasses;
    mca_coll_base_module_t *below; /* or NULL */
    const char *by;
} found_t;

static found_t look(const ompi_communicator_t *comm, size_t at)
{
    found_t found = { false, NULL, "" };
    mca_coll_base_avail_coll_t *avail;
    /* In the order in which they were enabled. */
    OPAL_LIST_FOREACH(avail, comm->c_coll->module_list, mca_coll_base_avail_coll_t)
    {
        void *function;
        memcpy(&function, (const char *) avail->ac_module + at, sizeof(function));
        if (NULL == function || is_in(avail->ac_component_name, passing_on)) {
            continue;
        }
        found.by = avail->ac_component_name;
        found.bypasses = !is_in(found.by, over_messages);
        /* 4.1's han calls what is in the table where it cannot work: that would be ours. */
        if (!found.bypasses && 0 != strcmp(found.by, "han")) {
            found.below = avail->ac_module;
        }
    }
    return found;
}

#define LOOK(name) look(comm, offsetof(mca_coll_base_module_t, coll_##name))

/* Is there anything in the table to look at? Nearly always not. */
static bool is_any_there(const ompi_communicator_t *comm)
{
    const mca_coll_base_module_t *suspects[COMPONENTS_MAX];
    int count = 0;
    bool is_there = false;
    mca_coll_base_avail_coll_t *avail;
    OPAL_LIST_FOREACH(avail, comm->c_coll->module_list, mca_coll_base_avail_coll_t)
    {
        if (!is_in(avail->ac_component_name, over_messages)) {
            if (COMPONENTS_MAX == count) {
                return true;
            }
            suspects[count++] = avail->ac_module;
        }
    }
    if (0 == count) {
        return false;
    }
#define COMPARE(name)                                                                              \
    for (int i = 0; i < count; i++) {                                                              \
        is_there = is_there || comm->c_coll->coll_##name##_module == suspects[i];                  \
    }
    EACH_BLOCKING(COMPARE)
    EACH_OTHER(COMPARE)
#undef COMPARE
    return is_there;
}

static void say(const char *function, const char *component, const char *what)
{
    char line[160];
    (void) snprintf(line, sizeof(line), "collectives: %s of component %s %s", function, component,
                    what);
    rustbtl_glue_verbose(20, line);
}

/* Put the function below in its place. */
#define TAKE_OUT(name)                                                                             \
    if (NULL != comm->c_coll->coll_##name && (found = LOOK(name)).bypasses) {                      \
        if (NULL == found.below) {                                                                 \
            say(#name, found.by, "stays: no component below has it");                            \
            rustbtl_clock_uncovered();                                                             \
        } else if (comm->c_coll->coll_##name##_module != found.below) {                            \
            say(#name, found.by, "bypasses rustbtl: the one below is used");                     \
            OBJ_RETAIN(found.below);                                                               \
            OBJ_RELEASE(comm->c_coll->coll_##name##_module);                                       \
            comm->c_coll->coll_##name = found.below->coll_##name;                                  \
            comm->c_coll->coll_##name##_module = found.below;                                      \
        }                                                                                          \
    }

/* Tests: as if there were no clock. */
static bool is_off(void)
{
    return NULL == getenv("RUSTBTL_GUARDIAN_FD") || NULL != getenv("RUSTBTL_NO_COLLECTIVE_CLOCK");
}

void mca_coll_correlated_take_out(ompi_communicator_t *comm)
{
    found_t found;
    if (is_off() || !is_any_there(comm)) {
        return;
    }
    EACH_BLOCKING(TAKE_OUT)
    EACH_OTHER(TAKE_OUT)
}

/* ---- the collectives ------------------------------------------------------------------------ */

#define BUFFER const void *from, int from_count, ompi_datatype_t *from_type
#define COUNTS const int *from_counts, const int *from_at
#define RESULT void *into, int into_count, ompi_datatype_t *into_type
#define VARYING void *into, const int *into_counts, const int *into_at
#define FOLD ompi_datatype_t *type, ompi_op_t *op
#define UNPACKED(...) __VA_ARGS__

#define COUNTED(name, tag, parameters, arguments)                                                  \
    static int name(UNPACKED parameters ompi_communicator_t *comm, mca_coll_base_module_t *super)  \
    {                                                                                              \
        clock_module_t *module = (clock_module_t *) super;                                         \
        if (OPAL_UNLIKELY(0 == rustbtl_clock_enter(module->handle, tag))) {                        \
            return module->below.coll_##name(UNPACKED arguments comm,                              \
                                             module->below.coll_##name##_module);                  \
        }                                                                                          \
        int rc = module->past.coll_##name(UNPACKED arguments comm,                                 \
                                          module->past.coll_##name##_module);                      \
        rustbtl_clock_leave();                                                                     \
        return rc;                                                                                 \
    }

#define TAG(name) MCA_COLL_BASE_TAG_##name
COUNTED(barrier, TAG(BARRIER), (), ())
COUNTED(bcast, TAG(BCAST), (void *into, int count, ompi_datatype_t *type, int root, ),
        (into, count, type, root, ))
COUNTED(allreduce, TAG(ALLREDUCE), (const void *from, void *into, int count, FOLD, ),
        (from, into, count, type, op, ))
COUNTED(scan, TAG(SCAN), (const void *from, void *into, int count, FOLD, ),
        (from, into, count, type, op, ))
COUNTED(exscan, TAG(EXSCAN), (const void *from, void *into, int count, FOLD, ),
        (from, into, count, type, op, ))
COUNTED(reduce_scatter_block, TAG(REDUCE_SCATTER_BLOCK),
        (const void *from, void *into, int count, FOLD, ), (from, into, count, type, op, ))
COUNTED(reduce_scatter, TAG(REDUCE_SCATTER),
        (const void *from, void *into, const int *counts, FOLD, ), (from, into, counts, type, op, ))
COUNTED(reduce, TAG(REDUCE), (const void *from, void *into, int count, FOLD, int root, ),
        (from, into, count, type, op, root, ))

#define EACH (from, from_count, from_type, into, into_count, into_type, )
COUNTED(allgather, TAG(ALLGATHER), (BUFFER, RESULT, ), EACH)
COUNTED(alltoall, TAG(ALLTOALL), (BUFFER, RESULT, ), EACH)
COUNTED(gather, TAG(GATHER), (BUFFER, RESULT, int root, ),
        (from, from_count, from_type, into, into_count, into_type, root, ))
COUNTED(scatter, TAG(SCATTER), (BUFFER, RESULT, int root, ),
        (from, from_count, from_type, into, into_count, into_type, root, ))
COUNTED(allgatherv, TAG(ALLGATHERV), (BUFFER, VARYING, ompi_datatype_t *into_type, ),
        (from, from_count, from_type, into, into_counts, into_at, into_type, ))
COUNTED(gatherv, TAG(GATHERV), (BUFFER, VARYING, ompi_datatype_t *into_type, int root, ),
        (from, from_count, from_type, into, into_counts, into_at, into_type, root, ))
COUNTED(scatterv, TAG(SCATTERV),
        (const void *from, COUNTS, ompi_datatype_t *from_type, RESULT, int root, ),
        (from, from_counts, from_at, from_type, into, into_count, into_type, root, ))

#define PAIRS (from, from_counts, from_at, from_type, into, into_counts, into_at, into_type, )
COUNTED(alltoallv, TAG(ALLTOALLV),
        (const void *from, COUNTS, ompi_datatype_t *from_type, VARYING,
         ompi_datatype_t *into_type, ),
        PAIRS)
COUNTED(alltoallw, TAG(ALLTOALLW),
        (const void *from, COUNTS, ompi_datatype_t *const *from_type, VARYING,
         ompi_datatype_t *const *into_type, ),
        PAIRS)

/* ---- the component -------------------------------------------------------------------------- */

/* OMPI_ERR_NOT_AVAILABLE: nothing of ours is needed, and Open MPI forgets this module. */
static int enable(mca_coll_base_module_t *super, ompi_communicator_t *comm)
{
    clock_module_t *module = (clock_module_t *) super;
    found_t found;
    bool counts = false;
    if (!is_any_there(comm)) {
        return OMPI_ERR_NOT_AVAILABLE;
    }
    EACH_OTHER(TAKE_OUT)
    if (!OMPI_COMM_IS_INTER(comm)) {
#define COVERED(name)                                                                              \
    if (NULL != comm->c_coll->coll_##name) {                                                       \
        found = LOOK(name);                                                                        \
        counts = counts || (found.bypasses && NULL != found.below);                                \
    }
        EACH_BLOCKING(COVERED)
#undef COVERED
    }
    if (counts) {
        module->handle = rustbtl_clock_register(comm, (uint32_t) ompi_comm_size(comm),
                                                correlated_context(comm));
    }
    if (RUSTBTL_NOT_COUNTED == module->handle) {
        EACH_BLOCKING(TAKE_OUT)
        return OMPI_ERR_NOT_AVAILABLE;
    }
    /* What is there would be destroyed when ours takes its place. */
#define COUNT(name)                                                                                \
    if (NULL != comm->c_coll->coll_##name && (found = LOOK(name)).bypasses) {                      \
        if (NULL == found.below) {                                                                 \
            say(#name, found.by, "is not counted: no component below has it");                   \
            rustbtl_clock_uncovered();                                                             \
        } else {                                                                                   \
            say(#name, found.by, "bypasses rustbtl: it is counted");                             \
            module->past.coll_##name = comm->c_coll->coll_##name;                                  \
            module->past.coll_##name##_module = comm->c_coll->coll_##name##_module;                \
            OBJ_RETAIN(module->past.coll_##name##_module);                                         \
            module->below.coll_##name = found.below->coll_##name;                                  \
            module->below.coll_##name##_module = found.below;                                      \
            OBJ_RETAIN(found.below);                                                               \
            super->coll_##name = name;                                                             \
        }                                                                                          \
    }
    EACH_BLOCKING(COUNT)
#undef COUNT
    return OMPI_SUCCESS;
}

static int init_query(bool progress_threads, bool mpi_threads)
{
    (void) progress_threads;
    (void) mpi_threads;
    return OMPI_SUCCESS;
}

static mca_coll_base_module_t *comm_query(ompi_communicator_t *comm, int *priority)
{
    *priority = -1;
    if (mca_vprotocol_correlated_pml.pml_isend != mca_pml.pml_isend
        || (2 > ompi_comm_size(comm) && !OMPI_COMM_IS_INTER(comm))) {
        return NULL;
    }
    clock_module_t *module = OBJ_NEW(clock_module_t);
    if (NULL == module) {
        return NULL;
    }
    *priority = PRIORITY;
    module->super.coll_module_enable = enable;
    return &module->super;
}

static mca_coll_base_component_t component = {
    .collm_version = {
        CORRELATED_COLL_VERSION,
        .mca_component_name = "correlated_clock",
        MCA_BASE_MAKE_VERSION(component, CORRELATED_VERSION_MAJOR, CORRELATED_VERSION_MINOR,
                              CORRELATED_VERSION_RELEASE),
    },
    .collm_data = { MCA_BASE_METADATA_PARAM_NONE },
    .collm_init_query = init_query,
    .collm_comm_query = comm_query,
};

/* Whatever list of components the user gives: it is of the protection, not of collectives. */
void mca_coll_correlated_clock_open(void)
{
    if (is_off()) {
        return;
    }
    mca_base_component_list_item_t *item = OBJ_NEW(mca_base_component_list_item_t);
    if (NULL != item) {
        item->cli_component = (const mca_base_component_t *) &component;
        opal_list_append(&ompi_coll_base_framework.framework_components, &item->super);
    }
}

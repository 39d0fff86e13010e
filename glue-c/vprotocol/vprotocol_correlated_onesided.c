/*
 * The one-sided component "correlated": windows are made and freed here. Accesses and epochs are in
 * vprotocol_correlated_accesses.c and vprotocol_correlated_epochs.c; what happens is Rust
 * (component/src/mpi/one_sided, docs/adr/0037).
 *
 * It is no DSO of its own: the PML's init appends it to the framework's list, which is open by then
 * and not searched yet. So no list of components that the user gives hides it.
 */
#include "vprotocol_correlated_onesided.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ompi/mca/osc/base/base.h"
#include "ompi/mca/pml/pml.h"
#include "opal/mca/base/base.h"
#include "opal/util/info.h"

/* Of what MPI_Win_allocate gives. */
#define ALIGNMENT 64
#define PAGE 4096u
/* Of sharing memory whose name is gone when a rank looks for it. */
#define ATTEMPTS 4
/* Above all of Open MPI's but the one that only watches. */
#define PRIORITY 1000

static int component_init(bool progress_threads, bool mpi_threads)
{
    (void) progress_threads;
    (void) mpi_threads;
    return OMPI_SUCCESS;
}

static int component_query(struct ompi_win_t *win, void **base, size_t size, int unit,
                           struct ompi_communicator_t *comm, struct opal_info_t *info, int flavor)
{
    (void) win;
    (void) base;
    (void) size;
    (void) unit;
    (void) comm;
    (void) info;
    (void) flavor;
    bool ours = mca_vprotocol_correlated_pml.pml_isend == mca_pml.pml_isend;
    return mca_vprotocol_correlated_one_sided && ours ? PRIORITY : -1;
}

static int component_finalize(void)
{
    return OMPI_SUCCESS;
}

static bool info_is_true(struct opal_info_t *info, const char *key)
{
    bool value = false;
    int found = 0;
    if (NULL != info) {
        (void) opal_info_get_bool(info, (char *) key, &value, &found);
    }
    return found && value;
}

int mca_osc_correlated_error(int32_t outcome)
{
    switch (outcome) {
    case RUSTBTL_RMA_OK:
        return OMPI_SUCCESS;
    case RUSTBTL_RMA_WINDOW:
        return MPI_ERR_WIN;
    case RUSTBTL_RMA_RANK:
        return MPI_ERR_RANK;
    case RUSTBTL_RMA_SYNC:
        return MPI_ERR_RMA_SYNC;
    case RUSTBTL_RMA_CONFLICT:
        return MPI_ERR_RMA_CONFLICT;
    case RUSTBTL_RMA_RANGE:
        return MPI_ERR_RMA_RANGE;
    case RUSTBTL_RMA_ATTACH:
        return MPI_ERR_RMA_ATTACH;
    case RUSTBTL_RMA_FLAVOR:
        return MPI_ERR_RMA_FLAVOR;
    case RUSTBTL_RMA_OP:
        return MPI_ERR_OP;
    case RUSTBTL_RMA_TYPE:
        return MPI_ERR_TYPE;
    default:
        return MPI_ERR_INTERN;
    }
}

/* ---- a window's memory --------------------------------------------------------------------- */

static void window_release(mca_osc_correlated_window_t *window)
{
    rustbtl_window_memory_unmap(window->attached, window->attached_bytes);
    free(window->memory);
    if (NULL != window->mapped) {
        rustbtl_window_memory_disown(window->mapped);
    }
    if (NULL != window->comm) {
        ompi_comm_free(&window->comm);
    }
    free(window->bytes);
    free(window->units);
    free(window->counts);
    free(window->bases);
    free(window);
}

/* Of one rank. */
typedef struct {
    uint64_t bytes;
    uint64_t unit;
} extent_t;

/* All ranks' sizes and units: each collective between nodes is a round of messages. */
static int gather(mca_osc_correlated_window_t *window, size_t size, int unit)
{
    ompi_communicator_t *comm = window->comm;
    const extent_t own = { .bytes = size, .unit = (uint32_t) unit };
    size_t ranks = (size_t) window->size;
    extent_t *all = calloc(ranks, sizeof(*all));
    window->bytes = calloc(ranks, sizeof(*window->bytes));
    window->units = calloc(ranks, sizeof(*window->units));
    window->counts = calloc(ranks, sizeof(*window->counts));
    int rc = OMPI_ERR_OUT_OF_RESOURCE;
    if (NULL != all && NULL != window->bytes && NULL != window->units && NULL != window->counts) {
        rc = comm->c_coll->coll_allgather(&own, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, comm,
                                          comm->c_coll->coll_allgather_module);
    }
    for (size_t rank = 0; OMPI_SUCCESS == rc && rank < ranks; rank++) {
        window->bytes[rank] = all[rank].bytes;
        window->units[rank] = (uint32_t) all[rank].unit;
    }
    free(all);
    return rc;
}

/* Has each rank what it needs? */
static int all_have(ompi_communicator_t *comm, bool own)
{
    int has = own, all = 0;
    int rc = comm->c_coll->coll_allreduce(&has, &all, 1, MPI_INT, MPI_MIN, comm,
                                          comm->c_coll->coll_allreduce_module);
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    return all ? OMPI_SUCCESS : OMPI_ERR_OUT_OF_RESOURCE;
}

static size_t pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* What the first rank has made, for the others. */
typedef struct {
    int32_t made; /* enum rustbtl_memory */
    uint8_t name[RUSTBTL_MEMORY_NAME];
} memory_t;

/* One attempt: enum rustbtl_memory, the worst of all ranks', or an error below 0. */
static int share_once(mca_osc_correlated_window_t *window)
{
    ompi_communicator_t *comm = window->comm;
    const char *folder = mca_vprotocol_correlated_config.shm_directory;
    memory_t memory = { .made = RUSTBTL_MEMORY_NONE };
    int worst = RUSTBTL_MEMORY_NONE;
    if (0 == window->rank) {
        memory.made = rustbtl_window_memory_make(folder, window->attached_bytes, memory.name,
                                                 &window->attached);
    }
    int rc = comm->c_coll->coll_bcast(&memory, (int) sizeof(memory), MPI_BYTE, 0, comm,
                                      comm->c_coll->coll_bcast_module);
    if (OMPI_SUCCESS == rc && RUSTBTL_MEMORY_HERE == memory.made) {
        int mapped = RUSTBTL_MEMORY_HERE;
        if (0 != window->rank) {
            mapped = rustbtl_window_memory_map(folder, window->attached_bytes, memory.name,
                                               &window->attached);
        }
        rc = comm->c_coll->coll_allreduce(&mapped, &worst, 1, MPI_INT, MPI_MAX, comm,
                                          comm->c_coll->coll_allreduce_module);
    }
    if (0 == window->rank && RUSTBTL_MEMORY_HERE == memory.made) {
        rustbtl_window_memory_unname(folder, memory.name);
    }
    if (OMPI_SUCCESS != rc || RUSTBTL_MEMORY_HERE != worst) {
        rustbtl_window_memory_unmap(window->attached, window->attached_bytes);
        window->attached = NULL;
    }
    return OMPI_SUCCESS == rc ? worst : rc;
}

/* The first rank makes the memory, all map it; its name is gone before the window is there. A rank
 * that was restored in between finds the name gone: all begin again. A rank's memory begins where
 * that of the one before it ends, unless the user does not need that. */
static int share(mca_osc_correlated_window_t *window, bool apart)
{
    size_t all = 0;
    int got = RUSTBTL_MEMORY_GONE;
    window->bases = calloc((size_t) window->size, sizeof(*window->bases));
    if (NULL == window->bases) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (int rank = 0; rank < window->size; rank++) {
        size_t bytes = (size_t) window->bytes[rank];
        all += apart ? pages(bytes) : bytes;
    }
    window->attached_bytes = pages(all) + PAGE;
    for (int attempt = 0; RUSTBTL_MEMORY_GONE == got && attempt < ATTEMPTS; attempt++) {
        got = share_once(window);
    }
    if (RUSTBTL_MEMORY_HERE != got) {
        return got < 0 ? got : OMPI_ERR_OUT_OF_RESOURCE;
    }
    uint8_t *at = window->attached;
    for (int rank = 0; rank < window->size; rank++) {
        size_t bytes = (size_t) window->bytes[rank];
        /* As Open MPI: no address for nothing, where parts need not follow each other. */
        window->bases[rank] = apart && 0 == bytes ? NULL : at;
        at += apart ? pages(bytes) : bytes;
    }
    return OMPI_SUCCESS;
}

/* The window's memory of this rank, or NULL with an error. */
static int make_memory(mca_osc_correlated_window_t *window, void **base, size_t size, bool apart)
{
    if (MPI_WIN_FLAVOR_SHARED == window->flavor && 1 < window->size) {
        int rc = share(window, apart);
        if (OMPI_SUCCESS == rc) {
            *base = window->bases[window->rank];
        }
        return rc;
    }
    if (MPI_WIN_FLAVOR_ALLOCATE == window->flavor && 1 < window->size) {
        bool is_for_all = 0 != size && size <= mca_vprotocol_correlated_window_mapped_max;
        window->mapped = rustbtl_window_memory_own(size, is_for_all);
        if (NULL != window->mapped) {
            *base = window->mapped;
            return OMPI_SUCCESS;
        }
    }
    if (MPI_WIN_FLAVOR_ALLOCATE == window->flavor || MPI_WIN_FLAVOR_SHARED == window->flavor) {
        if (0 != posix_memalign(&window->memory, ALIGNMENT, 0 == size ? ALIGNMENT : size)) {
            window->memory = NULL;
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
        *base = window->memory;
    }
    return OMPI_SUCCESS;
}

/* ---- functions of the module --------------------------------------------------------------- */

static int shared_query(struct ompi_win_t *win, int rank, size_t *size, int *unit, void *base)
{
    mca_osc_correlated_window_t *window = correlated_window(win);
    if (MPI_WIN_FLAVOR_SHARED != window->flavor) {
        return MPI_ERR_RMA_FLAVOR;
    }
    if (MPI_PROC_NULL == rank) {
        rank = 0;
        while (rank < window->size - 1 && 0 == window->bytes[rank]) {
            rank++;
        }
    }
    *size = (size_t) window->bytes[rank];
    *unit = (int) window->units[rank];
    *(void **) base = NULL == window->bases ? window->memory : window->bases[rank];
    return OMPI_SUCCESS;
}

static int attach(struct ompi_win_t *win, void *base, size_t size)
{
    return mca_osc_correlated_error(
        rustbtl_window_attach(correlated_window(win)->window, base, size));
}

static int detach(struct ompi_win_t *win, const void *base)
{
    return mca_osc_correlated_error(rustbtl_window_detach(correlated_window(win)->window, base));
}

static int free_window(struct ompi_win_t *win)
{
    mca_osc_correlated_window_t *window = correlated_window(win);
    ompi_communicator_t *comm = window->comm;
    int rc = mca_osc_correlated_error(rustbtl_window_may_free(window->window));
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    rc = comm->c_coll->coll_barrier(comm, comm->c_coll->coll_barrier_module);
    if (OMPI_SUCCESS == rc) {
        rc = mca_osc_correlated_error(rustbtl_window_free(window->window));
    }
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    win->w_osc_module = NULL;
    window_release(window);
    return OMPI_SUCCESS;
}

/* ---- the component ------------------------------------------------------------------------- */

static int component_select(struct ompi_win_t *win, void **base, size_t size, int unit,
                            struct ompi_communicator_t *comm, struct opal_info_t *info, int flavor,
                            int *model)
{
    if (MPI_WIN_FLAVOR_SHARED == flavor && ompi_group_have_remote_peers(comm->c_local_group)) {
        return OMPI_ERR_RMA_SHARED;
    }
    mca_osc_correlated_window_t *window = calloc(1, sizeof(*window));
    if (NULL == window) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    mca_vprotocol_correlated_outcomes_with_windows();
    int rc = ompi_comm_dup(comm, &window->comm);
    if (OMPI_SUCCESS != rc) {
        window->comm = NULL;
        window_release(window);
        return rc;
    }
    window->rank = ompi_comm_rank(window->comm);
    window->size = ompi_comm_size(window->comm);
    window->flavor = flavor;
    mca_osc_correlated_accesses(&window->super);
    mca_osc_correlated_epochs(&window->super);
    window->super.osc_win_shared_query = shared_query;
    window->super.osc_win_attach = attach;
    window->super.osc_win_detach = detach;
    window->super.osc_free = free_window;
    bool is_dynamic = MPI_WIN_FLAVOR_DYNAMIC == flavor;
    bool no_locks = info_is_true(info, "no_locks");
    rc = gather(window, is_dynamic ? 0 : size, is_dynamic ? 1 : unit);
    if (OMPI_SUCCESS == rc) {
        rc = make_memory(window, base, size, info_is_true(info, "alloc_shared_noncontig"));
    }
    if (OMPI_SUCCESS == rc) {
        rustbtl_window_setup_t setup = {
            .bytes = window->bytes,
            .units = window->units,
            .base = is_dynamic ? NULL : *base,
            .comm = correlated_comm(window->comm),
            .rank = (uint32_t) window->rank,
            .size = (uint32_t) window->size,
            .flavor = (uint32_t) flavor,
            .no_locks = no_locks ? 1 : 0,
        };
        rc = mca_osc_correlated_error(rustbtl_window_make(&setup, &window->window));
    }
    /* Nobody uses the window before all have it. */
    bool made = OMPI_SUCCESS == rc;
    int all = all_have(window->comm, made);
    if (OMPI_SUCCESS != all) {
        if (made) {
            (void) rustbtl_window_free(window->window);
        }
        window_release(window);
        return made ? all : rc;
    }
    rustbtl_window_map(window->window, (uint8_t *const *) window->bases, (uint32_t) window->size);
    if (no_locks) {
        win->w_flags |= OMPI_WIN_NO_LOCKS;
    }
    win->w_osc_module = &window->super;
    *model = MPI_WIN_UNIFIED;
    char name[MPI_MAX_OBJECT_NAME];
    (void) snprintf(name, sizeof(name), "correlated window %u", correlated_context(window->comm));
    (void) ompi_win_set_name(win, name);
    if (MPI_WIN_FLAVOR_SHARED == flavor && 1 < window->size) {
        rustbtl_window(RUSTBTL_WINDOW_SHARED_MEMORY, comm, (uint32_t) window->size);
    }
    if (mca_vprotocol_correlated_threads) {
        rustbtl_window(RUSTBTL_WINDOW_THREADS, NULL, 0);
    }
    return OMPI_SUCCESS;
}

static ompi_osc_base_component_t component = {
    .osc_version = {
        OMPI_OSC_BASE_VERSION_3_0_0,
        .mca_component_name = "correlated",
        MCA_BASE_MAKE_VERSION(component, CORRELATED_VERSION_MAJOR, CORRELATED_VERSION_MINOR,
                              CORRELATED_VERSION_RELEASE),
    },
    .osc_data = { MCA_BASE_METADATA_PARAM_NONE },
    .osc_init = component_init,
    .osc_query = component_query,
    .osc_select = component_select,
    .osc_finalize = component_finalize,
};

/* All windows are ours, where our PML is selected. Another component need not look whether it could
 * take one: osc/rdma asks BTLs for each process of the window, and ranks of protected jobs have
 * none that reach any, which would be reported to the user as the end of his job. */
static int declines(struct ompi_win_t *win, void **base, size_t size, int unit,
                    struct ompi_communicator_t *comm, struct opal_info_t *info, int flavor)
{
    (void) win;
    (void) base;
    (void) size;
    (void) unit;
    (void) comm;
    (void) info;
    (void) flavor;
    return -1;
}

/* Our PML is the one that was selected. */
void mca_osc_correlated_enable(void)
{
    if (!mca_vprotocol_correlated_one_sided) {
        return;
    }
    mca_base_component_list_item_t *other;
    OPAL_LIST_FOREACH(other, &ompi_osc_base_framework.framework_components,
                      mca_base_component_list_item_t) {
        if ((const mca_base_component_t *) &component != other->cli_component) {
            ((ompi_osc_base_component_t *) other->cli_component)->osc_query = declines;
        }
    }
}

void mca_osc_correlated_open(void)
{
    if (!mca_vprotocol_correlated_one_sided) {
        return;
    }
    mca_osc_correlated_types();
    mca_base_component_list_item_t *item = OBJ_NEW(mca_base_component_list_item_t);
    if (NULL != item) {
        item->cli_component = (const mca_base_component_t *) &component;
        opal_list_append(&ompi_osc_base_framework.framework_components, &item->super);
    }
}

/* Windows of all flavours, so that a program does the same on each of them; used by one_sided_*.c.
 * Places are bytes from the begin of a rank's part: `at` makes a displacement of them. */
#ifndef WINDOWS_H
#define WINDOWS_H
#include "check.h"

enum flavour { CREATE, ALLOCATE, DYNAMIC, SHARED, FLAVOURS };
UNUSED static const char *const flavour_name[] = {"create", "allocate", "dynamic", "shared"};

struct window {
    MPI_Win win;
    MPI_Comm comm;
    int rank, ranks;
    unsigned char *base;
    MPI_Aint bytes;
    int unit;
    enum flavour flavour;
    MPI_Aint *start; /* of each rank: addresses in dynamic windows */
    unsigned char *raw;
};

/* True over stock Open MPI 4.1.4, which is wrong in what `why` says: that part is left out there. */
UNUSED static bool stock_fails(const char *why)
{
    const char *pml = getenv("OMPI_MCA_pml");
    (void)why;
    return pml && !strcmp(pml, "ob1");
}

UNUSED static bool on_one_node(MPI_Comm comm)
{
    MPI_Comm node;
    int here, all;
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &here);
    MPI_Comm_size(comm, &all);
    MPI_Comm_free(&node);
    MPI_Allreduce(MPI_IN_PLACE, &here, 1, MPI_INT, MPI_MIN, comm);
    return here == all;
}

/* A window of zeros. False if there can be none: shared memory of ranks on several nodes. */
UNUSED static bool window_open(struct window *w, enum flavour flavour, MPI_Comm comm,
                               MPI_Aint bytes, int unit)
{
    *w = (struct window){.comm = comm, .bytes = bytes, .unit = unit, .flavour = flavour};
    MPI_Comm_rank(comm, &w->rank);
    MPI_Comm_size(comm, &w->ranks);
    w->start = calloc((size_t)w->ranks, sizeof *w->start);
    const char *osc = getenv("OMPI_MCA_osc");
    bool is_pt2pt = osc && !strcmp(osc, "pt2pt"); /* stock's, which has no shared windows */
    if (flavour == SHARED && (is_pt2pt || !on_one_node(comm))) {
        free(w->start);
        return false;
    }
    STEP("window: %s of %ld bytes", flavour_name[flavour], (long)bytes);
    if (flavour == CREATE || flavour == DYNAMIC) {
        w->raw = calloc((size_t)bytes + 64, 1);
        w->base = w->raw + (64 - (uintptr_t)w->raw % 64) % 64;
    }
    if (flavour == CREATE)
        MPI_Win_create(w->base, bytes, unit, MPI_INFO_NULL, comm, &w->win);
    else if (flavour == ALLOCATE)
        MPI_Win_allocate(bytes, unit, MPI_INFO_NULL, comm, &w->base, &w->win);
    else if (flavour == SHARED)
        MPI_Win_allocate_shared(bytes, unit, MPI_INFO_NULL, comm, &w->base, &w->win);
    else {
        MPI_Aint mine;
        w->unit = 1;
        MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &w->win);
        if (bytes > 0)
            MPI_Win_attach(w->win, w->base, bytes);
        MPI_Get_address(w->base, &mine);
        MPI_Allgather(&mine, 1, MPI_AINT, w->start, 1, MPI_AINT, comm);
    }
    if (flavour == ALLOCATE || flavour == SHARED)
        memset(w->base, 0, (size_t)bytes);
    MPI_Barrier(comm); /* nobody accesses it before it is all zeros */
    return true;
}

UNUSED static void window_close(struct window *w)
{
    STEP("window: free %s", flavour_name[w->flavour]);
    if (w->flavour == DYNAMIC) {
        MPI_Barrier(w->comm); /* detaching is local: nobody may access it any more */
        if (w->bytes > 0)
            MPI_Win_detach(w->win, w->base);
    }
    MPI_Win_free(&w->win);
    CHECK(w->win == MPI_WIN_NULL, "a freed window is MPI_WIN_NULL");
    free(w->raw);
    free(w->start);
}

/* The displacement of a byte of a rank's part. */
UNUSED static MPI_Aint at(const struct window *w, int rank, MPI_Aint byte)
{
    return w->flavour == DYNAMIC ? MPI_Aint_add(w->start[rank], byte) : byte / w->unit;
}

/* The body on every flavour that is possible here. */
UNUSED static void on_all_flavours(MPI_Aint bytes, int unit, void (*body)(struct window *))
{
    for (int flavour = 0; flavour < FLAVOURS; flavour++) {
        struct window w;
        if (!window_open(&w, (enum flavour)flavour, MPI_COMM_WORLD, bytes, unit))
            continue;
        body(&w);
        window_close(&w);
    }
}

/* All ranks have done what they did to the windows of others, and see what was done to theirs;
 * in an epoch of MPI_Win_lock_all. */
UNUSED static void meet(struct window *w)
{
    MPI_Win_flush_all(w->win);
    MPI_Win_sync(w->win);
    MPI_Barrier(w->comm);
    MPI_Win_sync(w->win);
}
#endif

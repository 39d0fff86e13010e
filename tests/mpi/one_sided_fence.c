/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Fence: puts and gets of all sizes, from all to all, epoch after epoch without anything else
 * between; asserts; loads and stores of the owner; two windows whose epochs overlap. MPI 3.1
 * section 11.5.1. */
#include "windows.h"

enum { PART = 8192, ROOM = 6 * PART };

/* Everybody puts into a part of everybody; then everybody gets it, while others have put next to
 * it. A rank that has left a fence may be an epoch ahead: what it puts then must not be seen. */
static void all_to_all(struct window *w)
{
    unsigned char *out = buffer_new(PART), *in = buffer_new((size_t)w->ranks * PART);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, w->win);
    for (int round = 0; round < LENGTH(edge_sizes); round++) {
        size_t n = (size_t)edge_sizes[round] % (PART + 1);
        STEP("%s: all to all, round %d, %zu bytes", flavour_name[w->flavour], round, n);
        fill(out, n, key_of(me, 1, round, 0));
        for (int k = 0; k < w->ranks; k++) {
            int target = (me + k) % w->ranks;
            MPI_Put(out, (int)n, MPI_BYTE, target, at(w, target, me * PART), (int)n, MPI_BYTE,
                    w->win);
        }
        MPI_Win_fence(round % 2 ? 0 : MPI_MODE_NOSTORE | MPI_MODE_NOPUT, w->win);
        for (int k = 0; k < w->ranks; k++)
            VERIFY(w->base + k * PART, n, key_of(k, 1, round, 0), "put by all");
        for (int k = 0; k < w->ranks; k++)
            MPI_Get(in + k * PART, (int)n, MPI_BYTE, k, at(w, k, ((me + 1) % w->ranks) * PART),
                    (int)n, MPI_BYTE, w->win);
        MPI_Win_fence(MPI_MODE_NOSTORE, w->win);
        for (int k = 0; k < w->ranks; k++)
            VERIFY(in + k * PART, n, key_of((me + 1) % w->ranks, 1, round, 0), "got from all");
    }
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
    buffer_free(out);
    buffer_free(in);
}

/* The owner stores, others get; the others put, the owner loads. */
static void owner(struct window *w)
{
    int next = (me + 1) % w->ranks, previous = (me + w->ranks - 1) % w->ranks;
    long *mine = (long *)w->base, got[100], sent[100];
    MPI_Win_fence(0, w->win);
    for (int round = 0; round < 40; round++) {
        STEP("%s: stores and loads, round %d", flavour_name[w->flavour], round);
        for (int k = 0; k < 100; k++) {
            mine[k] = me * 1000000l + round * 1000 + k;
            sent[k] = -mine[k];
        }
        MPI_Win_fence(0, w->win);
        MPI_Get(got, 100, MPI_LONG, next, at(w, next, 0), 100, MPI_LONG, w->win);
        MPI_Put(sent, 100, MPI_LONG, next, at(w, next, 1000), 100, MPI_LONG, w->win);
        MPI_Win_fence(0, w->win);
        for (int k = 0; k < 100; k++) {
            CHECK_EQ(got[k], next * 1000000l + round * 1000 + k, "stored by the owner");
            CHECK_EQ(mine[125 + k], -(previous * 1000000l + round * 1000 + k), "put");
        }
        MPI_Win_fence(MPI_MODE_NOPUT, w->win); /* a get that is late must not see what comes next */
    }
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
}

/* Sums in one place by all, an epoch each. */
static void sums(struct window *w)
{
    int *mine = (int *)w->base;
    mine[0] = mine[1] = 0;
    MPI_Win_fence(0, w->win);
    for (int round = 1; round <= 25; round++) {
        int one = 1, x = me;
        STEP("%s: sums, round %d", flavour_name[w->flavour], round);
        for (int k = 0; k < w->ranks; k++) {
            MPI_Accumulate(&one, 1, MPI_INT, k, at(w, k, 0), 1, MPI_INT, MPI_SUM, w->win);
            MPI_Accumulate(&x, 1, MPI_INT, k, at(w, k, 4), 1, MPI_INT, MPI_MAX, w->win);
        }
        MPI_Win_fence(0, w->win);
        CHECK_EQ(mine[0], round * w->ranks, "one by each in each epoch");
        CHECK_EQ(mine[1], w->ranks - 1, "maximum");
        MPI_Win_fence(0, w->win);
    }
}

static void body(struct window *w)
{
    all_to_all(w);
    owner(w);
    MPI_Barrier(MPI_COMM_WORLD);
    sums(w);
    STEP("%s: fences in a row", flavour_name[w->flavour]);
    for (int k = 0; k < 50; k++)
        MPI_Win_fence(0, w->win);
}

static void two_windows(void)
{
    struct window a, b;
    int next = (me + 1) % np, previous = (me + np - 1) % np, x, y;
    window_open(&a, CREATE, MPI_COMM_WORLD, 64, 4);
    window_open(&b, ALLOCATE, MPI_COMM_WORLD, 64, 4);
    MPI_Win_fence(0, a.win);
    MPI_Win_fence(0, b.win);
    for (int round = 0; round < 30; round++) {
        STEP("two windows, round %d", round);
        x = me * 1000 + round;
        y = -x;
        MPI_Put(&x, 1, MPI_INT, next, at(&a, next, 4 * (round % 4)), 1, MPI_INT, a.win);
        MPI_Put(&y, 1, MPI_INT, next, at(&b, next, 4 * (round % 4)), 1, MPI_INT, b.win);
        MPI_Win_fence(0, round % 2 ? a.win : b.win);
        MPI_Win_fence(0, round % 2 ? b.win : a.win);
        CHECK_EQ(((int *)a.base)[round % 4], previous * 1000 + round, "the first window");
        CHECK_EQ(((int *)b.base)[round % 4], -(previous * 1000 + round), "the second window");
    }
    MPI_Win_fence(MPI_MODE_NOSUCCEED, a.win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, b.win);
    window_close(&b);
    window_close(&a);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    struct window w;
    on_all_flavours(ROOM, 4, body);
    window_open(&w, CREATE, MPI_COMM_WORLD, ROOM, 1);
    all_to_all(&w);
    window_close(&w);
    two_windows();
    return check_end();
}

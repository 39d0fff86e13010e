/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* lock_all and the flushes: after flush_local the origin's buffer may be used again, after flush
 * the target has it and whoever is told by a message sees it; one epoch for all of it. MPI 3.1
 * section 11.5.4. */
#include "windows.h"

enum { LONGS = 6000, BYTES = LONGS * 8 };

/* The buffer is overwritten at once after the local flush: what arrives is what it held. */
static void reuse(struct window *w, int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    long *x = malloc((size_t)n * sizeof *x), *mine = (long *)w->base;
    STEP("%s: buffers used again, %d longs", flavour_name[w->flavour], n);
    for (int part = 0; part < 6; part++) {
        for (int k = 0; k < n; k++)
            x[k] = me * 100000l + part * 10000 + k;
        MPI_Put(x, n, MPI_LONG, next, at(w, next, (MPI_Aint)part * n * 8), n, MPI_LONG, w->win);
        if (part % 2)
            MPI_Win_flush_local(next, w->win);
        else
            MPI_Win_flush_local_all(w->win);
        memset(x, -1, (size_t)n * sizeof *x);
    }
    meet(w);
    for (int part = 0; part < 6; part++)
        for (int k = 0; k < n; k++)
            CHECK_EQ(mine[part * n + k], previous * 100000l + part * 10000 + k, "put");
    meet(w);
    /* the same with accumulates and with what is fetched */
    for (int k = 0; k < n; k++)
        x[k] = 1;
    MPI_Accumulate(x, n, MPI_LONG, next, at(w, next, 0), n, MPI_LONG, MPI_SUM, w->win);
    MPI_Win_flush_local(next, w->win);
    for (int k = 0; k < n; k++)
        x[k] = -1000;
    MPI_Get(x, n, MPI_LONG, next, at(w, next, (MPI_Aint)n * 8), n, MPI_LONG, w->win);
    MPI_Win_flush_local(next, w->win);
    for (int k = 0; k < n; k++)
        CHECK_EQ(x[k], me * 100000l + 10000 + k, "a get is complete after the local flush");
    meet(w);
    for (int k = 0; k < n; k++)
        CHECK_EQ(mine[k], previous * 100000l + k + 1, "accumulated");
    meet(w);
    free(x);
}

/* A word goes round: put and flush, then a message to the next rank but one, which gets it. */
static void told(struct window *w)
{
    int target = (me + 1) % np, reader = (me + 2) % np, from = (me + 2 * np - 2) % np;
    int there = (from + 1) % np;
    long x, y, number;
    for (int round = 0; round < 25; round++) {
        STEP("%s: told by a message, round %d", flavour_name[w->flavour], round);
        x = me * 1000 + round;
        MPI_Put(&x, 1, MPI_LONG, target, at(w, target, 8 * (round % 2)), 1, MPI_LONG, w->win);
        if (round % 3)
            MPI_Win_flush(target, w->win);
        else
            MPI_Win_flush_all(w->win);
        MPI_Sendrecv(&x, 1, MPI_LONG, reader, 3, &number, 1, MPI_LONG, from, 3, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        y = -1;
        MPI_Get(&y, 1, MPI_LONG, there, at(w, there, 8 * (round % 2)), 1, MPI_LONG, w->win);
        MPI_Win_flush(there, w->win);
        CHECK_EQ(number, from * 1000 + round, "message");
        CHECK_EQ(y, number, "flushed before the message");
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* The owner is told, too, and looks by itself. */
static void owner_told(struct window *w)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    long x, number, *mine = (long *)w->base;
    for (int round = 0; round < 25; round++) {
        STEP("%s: the owner is told, round %d", flavour_name[w->flavour], round);
        x = me * 1000 + round;
        MPI_Put(&x, 1, MPI_LONG, next, at(w, next, 80), 1, MPI_LONG, w->win);
        MPI_Win_flush(next, w->win);
        MPI_Sendrecv(&x, 1, MPI_LONG, next, 4, &number, 1, MPI_LONG, previous, 4, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        MPI_Win_sync(w->win);
        CHECK_EQ(mine[10], previous * 1000 + round, "flushed before the message");
        MPI_Win_sync(w->win);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Many small ones to all, a flush at the end. */
static void many(struct window *w)
{
    enum { EACH = 150 };
    int x[EACH], *mine = (int *)w->base;
    STEP("%s: many", flavour_name[w->flavour]);
    for (int k = 0; k < EACH; k++)
        x[k] = me * 1000 + k;
    for (int k = 0; k < EACH; k++)
        for (int r = 0; r < np; r++) {
            int target = (me + r) % np;
            MPI_Put(&x[k], 1, MPI_INT, target, at(w, target, 4 * (me * EACH + k)), 1, MPI_INT,
                    w->win);
        }
    meet(w);
    for (int r = 0; r < np; r++)
        for (int k = 0; k < EACH; k++)
            CHECK_EQ(mine[r * EACH + k], r * 1000 + k, "many puts");
    meet(w);
}

static void body(struct window *w)
{
    MPI_Win_lock_all(0, w->win);
    reuse(w, 1);
    reuse(w, 100);
    reuse(w, 1000);
    told(w);
    owner_told(w);
    many(w);
    MPI_Win_unlock_all(w->win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(BYTES, 4, body);
    return check_end();
}

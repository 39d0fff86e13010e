/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Who waits for others by looking at its own window: with MPI_Win_sync and a load, by
 * compare-and-swap and flush, by get and flush, by fetching without an operation, inside of a lock
 * epoch. Operations on oneself are complete at once; the others must be heard all the same. MPI 3.1
 * sections 11.4, 11.5.4, 11.7.4. */
#include "windows.h"

enum way { SYNC, SWAP, GET, FETCH, WAYS };

/* Until word 0 of the own window is at least this. */
static void wait_for(struct window *w, long value, enum way way)
{
    volatile long *mine = (volatile long *)w->base;
    long got = -1;
    const long none = -1;
    for (;;) {
        if (way == SYNC) {
            MPI_Win_sync(w->win);
            got = mine[0];
        } else if (way == SWAP) {
            MPI_Compare_and_swap(&none, &none, &got, MPI_LONG, me, at(w, me, 0), w->win);
            MPI_Win_flush(me, w->win);
        } else if (way == GET) {
            MPI_Get(&got, 1, MPI_LONG, me, at(w, me, 0), 1, MPI_LONG, w->win);
            MPI_Win_flush_local(me, w->win);
        } else {
            MPI_Fetch_and_op(NULL, &got, MPI_LONG, me, at(w, me, 0), MPI_NO_OP, w->win);
            MPI_Win_flush_all(w->win);
        }
        if (got >= value)
            break;
    }
    MPI_Win_sync(w->win);
    CHECK_EQ(got, value, "nobody may be ahead");
}

/* A token goes round the ranks, with data in front of it. */
static void round_and_round(struct window *w, enum way way)
{
    enum { ROUNDS = 15, N = 50 };
    long *mine = (long *)w->base, x[N];
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    meet(w);
    memset(w->base, 0, (size_t)w->bytes);
    meet(w);
    for (long round = 1; round <= ROUNDS; round++) {
        STEP("%s: token, way %d, round %ld", flavour_name[w->flavour], way, round);
        if (me > 0 || round > 1) {
            long turn = me == 0 ? round - 1 : round;
            wait_for(w, turn, way);
            for (int k = 0; k < N; k++)
                CHECK_EQ(mine[1 + k], previous * 10000 + turn * 100 + k, "data of the token");
        }
        for (int k = 0; k < N; k++)
            x[k] = me * 10000 + round * 100 + k;
        MPI_Put(x, N, MPI_LONG, next, at(w, next, 8), N, MPI_LONG, w->win);
        MPI_Win_flush(next, w->win);
        MPI_Accumulate(&round, 1, MPI_LONG, next, at(w, next, 0), 1, MPI_LONG, MPI_REPLACE,
                       w->win);
        MPI_Win_flush(next, w->win);
    }
    if (me == 0)
        wait_for(w, ROUNDS, way);
    meet(w);
}

/* All wait for all: a barrier of counters. */
static void counters(struct window *w, enum way way)
{
    long one = 1;
    for (int round = 1; round <= 15; round++) {
        STEP("%s: counters, way %d, round %d", flavour_name[w->flavour], way, round);
        for (int k = 0; k < np; k++)
            MPI_Accumulate(&one, 1, MPI_LONG, k, at(w, k, 8 * (round % 2)), 1, MPI_LONG, MPI_SUM,
                           w->win);
        MPI_Win_flush_all(w->win);
        long want = (long)np * ((round + 1) / 2), got = 0;
        while (got < want) {
            if (way == SYNC) {
                MPI_Win_sync(w->win);
                got = ((volatile long *)w->base)[round % 2];
            } else {
                MPI_Fetch_and_op(NULL, &got, MPI_LONG, me, at(w, me, 8 * (round % 2)), MPI_NO_OP,
                                 w->win);
                MPI_Win_flush(me, w->win);
            }
        }
        CHECK_EQ(got, want, "nobody can be a round ahead of me");
    }
}

static void body(struct window *w)
{
    MPI_Win_lock_all(0, w->win);
    for (int way = 0; way < WAYS; way++) {
        round_and_round(w, (enum way)way);
        memset(w->base, 0, (size_t)w->bytes);
        meet(w);
        if (way != GET)
            counters(w, (enum way)way);
        meet(w);
    }
    MPI_Win_unlock_all(w->win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(512, 8, body);
    return check_end();
}

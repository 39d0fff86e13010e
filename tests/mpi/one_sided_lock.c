/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Locks: what an exclusive lock protects is never seen half done, readers share, locks of several
 * targets at a time, locks of oneself, NOCHECK, a holder that is away, empty epochs, rings. MPI 3.1
 * section 11.5.3. */
#include "windows.h"

enum { N = 300 };

/* Each rank adds to all words of each target, by get and put under the exclusive lock; readers
 * under the shared lock must see all words alike. */
static void writers_and_readers(struct window *w)
{
    long *x = malloc(N * sizeof *x), *mine = (long *)w->base;
    const int rounds = 12;
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, w->win);
    for (int k = 0; k < N; k++)
        mine[k] = 0;
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < np; k++) {
            int target = (me + k) % np;
            STEP("%s: writers and readers, round %d", flavour_name[w->flavour], round);
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, w->win);
            MPI_Get(x, N, MPI_LONG, target, at(w, target, 0), N, MPI_LONG, w->win);
            MPI_Win_flush(target, w->win);
            for (int i = N - 1; i >= 0; i--) {
                CHECK_EQ(x[i], x[0], "half of what another writer does");
                x[i]++;
            }
            MPI_Put(x, N / 2, MPI_LONG, target, at(w, target, 0), N / 2, MPI_LONG, w->win);
            MPI_Put(x + N / 2, N - N / 2, MPI_LONG, target, at(w, target, N / 2 * 8), N - N / 2,
                    MPI_LONG, w->win);
            MPI_Win_unlock(target, w->win);
            target = (target + 1) % np;
            MPI_Win_lock(MPI_LOCK_SHARED, target, 0, w->win);
            MPI_Get(x, N, MPI_LONG, target, at(w, target, 0), N, MPI_LONG, w->win);
            MPI_Win_unlock(target, w->win);
            for (int i = 0; i < N; i++)
                CHECK_EQ(x[i], x[0], "a reader sees a half");
        }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, me, 0, w->win);
    for (int k = 0; k < N; k++)
        CHECK_EQ(mine[k], rounds * np, "additions");
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(x);
}

/* Shared locks of all targets at the same time, by all; the last taken is the first released. */
static void several(struct window *w)
{
    int x[64];
    STEP("%s: locks of all targets", flavour_name[w->flavour]);
    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < np; k++)
            MPI_Win_lock(MPI_LOCK_SHARED, k, 0, w->win);
        for (int k = 0; k < np; k++) {
            x[k] = me * 100 + k + round;
            MPI_Put(&x[k], 1, MPI_INT, k, at(w, k, 4 * me), 1, MPI_INT, w->win);
        }
        for (int k = np - 1; k >= 0; k--)
            MPI_Win_unlock(k, w->win);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, w->win);
        for (int k = 0; k < np; k++)
            CHECK_EQ(((int *)w->base)[k], k * 100 + me + round, "put under a shared lock");
        MPI_Win_unlock(me, w->win);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* One holds the lock for a while: the others wait, then all come in. */
static void holder(struct window *w)
{
    long one = 1, seen = -1, *mine = (long *)w->base;
    STEP("%s: a holder that is away", flavour_name[w->flavour]);
    if (me == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w->win);
        mine[0] = mine[1] = 0;
        MPI_Win_unlock(0, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == np - 1) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w->win);
        MPI_Put(&one, 1, MPI_LONG, 0, at(w, 0, 8), 1, MPI_LONG, w->win);
        MPI_Win_flush(0, w->win);
        MPI_Barrier(MPI_COMM_WORLD); /* the others ask for the lock from now on */
        sleep_ms(20);
        long zero = 0;
        MPI_Put(&zero, 1, MPI_LONG, 0, at(w, 0, 8), 1, MPI_LONG, w->win);
        MPI_Win_unlock(0, w->win);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(me % 2 ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, 0, 0, w->win);
        MPI_Get(&seen, 1, MPI_LONG, 0, at(w, 0, 8), 1, MPI_LONG, w->win);
        MPI_Accumulate(&one, 1, MPI_LONG, 0, at(w, 0, 0), 1, MPI_LONG, MPI_SUM, w->win);
        MPI_Win_unlock(0, w->win);
        CHECK_EQ(seen, 0, "I came in while another had the exclusive lock");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, w->win);
        CHECK_EQ(mine[0], np - 1, "all came in");
        MPI_Win_unlock(0, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Who else may hold a lock is known: no lock is needed, but the epoch is. */
static void no_check(struct window *w)
{
    int x;
    if (stock_fails("osc/pt2pt: after MPI_MODE_NOCHECK of the own rank nobody gets its lock"))
        return;
    STEP("%s: NOCHECK", flavour_name[w->flavour]);
    for (int turn = 0; turn < np; turn++) {
        if (turn == me)
            for (int k = 0; k < np; k++) {
                x = turn * 10 + k;
                MPI_Win_lock(k % 2 ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, k, MPI_MODE_NOCHECK,
                             w->win);
                MPI_Put(&x, 1, MPI_INT, k, at(w, k, 16), 1, MPI_INT, w->win);
                MPI_Win_unlock(k, w->win);
            }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, MPI_MODE_NOCHECK, w->win);
        CHECK_EQ(*(int *)(w->base + 16), turn * 10 + me, "put without a lock");
        MPI_Win_unlock(me, w->win);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Win_lock_all(MPI_MODE_NOCHECK, w->win);
    x = me;
    MPI_Put(&x, 1, MPI_INT, (me + 1) % np, at(w, (me + 1) % np, 16), 1, MPI_INT, w->win);
    MPI_Win_unlock_all(w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, me, 0, w->win);
    CHECK_EQ(*(int *)(w->base + 16), (me + np - 1) % np, "put by lock_all without locks");
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void empty(struct window *w)
{
    STEP("%s: empty epochs", flavour_name[w->flavour]);
    for (int k = 0; k < 60; k++) {
        MPI_Win_lock(k % 3 ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, (me + k) % np, 0, w->win);
        if (k % 2)
            MPI_Win_flush((me + k) % np, w->win);
        MPI_Win_unlock((me + k) % np, w->win);
        MPI_Win_lock_all(0, w->win);
        if (k % 2)
            MPI_Win_flush_all(w->win);
        MPI_Win_unlock_all(w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* lock_all excludes an exclusive lock, and the other way. */
static void all_against_one(struct window *w)
{
    long x[2], *mine = (long *)w->base;
    STEP("%s: lock_all against exclusive locks", flavour_name[w->flavour]);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, w->win);
    mine[0] = mine[1] = 0;
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 1; round <= 30; round++) {
        int target = (me + round) % np;
        if (me % 2) {
            x[0] = x[1] = me * 1000 + round;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, w->win);
            MPI_Put(&x[0], 1, MPI_LONG, target, at(w, target, 0), 1, MPI_LONG, w->win);
            MPI_Win_flush(target, w->win);
            MPI_Put(&x[1], 1, MPI_LONG, target, at(w, target, 8), 1, MPI_LONG, w->win);
            MPI_Win_unlock(target, w->win);
        } else {
            MPI_Win_lock_all(0, w->win);
            MPI_Get(x, 2, MPI_LONG, target, at(w, target, 0), 2, MPI_LONG, w->win);
            MPI_Win_unlock_all(w->win);
            CHECK_EQ(x[0], x[1], "half of what was put under an exclusive lock");
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void hold_shared(struct window *w, int target)
{
    long x;
    MPI_Win_lock(MPI_LOCK_SHARED, target, 0, w->win);
    MPI_Get(&x, 1, MPI_LONG, target, at(w, target, 0), 1, MPI_LONG, w->win);
    MPI_Win_flush(target, w->win);
}

/* Two hold a shared lock each and want the other one's, two wait in front of them for an exclusive
 * one: so it is when two call MPI_Win_lock_all. Nobody waits for ever. */
static void ring(struct window *w)
{
    long x = 1;
    if (np < 4)
        return;
    STEP("%s: a ring of those who wait", flavour_name[w->flavour]);
    if (me < 2)
        hold_shared(w, me);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me < 2) {
        sleep_ms(20); /* the others ask for their locks meanwhile */
        hold_shared(w, 1 - me);
        MPI_Win_unlock(1 - me, w->win);
        MPI_Win_unlock(me, w->win);
    } else if (me < 4) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me - 2, 0, w->win);
        MPI_Put(&x, 1, MPI_LONG, me - 2, at(w, me - 2, 0), 1, MPI_LONG, w->win);
        MPI_Win_unlock(me - 2, w->win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void body(struct window *w)
{
    writers_and_readers(w);
    several(w);
    holder(w);
    no_check(w);
    empty(w);
    all_against_one(w);
    ring(w);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(N * 8, 4, body);
    return check_end();
}

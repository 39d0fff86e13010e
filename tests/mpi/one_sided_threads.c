/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; thread: multiple ; stock: fails */
/* MPI_THREAD_MULTIPLE: four threads with a window each, in all kinds of epochs; four threads with
 * atomics on one window; threads that use a window while others send, receive and make windows.
 * MPI 3.1 section 12.4. (Stock's osc/pt2pt refuses such programs, osc/rdma crashes in
 * compare-and-swap.) */
#include "threads.h"
#include "windows.h"

static MPI_Comm comms[THREADS];

/* A window of a thread's own; STEP is for the main thread only, so nothing here uses it. */
static void own_window(MPI_Comm comm, int number, bool create)
{
    enum { N = 300 };
    MPI_Win win;
    MPI_Group group;
    long *base, x[N], got[N], one = 1, old, mine = me + 1, none = 0, seen;
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    if (create)
        MPI_Win_create(base = malloc((N + 2) * 8), (N + 2) * 8, 8, MPI_INFO_NULL, comm, &win);
    else
        MPI_Win_allocate((N + 2) * 8, 8, MPI_INFO_NULL, comm, &base, &win);
    MPI_Comm_group(comm, &group);
    for (int round = 0; round < 6; round++) {
        for (int k = 0; k < N; k++)
            x[k] = me * 10000 + number * 1000 + round * 10 + k;
        base[N] = base[N + 1] = 0;
        MPI_Win_fence(0, win);
        MPI_Put(x, N, MPI_LONG, next, 0, N, MPI_LONG, win);
        MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
        for (int k = 0; k < N; k++)
            CHECK_EQ(base[k], previous * 10000 + number * 1000 + round * 10 + k, "fence");
        MPI_Win_post(group, 0, win);
        MPI_Win_start(group, 0, win);
        MPI_Accumulate(&one, 1, MPI_LONG, next, N, 1, MPI_LONG, MPI_SUM, win);
        MPI_Get(got, N, MPI_LONG, next, 0, N, MPI_LONG, win);
        MPI_Win_complete(win);
        MPI_Win_wait(win);
        for (int k = 0; k < N; k++)
            CHECK_EQ(got[k], x[k], "start");
        CHECK_EQ(base[N], 1, "post");
        MPI_Barrier(comm);
        for (int k = 0; k < 10; k++) {
            MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
            MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, N, MPI_SUM, win);
            MPI_Win_unlock(0, win);
            CHECK(old > k && old <= 10 * np, "counter %ld at step %d", old, k);
        }
        MPI_Win_lock_all(0, win);
        do {
            MPI_Compare_and_swap(&mine, &none, &seen, MPI_LONG, 0, N + 1, win);
            MPI_Win_flush(0, win);
        } while (seen);
        MPI_Compare_and_swap(&none, &mine, &seen, MPI_LONG, 0, N + 1, win);
        MPI_Win_flush(0, win);
        CHECK_EQ(seen, mine, "compare and swap");
        MPI_Win_unlock_all(win);
        MPI_Barrier(comm);
    }
    MPI_Group_free(&group);
    MPI_Win_free(&win);
    if (create)
        free(base);
}

static void *with_own_window(void *argument)
{
    struct thread *t = argument;
    own_window(t->comm, t->number, false);
    own_window(t->comm, t->number, true);
    return NULL;
}

/* One window for all threads, in one epoch of lock_all that the main thread has opened. */
enum { EACH = 60, WORDS = 64 };
static struct window common;

static void *with_common_window(void *argument)
{
    struct thread *t = argument;
    long one = 1, last = -1, sum = 0, old;
    MPI_Request r;
    for (int k = 0; k < EACH; k++) {
        int target = (me + k) % np;
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, at(&common, 0, 0), MPI_SUM, common.win);
        MPI_Win_flush(0, common.win);
        CHECK(old > last && old < (long)EACH * THREADS * np, "counter %ld after %ld", old, last);
        last = old;
        MPI_Accumulate(&one, 1, MPI_LONG, target, at(&common, target, 8 * (1 + t->number)), 1,
                       MPI_LONG, MPI_SUM, common.win);
        MPI_Rget_accumulate(&one, 1, MPI_LONG, &old, 1, MPI_LONG, me, at(&common, me, 8 * 10), 1,
                            MPI_LONG, MPI_SUM, common.win, &r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        sum += old >= 0;
        /* a place of this thread and rank alone */
        long x = k * 100 + t->number, y = -1;
        MPI_Aint mine = at(&common, target, 8 * (16 + me * THREADS + t->number));
        MPI_Put(&x, 1, MPI_LONG, target, mine, 1, MPI_LONG, common.win);
        MPI_Win_flush(target, common.win);
        MPI_Get(&y, 1, MPI_LONG, target, mine, 1, MPI_LONG, common.win);
        MPI_Win_flush(target, common.win);
        CHECK_EQ(y, x, "put and got back");
    }
    CHECK_EQ(sum, EACH, "fetched");
    return NULL;
}

static void one_window(enum flavour flavour)
{
    long *mine;
    if (!window_open(&common, flavour, MPI_COMM_WORLD, WORDS * 8, 8))
        return;
    mine = (long *)common.base;
    STEP("threads on one window: %s", flavour_name[flavour]);
    MPI_Win_lock_all(0, common.win);
    threads_run(with_common_window, NULL);
    meet(&common);
    if (me == 0)
        CHECK_EQ(mine[0], (long)EACH * THREADS * np, "counter");
    CHECK_EQ(mine[10], (long)EACH * THREADS, "of my own threads");
    long sum = 0;
    for (int k = 0; k < THREADS; k++)
        sum += mine[1 + k];
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQ(sum, (long)EACH * THREADS * np, "accumulated");
    MPI_Win_unlock_all(common.win);
    window_close(&common);
}

/* Threads 0 and 1: windows; threads 2 and 3: messages. */
static void *beside_messages(void *argument)
{
    struct thread *t = argument;
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    if (t->number < 2)
        own_window(t->comm, t->number, t->number);
    else
        for (int k = 0; k < 60; k++) {
            long x = me * 1000 + k, y = -1;
            MPI_Sendrecv(&x, 1, MPI_LONG, next, k, &y, 1, MPI_LONG, previous, k, t->comm,
                         MPI_STATUS_IGNORE);
            CHECK_EQ(y, previous * 1000 + k, "message");
        }
    return NULL;
}

int main(int argc, char **argv)
{
    check_begin_thread(&argc, &argv, MPI_THREAD_MULTIPLE);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[k]);
    STEP("main thread alone");
    own_window(comms[0], 0, false);
    STEP("threads with windows of their own");
    threads_run(with_own_window, comms);
    for (int flavour = 0; flavour < FLAVOURS; flavour++)
        one_window((enum flavour)flavour);
    STEP("windows beside messages");
    threads_run(beside_messages, comms);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_free(&comms[k]);
    return check_end();
}

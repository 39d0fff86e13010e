/* ranks: 2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* One-sided, passive target: lock, lock_all, flush, put, get, accumulate, get_accumulate,
 * fetch_and_op, compare_and_swap, request based operations; the target may be waiting in another
 * call. MPI 3.1 sections 11.3, 11.5. (Stock's default, osc rdma over vader, crashes in
 * MPI_Compare_and_swap.) */
#include "check.h"

static void counter(MPI_Win win, long *base)
{
    enum { N = 300 };
    long one = 1, old = -1, last = -1;
    STEP("fetch_and_op");
    base[0] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int k = 0; k < N; k++) {
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, win);
        MPI_Win_flush(0, win);
        CHECK(old > last && old < (long)N * np, "counter went from %ld to %ld", last, old);
        last = old;
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        CHECK_EQ(base[0], (long)N * np, "counter at the end");
        MPI_Win_unlock(0, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A spin lock from compare_and_swap around a read and a write that are not atomic. */
static void swap_lock(MPI_Win win, long *base)
{
    enum { N = 40 };
    long mine = me + 1, free_value = 0, seen = -1, x, zero = 0;
    STEP("compare_and_swap");
    base[0] = base[1] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int k = 0; k < N; k++) {
        do {
            MPI_Compare_and_swap(&mine, &free_value, &seen, MPI_LONG, 0, 0, win);
            MPI_Win_flush(0, win);
            CHECK(seen >= 0 && seen <= np && seen != mine, "lock word %ld", seen);
        } while (seen != 0);
        MPI_Get(&x, 1, MPI_LONG, 0, 1, 1, MPI_LONG, win);
        MPI_Win_flush(0, win);
        x++;
        MPI_Put(&x, 1, MPI_LONG, 0, 1, 1, MPI_LONG, win);
        MPI_Win_flush(0, win);
        MPI_Accumulate(&zero, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_REPLACE, win);
        MPI_Win_flush(0, win);
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        CHECK_EQ(base[1], (long)N * np, "protected counter");
        MPI_Win_unlock(0, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void exclusive(MPI_Win win, long *base, int n)
{
    int target = (me + 1) % np;
    long *x = malloc((size_t)n * sizeof *x);
    STEP("exclusive lock, %d longs", n);
    for (int k = 0; k < n; k++)
        base[k] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < 10; round++)
        for (int t = 0; t < np; t++) { /* everybody increments everything everywhere, under the lock
                                        */
            int who = (target + t) % np;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, who, 0, win);
            MPI_Get(x, n, MPI_LONG, who, 0, n, MPI_LONG, win);
            MPI_Win_flush(who, win);
            long first = x[0];
            for (int k = 0; k < n; k++) {
                CHECK_EQ(x[k], (1l + k) * first, "torn");
                x[k] += 1 + k;
            }
            MPI_Put(x, n, MPI_LONG, who, 0, n, MPI_LONG, win);
            MPI_Win_unlock(who, win);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, me, 0, win);
    for (int k = 0; k < n; k++)
        CHECK_EQ(base[k], (1l + k) * 10 * np, "increments");
    MPI_Win_unlock(me, win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(x);
}

static void get_accumulate(MPI_Win win, long *base, int n)
{
    long *x = malloc((size_t)n * sizeof *x), *old = malloc((size_t)n * sizeof *old);
    MPI_Request r[2];
    STEP("get_accumulate, %d longs", n);
    for (int k = 0; k < n; k++)
        base[k] = k;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    int target = (me + 1) % np;
    for (int k = 0; k < n; k++)
        x[k] = 100 + k;
    MPI_Get_accumulate(x, n, MPI_LONG, old, n, MPI_LONG, target, 0, n, MPI_LONG, MPI_SUM, win);
    MPI_Win_flush_local(target, win);
    for (int k = 0; k < n; k++)
        CHECK_EQ(old[k], k, "value before");
    MPI_Get_accumulate(NULL, 0, MPI_LONG, old, n, MPI_LONG, target, 0, n, MPI_LONG, MPI_NO_OP, win);
    MPI_Win_flush_all(win);
    for (int k = 0; k < n; k++)
        CHECK_EQ(old[k], 100 + 2 * k, "value after");
    STEP("request based, %d longs", n);
    MPI_Rput(x, n, MPI_LONG, target, n, n, MPI_LONG, win, &r[0]);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    MPI_Win_flush(target, win);
    MPI_Raccumulate(x, n, MPI_LONG, target, n, n, MPI_LONG, MPI_SUM, win, &r[0]);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    MPI_Win_flush(target, win);
    MPI_Rget(old, n, MPI_LONG, target, n, n, MPI_LONG, win, &r[0]);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    for (int k = 0; k < n; k++)
        CHECK_EQ(old[k], 2 * (100 + k), "rget");
    MPI_Rget_accumulate(x, n, MPI_LONG, old, n, MPI_LONG, target, n, n, MPI_LONG, MPI_MAX, win,
                        &r[1]);
    MPI_Waitall(1, &r[1], MPI_STATUSES_IGNORE);
    for (int k = 0; k < n; k++)
        CHECK_EQ(old[k], 2 * (100 + k), "rget_accumulate");
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(x), free(old);
}

/* Locks must be granted while the target is in another MPI call that waits. */
static void busy_target(MPI_Win win, long *base)
{
    long x = me;
    STEP("busy target");
    base[0] = base[1] = base[2] = base[3] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        for (int k = 1; k < np; k++)
            MPI_Recv(NULL, 0, MPI_BYTE, k, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int k = 1; k < np; k++)
            CHECK_EQ(base[k], k, "put while the target waited in MPI_Recv");
    } else {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        MPI_Put(&x, 1, MPI_LONG, 0, me, 1, MPI_LONG, win);
        MPI_Win_unlock(0, win);
        MPI_Send(NULL, 0, MPI_BYTE, 0, 5, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void tests(MPI_Win win, long *base)
{
    counter(win, base);
    swap_lock(win, base);
    exclusive(win, base, 1);
    exclusive(win, base, 500);
    exclusive(win, base, 20000);
    get_accumulate(win, base, 1);
    get_accumulate(win, base, 400);
    get_accumulate(win, base, 20000);
    busy_target(win, base);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Win win;
    long *base;
    MPI_Win_allocate(400000, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    tests(win, base);
    MPI_Win_free(&win);
    base = malloc(400000);
    MPI_Win_create(base, 400000, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    tests(win, base);
    MPI_Win_free(&win);
    free(base);
    return check_end();
}

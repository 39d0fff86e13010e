/* ranks: 2,3,4 ; nodes: 1 ; thread: multiple */
/* One-sided communication of a program that asked for MPI_THREAD_MULTIPLE, first from the main
 * thread, then from four threads with a window each. (Stock's osc pt2pt refuses such programs.) */
#include "threads.h"

static void put_and_add(MPI_Comm comm, int number)
{
    enum { N = 2000 };
    MPI_Win win;
    int *base, x[N], next = (me + 1) % np, previous = (me + np - 1) % np, one = 1, old;
    MPI_Win_allocate((N + 1) * sizeof(int), sizeof(int), MPI_INFO_NULL, comm, &base, &win);
    for (int round = 0; round < 5; round++) {
        base[N] = 0;
        for (int k = 0; k < N; k++)
            x[k] = me * 10000 + number * 1000 + round + k;
        MPI_Win_fence(0, win);
        MPI_Put(x, N, MPI_INT, next, 0, N, MPI_INT, win);
        MPI_Win_fence(0, win);
        for (int k = 0; k < N; k++)
            CHECK_EQ(base[k], previous * 10000 + number * 1000 + round + k, "put");
        MPI_Barrier(comm);
        MPI_Win_lock_all(0, win);
        for (int k = 0; k < 20; k++) {
            MPI_Fetch_and_op(&one, &old, MPI_INT, 0, N, MPI_SUM, win);
            MPI_Win_flush(0, win);
            CHECK(old >= k && old < 20 * np, "counter %d at step %d", old, k);
        }
        MPI_Win_unlock_all(win);
        MPI_Barrier(comm);
    }
    MPI_Win_free(&win);
}

static void *body(void *argument)
{
    struct thread *t = argument;
    put_and_add(t->comm, t->number);
    return NULL;
}

int main(int argc, char **argv)
{
    MPI_Comm comm[THREADS];
    check_begin_thread(&argc, &argv, MPI_THREAD_MULTIPLE);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[k]);
    STEP("main thread");
    put_and_add(comm[0], 0);
    STEP("threads");
    threads_run(body, comm);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_free(&comm[k]);
    return check_end();
}

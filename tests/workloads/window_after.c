/* What a collective tells, and windows: a rank puts into the window of a rank of another set, all
 * come to a collective, the target reads. Then the last rank of each set adds to the window of its
 * first one, which has called nothing since; all come to a collective again, and that one reads.
 * Sets are ranks next to each other, as many as there are ranks a node.
 * usage: window_after ITERATIONS [GATE [blocking|nonblocking [RANKS_A_NODE]]]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"
#include <string.h>

enum { LONG = 1 << 14 };

static int me, np, nonblocking;
static uint64_t sums;

/* All have come when it is over. */
static void meet(int k)
{
    MPI_Request request = MPI_REQUEST_NULL;
    uint64_t mine = mix((uint64_t) k * 64 + (uint64_t) me), all = 0;
    int done = 0;
    if (k % 2) {
        if (nonblocking)
            MPI_Iallreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD, &request);
        else
            MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    } else if (nonblocking)
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
    else
        MPI_Barrier(MPI_COMM_WORLD);
    while (nonblocking && k % 3 == 0 && !done)
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (k % 3 == 1)
        MPI_Waitall(1, &request, MPI_STATUSES_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    sums = mix(sums ^ all);
}

/* Who asks in vain, or calls MPI_Win_sync, may look at its window meanwhile, so nobody writes there
 * directly from then on. If that came first after such a write, it would not be known whether it
 * was seen: the first MPI_Win_sync below, of a rank that is late. */
static void ask_in_vain(void)
{
    int got = 0, sent = 1, done = 0;
    MPI_Request request;
    MPI_Irecv(&got, 1, MPI_INT, me, 0, MPI_COMM_WORLD, &request);
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    MPI_Send(&sent, 1, MPI_INT, me, 0, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

/* Without a call of MPI. */
static void compute(void)
{
    for (volatile int i = 0; i < 30000; i++)
        ;
}

int main(int argc, char **argv)
{
    int iterations = argc > 1 ? atoi(argv[1]) : 20, limit = 0;
    const char *gate = argc > 2 && argv[2][0] ? argv[2] : NULL;
    int each = argc > 4 ? atoi(argv[4]) : 2;
    uint64_t hash = 0, last = 0, *shared, *given = malloc(LONG * sizeof *given);
    MPI_Win window;
    nonblocking = argc > 3 && !strcmp(argv[3], "nonblocking");
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Win_allocate((LONG + 1) * sizeof *shared, sizeof *shared, MPI_INFO_NULL, MPI_COMM_WORLD,
                     &shared, &window);
    memset(shared, 0, (LONG + 1) * sizeof *shared);
    const int to = (me + each) % np, from = (me + np - each) % np, first = me - me % each;
    ask_in_vain();
    long wrong = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        pace();
        for (int i = 0; i < LONG; i++)
            given[i] = mix((uint64_t) k * LONG + (uint64_t) i) ^ (uint64_t) me;
        MPI_Win_lock(MPI_LOCK_SHARED, to, 0, window);
        MPI_Put(given, LONG, MPI_UINT64_T, to, 1, LONG, MPI_UINT64_T, window);
        MPI_Win_unlock(to, window);
        meet(k);
        MPI_Win_sync(window);
        for (int i = 0; i < LONG; i++) {
            last = shared[1 + i];
            wrong += last != (mix((uint64_t) k * LONG + (uint64_t) i) ^ (uint64_t) from);
        }
        if (me % each == each - 1) {
            uint64_t one = hash ^ (uint64_t) k;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, first, 0, window);
            MPI_Accumulate(&one, 1, MPI_UINT64_T, first, 0, 1, MPI_UINT64_T, MPI_SUM, window);
            MPI_Win_unlock(first, window);
        } else
            compute();
        meet(k + 1);
        MPI_Win_sync(window);
        hash = mix(hash ^ shared[0] ^ last ^ sums);
    }
    int right = print_hash(hash, wrong);
    MPI_Win_free(&window);
    free(given);
    MPI_Finalize();
    return right ? 0 : 1;
}

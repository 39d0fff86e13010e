/* Ranks of a node write to memory that they share by MPI_Win_allocate_shared, without a message:
 * each adds to a common count, and counts for itself what it has added. A checkpoint that holds two
 * moments of them gives another sum. usage: shared_window ITERATIONS [GATE [ops]]. With "ops" they
 * add to another one by MPI_Fetch_and_op, too (osc/sm's is not atomic together with the program's
 * own instructions). */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { ADDED = 5000 };

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    int ops = argc > 3;
    const uint64_t one = 1;
    uint64_t *common, *own, mine = 0, counted = 0, before, all[2], sums[2];
    MPI_Comm node;
    MPI_Win window;
    MPI_Aint bytes;
    int unit, local;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    MPI_Win_allocate_shared(4096, 1, MPI_INFO_NULL, node, &own, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &common);
    own[0] = own[1] = own[2] = 0;
    MPI_Barrier(node);
    if (ops)
        MPI_Win_lock_all(0, window);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        if (ops) {
            MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, 2 * sizeof(one), MPI_SUM,
                             window);
            MPI_Win_flush(0, window);
            mine++;
        }
        for (int i = 0; i < ADDED; i++) {
            __atomic_fetch_add(&common[0], 1, __ATOMIC_RELAXED);
            mine++;
            own[1] = own[1] * 6364136223846793005ull + (uint64_t) me + 1;
        }
    }
    if (ops)
        MPI_Win_unlock_all(window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (local == 0)
        counted = common[0] + common[2];
    all[0] = counted - mine;
    all[1] = own[1];
    MPI_Reduce(all, sums, 2, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %lld %016llx\n", (long long) sums[0], (unsigned long long) sums[1]);
    MPI_Win_free(&window);
    MPI_Comm_free(&node);
    MPI_Finalize();
    return 0;
}

/* Ranks write to their neighbours' memory by MPI_Put. usage: window_ring ITERATIONS [GATE [MIB]]
 * MIB: so large is a rank's window, all of it written. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { WORDS = 1000 };

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0;
    const char *gate = argc > 2 && argv[2][0] ? argv[2] : NULL;
    size_t words = argc > 3 ? (size_t) atol(argv[3]) << 17 : WORDS;
    uint64_t *mine, next[WORDS], hash, all;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (words < WORDS)
        words = WORDS;
    MPI_Win_allocate((MPI_Aint) (words * sizeof(*next)), sizeof(*next), MPI_INFO_NULL,
                     MPI_COMM_WORLD, &mine, &window);
    for (size_t i = 0; i < words; i++)
        mine[i] = (uint64_t) me * WORDS + i;
    MPI_Win_fence(0, window);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        for (int i = 0; i < WORDS; i++)
            next[i] = mine[i] * 6364136223846793005ull + (uint64_t) k;
        MPI_Win_fence(0, window);
        MPI_Put(next, WORDS, MPI_UINT64_T, (me + 1) % np, 0, WORDS, MPI_UINT64_T, window);
        MPI_Win_fence(0, window);
    }
    hash = 14695981039346656037ull;
    for (int i = 0; i < WORDS; i++)
        hash = (hash ^ mine[i]) * 1099511628211ull;
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}

/* OpenMP threads compute, one of them communicates: the state of a checkpoint is in many threads.
 * usage: omp_hash ITERATIONS [GATE] */
#include <mpi.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { N = 1 << 15 };
static uint64_t cells[N], next[N];

int main(int argc, char **argv)
{
    int me, np, given, iterations = argc > 1 ? atoi(argv[1]) : 300;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    for (int i = 0; i < N; i++)
        cells[i] = (uint64_t) i * 2654435761u + (uint64_t) me;
    const char *gate = argc > 2 ? argv[2] : NULL;
    int limit = 0;
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        uint64_t edge = cells[N - 1], from = 0;
        MPI_Sendrecv(&edge, 1, MPI_UINT64_T, (me + 1) % np, 1, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#pragma omp parallel for schedule(static) num_threads(3)
        for (int i = 0; i < N; i++) {
            uint64_t x = cells[i] ^ (i ? cells[i - 1] : from);
            for (int r = 0; r < 8; r++)
                x = x * 6364136223846793005ull + 1442695040888963407ull;
            next[i] = x ^ (x >> 29);
        }
#pragma omp parallel for schedule(static) num_threads(3)
        for (int i = 0; i < N; i++)
            cells[i] = next[i];
    }
    uint64_t sum = 0, all;
    for (int i = 0; i < N; i++)
        sum += cells[i] * (uint64_t) (i + 1);
    MPI_Reduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

/* Messages round a ring with a running hash, and then MPI_Finalize, to which one rank comes late:
 * all others are in it already.
 * usage: late_finish ITERATIONS LATE_RANK GATE
 * GATE: see gate.h. The late rank waits outside of MPI until the file has ITERATIONS + 1000000. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "gate.h"

#define WORDS 500

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

static long gate_says(const char *gate)
{
    long limit = 0;
    FILE *file = fopen(gate, "r");
    if (!file || fscanf(file, "%ld", &limit) != 1)
        limit = 0;
    if (file)
        fclose(file);
    return limit;
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 100, late = argc > 2 ? atoi(argv[2]) : 0;
    uint64_t out[WORDS], in[WORDS], hash, all;
    const char *gate = argc > 3 ? argv[3] : NULL;
    int limit = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    hash = mix(1, (uint64_t) me);
    for (int i = 0; i < iterations; i++) {
        wait_at(gate, i, &limit);
        for (int k = 0; k < WORDS; k++)
            out[k] = mix(hash, (uint64_t) k);
        MPI_Sendrecv(out, WORDS, MPI_UINT64_T, (me + 1) % np, i, in, WORDS, MPI_UINT64_T,
                     (me + np - 1) % np, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int k = 0; k < WORDS; k++)
            hash = mix(hash, in[k]);
        if (i % 10 == 9 && me > 0)
            MPI_Send(&hash, 1, MPI_UINT64_T, 0, 7, MPI_COMM_WORLD);
        for (int k = 1; i % 10 == 9 && me == 0 && k < np; k++) {
            uint64_t got;
            MPI_Recv(&got, 1, MPI_UINT64_T, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            hash ^= got;
        }
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    fflush(stdout);
    while (gate && me == late && gate_says(gate) < iterations + 1000000L)
        usleep(1000);
    MPI_Finalize();
    return 0;
}

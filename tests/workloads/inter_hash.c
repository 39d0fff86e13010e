/* Two groups meet in an intercommunicator, which is made and freed again and again, so that its
 * context id comes again; the first of each group finds the other one's message by MPI_Iprobe, and
 * all send to all. What arrives goes into a running hash, which is the same in every run.
 * usage: inter_hash ROUNDS [GATE] (see gate.h) */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { ROUNDS_OF_ONE = 5, RANKS_MAX = 64, BRIDGE = 12, FIRST = 6, PAIR = 4, LONG = 30000 };

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

static uint64_t the_first(MPI_Comm inter, uint64_t hash)
{
    MPI_Status status;
    int flag = 0;
    uint64_t got;
    MPI_Send(&hash, 1, MPI_UINT64_T, 0, FIRST, inter);
    while (!flag)
        MPI_Iprobe(MPI_ANY_SOURCE, FIRST, inter, &flag, &status);
    MPI_Recv(&got, 1, MPI_UINT64_T, status.MPI_SOURCE, FIRST, inter, &status);
    return mix(hash, got);
}

/* With who has the same rank on the other side, and more than fits into one frame. */
static uint64_t the_pair(MPI_Comm inter, int rank, uint64_t hash)
{
    static uint64_t out[LONG], in[LONG];
    int count = (int) (hash % 8 ? hash % 100 : LONG);
    MPI_Status status;
    out[0] = hash;
    out[count ? count - 1 : 0] = hash;
    MPI_Sendrecv(out, count, MPI_UINT64_T, rank, PAIR, in, LONG, MPI_UINT64_T, rank, PAIR, inter,
                 &status);
    MPI_Get_count(&status, MPI_UINT64_T, &count);
    return count ? mix(mix(hash, in[0]), in[count - 1]) : mix(hash, 0);
}

int main(int argc, char **argv)
{
    int me, np, rank, others, rounds = argc > 1 ? atoi(argv[1]) : 1000;
    MPI_Comm side, inter, merged;
    uint64_t all[RANKS_MAX], before = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    long limit = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    uint64_t hash = mix(0, (uint64_t) me);
    for (int round = 0; round < rounds; round++) {
        if (round % ROUNDS_OF_ONE == 0) {
            before = hash;
            MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &side);
            MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, 1 - me % 2, BRIDGE, &inter);
            MPI_Comm_rank(inter, &rank);
            MPI_Comm_remote_size(inter, &others);
        }
        if (rank == 0)
            hash = the_first(inter, hash);
        if (rank < others)
            hash = the_pair(inter, rank, hash);
        MPI_Allgather(&hash, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, inter);
        for (int i = 0; i < others; i++)
            hash = mix(hash, all[i]);
        if (round % ROUNDS_OF_ONE == ROUNDS_OF_ONE - 1) {
            MPI_Intercomm_merge(inter, me % 2, &merged);
            MPI_Allreduce(&hash, all, 1, MPI_UINT64_T, MPI_BXOR, merged);
            hash = mix(hash, all[0]);
            MPI_Comm_free(&merged);
            MPI_Comm_free(&inter);
            MPI_Comm_free(&side);
            if (is_to_repeat(gate, round, &limit)) {
                hash = before;
                round -= ROUNDS_OF_ONE;
            }
        }
    }
    MPI_Reduce(&hash, all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all[0]);
    MPI_Finalize();
    return 0;
}

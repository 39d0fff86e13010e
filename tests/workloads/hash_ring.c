/* Neighbours exchange messages of changing sizes, eager and rendezvous, nonblocking and blocking,
 * wildcards and collectives in between; everything that arrives goes into a running hash. The last
 * line is the same in every run with the same arguments, whatever happens to the processes.
 * usage: hash_ring ITERATIONS [LARGEST_BYTES [GATE]]
 * GATE: see gate.h. The iteration after it is repeated, with the same messages, until the file
 * allows more; what the program finds out in the end does not change. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

static uint64_t hash_of(uint64_t hash, const unsigned char *bytes, int count)
{
    for (int i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001B3ull;
    return mix(hash, (uint64_t) count);
}

static void fill(unsigned char *bytes, int count, uint64_t seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        bytes[i] = (unsigned char) (seed >> 56);
    }
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 1000;
    int largest = argc > 2 ? atoi(argv[2]) : 200000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    int right = (me + 1) % np, left = (me + np - 1) % np;
    unsigned char *out[2], *in[2];
    for (int k = 0; k < 2; k++) {
        out[k] = malloc((size_t) largest + 1);
        in[k] = malloc((size_t) largest + 1);
    }
    const char *gate = argc > 3 ? argv[3] : NULL;
    int limit = gate ? 0 : iterations;
    uint64_t hash = mix(0, (uint64_t) me), before, repeated = 0;
    for (int i = 0; i < iterations; i++) {
        before = hash;
        uint64_t draw = mix((uint64_t) i, 17);
        int sizes[2] = { (int) (draw % 64), (int) ((draw >> 8) % (uint64_t) (largest + 1)) };
        if (argc > 4)
            sizes[1] = largest / 2 + sizes[1] / 2; /* long ones only */
        else if (draw & (7ull << 40))
            sizes[1] %= 5000;
        MPI_Request r[4];
        for (int k = 0; k < 2; k++) {
            fill(out[k], sizes[k], hash + (uint64_t) k);
            MPI_Irecv(in[k], largest, MPI_BYTE, k ? left : right, k, MPI_COMM_WORLD, &r[k]);
        }
        MPI_Isend(out[0], sizes[0], MPI_BYTE, left, 0, MPI_COMM_WORLD, &r[2]);
        if (draw & (1ull << 50))
            MPI_Issend(out[1], sizes[1], MPI_BYTE, right, 1, MPI_COMM_WORLD, &r[3]);
        else
            MPI_Isend(out[1], sizes[1], MPI_BYTE, right, 1, MPI_COMM_WORLD, &r[3]);
        MPI_Waitall(4, r, MPI_STATUSES_IGNORE);
        for (int k = 0; k < 2; k++)
            hash = hash_of(hash, in[k], sizes[k]);
        if (i % 16 == 3) {
            /* Everybody to rank 0, in any order: the sum does not depend on it. */
            uint64_t sum = hash, got;
            if (me == 0) {
                for (int k = 1; k < np; k++) {
                    MPI_Recv(&got, 1, MPI_UINT64_T, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
                    sum += got;
                }
            } else {
                MPI_Send(&hash, 1, MPI_UINT64_T, 0, 5, MPI_COMM_WORLD);
            }
            MPI_Bcast(&sum, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
            hash = mix(hash, sum);
        }
        if (i % 10 == 9) {
            uint64_t all;
            MPI_Allreduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
            hash = mix(hash, all);
        }
        if (i >= limit && i >= (limit = read_gate(gate))) {
            if (repeated && repeated != hash) {
                printf("DIFFERENT in iteration %d of rank %d\n", i, me);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
            repeated = hash;
            hash = before;
            i--;
        } else {
            repeated = 0;
        }
    }
    uint64_t all;
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

/* What the window_*.c programs share: the mixing of their hashes, and how fast they go. */
#ifndef HASH_H
#define HASH_H
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Microseconds of sleep in each iteration: the environment's PACE_US, or none. */
__attribute__((unused)) static void pace(void)
{
    static long microseconds = -1;
    if (microseconds < 0)
        microseconds = getenv("PACE_US") ? atol(getenv("PACE_US")) : 0;
    if (microseconds > 0)
        usleep((useconds_t) microseconds);
}

/* The sum of all ranks' hashes and of what they found wrong; rank 0 prints it. True if all is
 * right. */
__attribute__((unused)) static int print_hash(uint64_t hash, long wrong)
{
    uint64_t mine[2] = {hash, (uint64_t) wrong}, all[2];
    int me;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Allreduce(mine, all, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx, %llu wrong\n", (unsigned long long) all[0],
               (unsigned long long) all[1]);
    return all[1] == 0;
}
#endif

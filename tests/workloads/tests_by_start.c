/*
 * tests_by_start ITERATIONS [GATE] (see gate.h): a ring of messages, each of which is awaited with
 * tests. The last rank makes another call for that once its process is another one, as when it was
 * restored from an image: its replay diverges. (It tells by what the kernel keeps for a process and
 * nobody restores, the slack of its timers.) The messages are the same. Prints a hash of what came.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "gate.h"

/* Nanoseconds, which no process has by default. */
enum { SLACK = 54321 };

int main(int argc, char **argv)
{
    int rank, size;
    prctl(PR_SET_TIMERSLACK, SLACK, 0, 0, 0);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const long iterations = 1 < argc ? atol(argv[1]) : 1000;
    const char *gate = 2 < argc ? argv[2] : NULL;
    int limit = 0;
    uint64_t hash = 1;
    int other_call = 0;
    for (long i = 0; i < iterations; i++) {
        wait_at(gate, (int) i, &limit);
        other_call |= rank == size - 1 && SLACK != prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        uint64_t out = hash + (uint64_t) rank, in = 0;
        MPI_Request requests[2];
        int done = 0, index = 0;
        MPI_Irecv(&in, 1, MPI_UINT64_T, (rank + size - 1) % size, 3, MPI_COMM_WORLD, requests);
        MPI_Isend(&out, 1, MPI_UINT64_T, (rank + 1) % size, 3, MPI_COMM_WORLD, requests + 1);
        while (!done) {
            if (other_call) {
                MPI_Testany(1, requests, &index, &done, MPI_STATUS_IGNORE);
            } else {
                MPI_Test(requests, &done, MPI_STATUS_IGNORE);
            }
        }
        MPI_Wait(requests + 1, MPI_STATUS_IGNORE);
        hash = (hash ^ in) * 1099511628211u;
        usleep(1000);
    }
    uint64_t sum = 0;
    MPI_Reduce(&hash, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("HASH %016llx\n", (unsigned long long) sum);
    }
    MPI_Finalize();
    return 0;
}

/*
 * Sends something that changes when a process is restarted: its process id and the time (not
 * MPI_Wtime, which is replayed), if asked to, else nothing of the kind.
 * Usage: by_pid ITERATIONS SLEEP_US [pid [GATE]] (GATE: see gate.h)
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gate.h"

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    long iterations = 1 < argc ? atol(argv[1]) : 1000;
    useconds_t pause = 2 < argc ? (useconds_t) atol(argv[2]) : 0;
    int with_pid = 3 < argc && 0 == strcmp("pid", argv[3]);
    const char *gate = 4 < argc ? argv[4] : NULL;
    uint64_t hash = 1;
    long limit = 0;
    for (long i = 0; i < iterations; i++) {
        /* The rest of the message depends on nothing. */
        uint64_t out[4] = { (uint64_t) i, (uint64_t) rank, 3, 0 }, in[4];
        /* Ids within a namespace may come back; the kernel's clock does not. */
        if (with_pid) {
            struct timespec { long seconds, nanoseconds; } now;
            syscall(SYS_clock_gettime, 1, &now);
            out[3] = (uint64_t) getpid() + (uint64_t) now.nanoseconds;
        }
        MPI_Sendrecv(out, 4, MPI_UINT64_T, (rank + 1) % size, 7, in, 4, MPI_UINT64_T,
                     (rank + size - 1) % size, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        usleep(pause);
        if (is_to_repeat(gate, i, &limit)) {
            i--;
            continue;
        }
        hash = hash * 1099511628211u ^ in[0] ^ in[1];
    }
    uint64_t sum = 0;
    MPI_Reduce(&hash, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("HASH %016llx\n", (unsigned long long) sum);
    }
    MPI_Finalize();
    return 0;
}

/*
 * reads_clocks GATE: when GATE says more than 0, reads a clock for five seconds, as fast as it can.
 */
#include "gate.h"
#include <time.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

int main(int argc, char **argv)
{
    int rank, limit = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) {
        fprintf(stderr, "usage: reads_clocks GATE\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    while (limit <= 0) {
        usleep(1000);
        limit = read_gate(argv[1]);
    }
    for (double end = now() + 5; now() < end;) {
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        printf("HASH clocks go on\n");
    }
    MPI_Finalize();
    return 0;
}

/*
 * short_lines ITERATIONS LINES FILE: when FILE is there every rank prints lines of one digit on
 * standard output, many at a time: shorter than what mpirun may put in front of each.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    while (rank == 0 && access(argv[3], F_OK) != 0) {
        usleep(1000);
    }
    for (long i = 0; i < atol(argv[1]); i++) {
        long sum = 0;
        MPI_Allreduce(&i, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (long line = 0; line < atol(argv[2]); line++) {
            printf("%ld\n", (line + sum) % 10);
        }
        fflush(stdout);
        usleep(10000);
    }
    MPI_Finalize();
    return 0;
}

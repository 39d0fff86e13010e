/*
 * print_lines ITERATIONS MICROSECONDS [LINES [FILE]]: every rank prints numbered lines on standard
 * output and on standard error in each iteration (one), each in one piece, and nothing twice. The
 * ranks keep together. MICROSECONDS are between two lines. Half of the iterations are done when
 * FILE is there and not before. Lines are longer than the tags of --tag-output: of 4096 bytes in
 * shorter ones mpirun of 4.1 loses a part.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    long iterations = argc > 1 ? atol(argv[1]) : 1000;
    long pause_us = argc > 2 ? atol(argv[2]) : 1000;
    long lines = argc > 3 ? atol(argv[3]) : 1;
    const char *file = argc > 4 ? argv[4] : NULL;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("tty %d out %s err %s\n", rank, isatty(1) ? "yes" : "no", isatty(2) ? "yes" : "no");
    for (long i = 0; i < iterations; i++) {
        long sum = 0;
        while (rank == 0 && file != NULL && i == iterations / 2 && access(file, F_OK) != 0) {
            usleep(1000);
        }
        MPI_Allreduce(&i, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        for (long line = i * lines; line < (i + 1) * lines; line++) {
            printf("out %d %ld %016ld\n", rank, line, sum);
            fprintf(stderr, "err %d %ld %016ld\n", rank, line, sum);
            usleep(pause_us);
        }
    }
    MPI_Finalize();
    return 0;
}

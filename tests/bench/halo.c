/* A halo exchange with as much to compute and to send as one likes: what protection and failures
 * cost it can be compared with the model (docs/performance.md, "A model").
 *
 * Ranks form a row. In each step a rank computes, and exchanges BYTES with each neighbour.
 * usage: halo STEPS BYTES LOOPS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 10000;
    int bytes = argc > 2 ? atoi(argv[2]) : 8, loops = argc > 3 ? atoi(argv[3]) : 10000;
    double sum = 0.0, total = 0.0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int left = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    int right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    char *out = malloc((size_t) bytes);
    char *in[2] = {calloc(1, (size_t) bytes), calloc(1, (size_t) bytes)};
    double begin = MPI_Wtime(), value = rank, computed;

    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < loops; i++)
            value = 0.999 * value + 0.001 * i;
        memset(out, (int) value & 0x7F, (size_t) bytes);
        MPI_Sendrecv(out, bytes, MPI_CHAR, left, 0, in[1], bytes, MPI_CHAR, right, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(out, bytes, MPI_CHAR, right, 1, in[0], bytes, MPI_CHAR, left, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value += in[0][step % bytes] + in[1][step % bytes];
        sum += value;
    }
    computed = MPI_Wtime() - begin;
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("sum after %d steps: %.6e\n", steps, total);
        fprintf(stderr, "halo: %.3f s, %.0f steps a second\n", computed, steps / computed);
    }
    free(out);
    free(in[0]);
    free(in[1]);
    MPI_Finalize();
    return 0;
}

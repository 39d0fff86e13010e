/* A program that reads how often each of its processes was restarted from an image.
 *
 * For a line in a log, or to open a connection again that an image cannot hold. Do not let messages
 * before the failure depend on the count: a restarted process replays what it sent, and the count
 * is another one by then. Here it is read once, at the end.
 * Needs -lmpix_correlated; without rustbtl the count is 0.
 * usage: restart_count [STEPS]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "mpix_correlated.h"

int main(int argc, char **argv)
{
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 50000;
    long long token = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    /* Something to do meanwhile: numbers go round in a ring. */
    for (int step = 0; step < steps; step++) {
        long long mine = token + rank;
        MPI_Sendrecv(&mine, 1, MPI_LONG_LONG, (rank + 1) % size, 0, &token, 1, MPI_LONG_LONG,
                     (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }

    int restarts = MPIX_Correlated_restarts();
    int *all = malloc((size_t) size * sizeof *all);
    MPI_Gather(&restarts, 1, MPI_INT, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("token: %lld\n", token);
        for (int i = 0; i < size; i++)
            printf("rank %d was restarted %d times\n", i, all[i]);
    }
    free(all);
    MPI_Finalize();
    return 0;
}

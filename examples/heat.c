/* Heat in a rod: each rank has a part of it and exchanges the borders with its neighbours.
 *
 * Nothing here knows of rustbtl: an MPI program needs no change to be protected.
 * usage: heat [STEPS]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define CELLS 1000 /* of each rank; the first and the last are copies of the neighbours' */

int main(int argc, char **argv)
{
    int rank, size, steps = argc > 1 ? atoi(argv[1]) : 50000;
    static double now[CELLS + 2], next[CELLS + 2];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int left = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    int right = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;

    for (int step = 0; step < steps; step++) {
        MPI_Sendrecv(&now[1], 1, MPI_DOUBLE, left, 0, &now[CELLS + 1], 1, MPI_DOUBLE, right, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Sendrecv(&now[CELLS], 1, MPI_DOUBLE, right, 1, &now[0], 1, MPI_DOUBLE, left, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 0)
            now[0] = 1.0; /* the rod is heated at one end */
        for (int i = 1; i <= CELLS; i++)
            next[i] = now[i] + 0.25 * (now[i - 1] - 2.0 * now[i] + now[i + 1]);
        for (int i = 1; i <= CELLS; i++)
            now[i] = next[i];
    }

    double heat = 0.0, total = 0.0;
    for (int i = 1; i <= CELLS; i++)
        heat += now[i];
    MPI_Reduce(&heat, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("heat in the rod after %d steps: %.6f\n", steps, total);
    MPI_Finalize();
    return 0;
}

/* Requests a checkpoint itself, then fails in its first incarnation. The second one begins at that
 * checkpoint, and prints it. */
#include <mpi.h>
#include <stdio.h>

#include "mpix_correlated.h"

int main(int argc, char **argv)
{
    int me, rc = 0;
    unsigned long long checkpoint = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (me == 1)
        rc = MPIX_Correlated_checkpoint(MPIX_CORRELATED_ALL | MPIX_CORRELATED_WAIT, &checkpoint);
    MPI_Barrier(MPI_COMM_WORLD);
    if (MPIX_Correlated_restarts() == 0)
        MPI_Abort(MPI_COMM_WORLD, 9);
    if (me == 1) {
        printf("HASH %d %llu %d\n", rc, checkpoint, MPIX_Correlated_restarts());
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}

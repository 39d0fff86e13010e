/* A program that asks for a checkpoint at moments that it knows to be good.
 *
 * No program has to ask: checkpoints are taken by the clock, by a command or by a signal. It is
 * worth it where a program knows that little memory is in use, or that a phase has just ended.
 * Needs -lmpix_correlated. The same binary runs without protection; the call then says so.
 */
#include <mpi.h>
#include <stdio.h>

#include "mpix_correlated.h"

#define PHASES 3
#define ROUNDS 1000

int main(int argc, char **argv)
{
    int rank;
    long long sum = 0, part;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);

    for (int phase = 1; phase <= PHASES; phase++) {
        for (int round = 0; round < ROUNDS; round++) {
            part = (long long) phase * round + rank;
            MPI_Allreduce(MPI_IN_PLACE, &part, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
            sum += part;
        }
        /* One rank asks for all. WAIT: it returns when the images of all ranks are stored. The
         * other ranks need not call anything; they may be computing. */
        if (rank == 0) {
            unsigned long long number;
            int rc = MPIX_Correlated_checkpoint(MPIX_CORRELATED_ALL | MPIX_CORRELATED_WAIT,
                                                &number);
            if (rc == MPIX_CORRELATED_OK)
                printf("phase %d: checkpoint %llu is complete\n", phase, number);
            else if (rc == MPIX_CORRELATED_NO_COMPONENT)
                printf("phase %d: no checkpoint: the job runs without rustbtl\n", phase);
            else
                printf("phase %d: no checkpoint: the job is not protected, or it failed\n", phase);
        }
        /* A job of which a rank is in MPI_Finalize takes no checkpoints any more: nobody gets that
         * far before rank 0 has its answer. */
        MPI_Barrier(MPI_COMM_WORLD);
    }

    if (rank == 0)
        printf("sum of %d phases: %lld\n", PHASES, sum);
    MPI_Finalize();
    return 0;
}

/* Benchmarks of what protection costs for long begin here, not in MPI_Init. */
#ifndef WARM_H
#define WARM_H

#include <mpi.h>
#include <unistd.h>

enum { WARM_S = 2 };

/* The first checkpoint of a protected job is taken when all ranks have called MPI_Init, and takes
 * processors from them; a run that measures some tenths of a second would measure nothing else. */
static void wait_for_first_checkpoint(void)
{
    sleep(WARM_S);
    MPI_Barrier(MPI_COMM_WORLD);
}

#endif

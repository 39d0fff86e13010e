/* ranks: 1,2,4 ; nodes: 1,2,3 ; exit: 9 ; output: finalized */
/* A rank that returns a code after MPI_Finalize gives it to mpirun. */
#include "check.h"

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    int finalized = 0;
    MPI_Finalize();
    MPI_Finalized(&finalized);
    if (me == np - 1 && finalized) {
        printf("finalized\n");
        return 9;
    }
    return 0;
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; exit: 7 ; output: about to abort */
/* MPI_Abort of one rank ends the whole job with its code, although the others wait in a receive. */
#include "check.h"

int main(int argc, char **argv)
{
    int x;
    check_begin(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == np - 1) {
        sleep_ms(100);
        printf("about to abort\n");
        fflush(stdout);
        sleep_ms(100);
        MPI_Abort(MPI_COMM_WORLD, 7);
    }
    MPI_Recv(&x, 1, MPI_INT, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    FAIL("came out of a receive that nobody sends to");
}

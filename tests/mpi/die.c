/* ranks: 2,3,4 ; nodes: 1,2,3 ; exit: nonzero ; output: leaving ; args: exit | segv | kill */
/* A rank that leaves without MPI_Finalize (argument: how) while the others wait for it: the job
 * ends with an error, and no rank hangs. */
#include "check.h"

int main(int argc, char **argv)
{
    int x;
    check_begin(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == np - 1) {
        const char *how = argc > 1 ? argv[1] : "exit";
        printf("leaving\n");
        fflush(stdout);
        sleep_ms(300);
        if (!strcmp(how, "segv"))
            raise(SIGSEGV);
        if (!strcmp(how, "kill"))
            raise(SIGKILL);
        if (!strcmp(how, "return"))
            return 5;
        exit(3);
    }
    MPI_Recv(&x, 1, MPI_INT, np - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    FAIL("came out of a receive that nobody sends to");
}

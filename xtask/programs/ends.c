/*
 * Ends in one of many ways: `ends HOW`. The last rank is the one that behaves differently.
 * Prints at rank 0 whether it has a guardian, and whether it sees what only guardians may.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is(const char *how, const char *what)
{
    return 0 == strcmp(how, what);
}

int main(int argc, char **argv)
{
    const char *how = 1 < argc ? argv[1] : "well";
    int rank, size, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("sum %d, %s, secret %s\n", sum,
               NULL == getenv("RUSTBTL_GUARDIAN_FD") ? "alone" : "guarded",
               NULL == getenv("RUSTBTL_SECRET") ? "hidden" : "visible");
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* it is printed before anybody ends */
    if (is(how, "cat") && 0 == rank) {
        char line[256];
        while (NULL != fgets(line, sizeof(line), stdin)) {
            fputs(line, stdout);
        }
    }
    if (size - 1 == rank) {
        if (is(how, "exit 5")) {
            exit(5);
        } else if (is(how, "exit 0 without finalize")) {
            exit(0);
        } else if (is(how, "abort 7")) {
            MPI_Abort(MPI_COMM_WORLD, 7);
        } else if (is(how, "SEGV")) {
            signal(SIGSEGV, SIG_DFL);
            raise(SIGSEGV);
        } else if (is(how, "KILL")) {
            raise(SIGKILL);
        } else if (is(how, "TERM")) {
            signal(SIGTERM, SIG_DFL);
            raise(SIGTERM);
        }
    }
    if (!is(how, "well") && !is(how, "exit 9 after finalize") && !is(how, "cat")) {
        sleep(20);
    }
    MPI_Finalize();
    return is(how, "exit 9 after finalize") ? 9 : 0;
}

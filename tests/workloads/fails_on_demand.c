/* The last rank kills itself once it finds the file `fail` in a folder, which it removes: a failure
 * at a moment that a test chooses. It removes it by the system call itself, which is not undone
 * when it is rolled back: else it would fail again. Each adds up what its neighbours have.
 * usage: fails_on_demand ITERATIONS FOLDER GATE */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "gate.h"

int main(int argc, char **argv)
{
    int me, np, limit = 0;
    char fail[4096];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (argc < 4 || snprintf(fail, sizeof(fail), "%s/fail", argv[2]) >= (int) sizeof(fail))
        MPI_Abort(MPI_COMM_WORLD, 2);
    int iterations = atoi(argv[1]);
    uint64_t hash = (uint64_t) me + 1, left, all;
    for (int i = 0; i < iterations; i++) {
        wait_at(argv[3], i, &limit);
        if (me == np - 1 && syscall(SYS_unlink, fail) == 0)
            raise(SIGKILL);
        MPI_Sendrecv(&hash, 1, MPI_UINT64_T, (me + 1) % np, 0, &left, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        hash = (hash ^ left) * 6364136223846793005ull + (uint64_t) i;
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

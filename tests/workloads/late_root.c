/*
 * late_root GATE: rank 0 computes for some milliseconds, in no call of MPI, before each broadcast;
 * the others wait for it. A snapshot nearly always finds them so. Ends when GATE says more than 0.
 */
#include "gate.h"
#include <stdlib.h>

static void compute(void)
{
    volatile unsigned work = 0;
    for (int i = 0; i < 3000000; i++) {
        work += (unsigned) i;
    }
}

int main(int argc, char **argv)
{
    int rank, limit = 0, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) {
        fprintf(stderr, "usage: late_root GATE\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    while (limit <= 0) {
        if (0 == rank) {
            compute();
        }
        limit = read_gate(argv[1]);
    }
    for (int i = 0; i < 100; i++) {
        int mine = sum + (rank + 1) * limit + i;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_BXOR, MPI_COMM_WORLD);
    }
    if (0 == rank) {
        printf("HASH %08x\n", (unsigned) sum);
    }
    MPI_Finalize();
    return 0;
}

/* Rank 0 reads a number a line from standard input, byte by byte, and tells all; what comes of them
 * depends on their order.
 * usage: by_input LINES [GATE] (see gate.h) */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "gate.h"

static int64_t next_number(void)
{
    char line[256];
    size_t at = 0;
    while (at + 1 < sizeof line && 1 == read(0, &line[at], 1) && line[at] != '\n')
        at++;
    line[at] = '\0';
    return at ? atoll(line) : -1;
}

int main(int argc, char **argv)
{
    int me, limit = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    int half = argc > 1 ? atoi(argv[1]) / 2 : 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t hash = (uint64_t) me + 1, all = 0, lines = 0;
    for (;;) {
        int64_t number = me ? 0 : next_number();
        MPI_Bcast(&number, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
        if (number < 0)
            break;
        hash = hash * 6364136223846793005ull + (uint64_t) number;
        if ((int) ++lines == half)
            wait_at(gate, half, &limit);
        usleep(1000);
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx of %llu lines\n", (unsigned long long) all,
               (unsigned long long) lines);
    MPI_Finalize();
    return 0;
}

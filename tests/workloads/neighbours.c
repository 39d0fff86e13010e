/* Who is on my node? MPI_Comm_split_type and the host names of all ranks have to agree, before a
 * failure and after it. In between a ring of messages. The last line is the same in every run.
 * usage: neighbours ITERATIONS [GATE]
 * GATE: see gate.h */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gate.h"

enum { NAME = 64 };

/* Ranks of MPI_COMM_WORLD that have my host name. */
static int by_name(int np)
{
    char mine[NAME] = "", *all = malloc((size_t) np * NAME);
    int count = 0;
    gethostname(mine, NAME - 1);
    MPI_Allgather(mine, NAME, MPI_CHAR, all, NAME, MPI_CHAR, MPI_COMM_WORLD);
    for (int rank = 0; rank < np; rank++)
        count += 0 == strcmp(mine, all + rank * NAME);
    free(all);
    return count;
}

static int by_mpi(void)
{
    MPI_Comm node;
    int count;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &count);
    MPI_Comm_free(&node);
    return count;
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 100, limit = argc > 2 ? 0 : iterations;
    uint64_t hash, in;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    hash = (uint64_t) me + 1;
    for (int i = 0; i < iterations; i++) {
        int named = by_name(np), counted = by_mpi();
        if (named != counted) {
            printf("rank %d: %d ranks by name, %d by MPI\n", me, named, counted);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        MPI_Sendrecv(&hash, 1, MPI_UINT64_T, (me + 1) % np, 7, &in, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        hash = (hash ^ in) * 0x100000001B3ull + (uint64_t) named;
        wait_at(argc > 2 ? argv[2] : NULL, i, &limit);
    }
    MPI_Reduce(&hash, &in, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016lx\n", (unsigned long) in);
    MPI_Finalize();
    return 0;
}

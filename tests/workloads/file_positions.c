/* Writes to a file that all share, and depends on more than what it writes: WAY is "size" (reads
 * how long the file is, and makes it longer), or "ordered" (the shared file pointer).
 * usage: file_positions ITERATIONS FOLDER GATE WAY */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gate.h"

enum { SELDOM = 10 };

static void extend(MPI_File file, MPI_Offset wanted)
{
    MPI_Offset size;
    MPI_File_get_size(file, &size);
    MPI_Bcast(&size, 1, MPI_OFFSET, 0, MPI_COMM_WORLD);
    if (size < wanted)
        MPI_File_set_size(file, wanted);
}

int main(int argc, char **argv)
{
    int me, np, iterations = atoi(argv[1]), limit = 0;
    const char *gate = argv[3], *way = argv[4];
    char name[4096];
    uint64_t value, from, all;
    MPI_File file;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    snprintf(name, sizeof name, "%s/places", argv[2]);
    if (MPI_SUCCESS != MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR,
                                     MPI_INFO_NULL, &file)) {
        fprintf(stderr, "cannot write to %s\n", argv[2]);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    value = (uint64_t) me;
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (me + 1) % np, 0, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = value * 6364136223846793005ull + from + 1;
        if (k % SELDOM != 0)
            continue;
        if (0 == strcmp(way, "size"))
            extend(file, (MPI_Offset) (k + 1) * np * 8);
        else
            MPI_File_write_ordered(file, &value, 1, MPI_UINT64_T, MPI_STATUS_IGNORE);
    }
    MPI_File_close(&file);
    value = (value ^ value >> 29) * (2 * (uint64_t) me + 3);
    MPI_Reduce(&value, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

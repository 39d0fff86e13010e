/* Writes to files of its own by stdio and by MPI-IO while it communicates; the files are read back
 * at the end. usage: file_hash ITERATIONS FOLDER [GATE] */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gate.h"

static uint64_t hash_bytes(uint64_t hash, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ bytes[i]) * 0x100000001B3ull;
    return hash;
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500;
    const char *folder = argc > 2 ? argv[2] : "/tmp";
    char name[4096];
    MPI_File shared;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    snprintf(name, sizeof name, "%s/own-%d", folder, me);
    FILE *own = fopen(name, "w+");
    snprintf(name, sizeof name, "%s/shared", folder);
    int rc = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL,
                           &shared);
    if (NULL == own || MPI_SUCCESS != rc) {
        fprintf(stderr, "cannot write to %s\n", folder);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    uint64_t value = (uint64_t) me, from;
    const char *gate = argc > 3 ? argv[3] : NULL;
    int limit = 0;
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (me + 1) % np, 0, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = value * 6364136223846793005ull + from + 1;
        fprintf(own, "%d %llu\n", k, (unsigned long long) value);
        MPI_Offset at = ((MPI_Offset) k * np + me) * 8;
        MPI_File_write_at(shared, at, &value, 1, MPI_UINT64_T, MPI_STATUS_IGNORE);
    }
    MPI_File_sync(shared);
    MPI_Barrier(MPI_COMM_WORLD);
    uint64_t hash = 14695981039346656037ull, all;
    unsigned char piece[4096];
    rewind(own);
    for (size_t got; (got = fread(piece, 1, sizeof piece, own)) > 0;)
        hash = hash_bytes(hash, piece, got);
    for (int k = me; k < iterations; k += np) {
        uint64_t row[64];
        MPI_File_read_at(shared, (MPI_Offset) k * np * 8, row, np, MPI_UINT64_T,
                         MPI_STATUS_IGNORE);
        hash = hash_bytes(hash, (unsigned char *) row, (size_t) np * 8);
    }
    fclose(own);
    MPI_File_close(&shared);
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

/* Ranks write to files that they have opened together. Each page of a file is written by one rank,
 * and then by another one: what the first one wrote must not come back. A header has the size that
 * rank 0 was told and makes larger; lines come by the shared file pointer, in the order of ranks.
 * Every now and then the file is closed, and the next one made, or the first one opened again. At
 * the end rank 0 reads all of them.
 * The first checkpoint is asked for before iteration BEGIN; before 0 no file is open. FOLDER/begun
 * is there when much has been done since.
 * usage: file_pages ITERATIONS FOLDER GATE WAY BEGIN; WAY: "pages", "lines", or "remade": a file is
 * deleted before it is made again */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "gate.h"
#include "mpix_correlated.h"

enum { EVERY = 50, FILES = 8, PAGE = 512, MUCH = 700 };

static int me, np;
static const char *folder;

static const char *name_of(int number)
{
    static char name[4096];
    snprintf(name, sizeof name, "%s/pages-%d", folder, number);
    return name;
}

static MPI_File open_file(int number, int is_remade)
{
    MPI_File file;
    if (is_remade && me == 0)
        MPI_File_delete(name_of(number), MPI_INFO_NULL); /* maybe there is none yet */
    MPI_Barrier(MPI_COMM_WORLD);
    const int mode = MPI_MODE_CREATE | MPI_MODE_RDWR;
    if (MPI_File_open(MPI_COMM_WORLD, name_of(number), mode, MPI_INFO_NULL, &file)) {
        fprintf(stderr, "rank %d: cannot open %s\n", me, name_of(number));
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    return file;
}

static uint64_t mix(uint64_t value, uint64_t with)
{
    value = (value ^ with) * 6364136223846793005ull + 1442695040888963407ull;
    return value ^ value >> 31;
}

static void must(int code, const char *what)
{
    if (code != MPI_SUCCESS) {
        fprintf(stderr, "rank %d: %s\n", me, what);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

static void page_by(MPI_File file, int writer, int page, uint64_t value)
{
    uint64_t words[PAGE / sizeof value];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        words[i] = mix(value, i);
    if (me == writer)
        must(MPI_File_write_at(file, (MPI_Offset) (page + 1) * PAGE, words, PAGE, MPI_BYTE,
                               MPI_STATUS_IGNORE), "writing a page");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* As parallel HDF5 does it. */
static MPI_Offset extended(MPI_File file, MPI_Offset wanted)
{
    MPI_Offset size = 0;
    if (me == 0)
        must(MPI_File_get_size(file, &size), "its size");
    MPI_Bcast(&size, 1, MPI_OFFSET, 0, MPI_COMM_WORLD);
    if (size < wanted) {
        MPI_Barrier(MPI_COMM_WORLD);
        must(MPI_File_set_size(file, wanted), "setting its size");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return size;
}

static void checkpoint(void)
{
    unsigned long long number;
    if (me == 1)
        MPIX_Correlated_checkpoint(MPIX_CORRELATED_ALL | MPIX_CORRELATED_WAIT, &number);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void note_begun(void)
{
    char name[4096];
    snprintf(name, sizeof name, "%s/begun", folder);
    FILE *file = fopen(name, "w");
    if (file)
        fclose(file);
}

static uint64_t hash_of_files(void)
{
    uint64_t hash = 0;
    for (int i = 0; i < FILES; i++) {
        FILE *file = fopen(name_of(i), "r");
        uint64_t word;
        while (file && 1 == fread(&word, sizeof word, 1, file))
            hash = mix(hash, word);
        if (file)
            fclose(file);
        hash = mix(hash, (uint64_t) i);
    }
    return hash;
}

int main(int argc, char **argv)
{
    const int iterations = atoi(argv[1]);
    const char *gate = argc > 3 && argv[3][0] ? argv[3] : NULL, *way = argv[4];
    const int begin = atoi(argv[5]), is_lines = 0 == strcmp(way, "lines");
    const int is_remade = 0 == strcmp(way, "remade");
    int limit = 0;
    uint64_t value, from, sum = 0, all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    folder = argv[2];
    for (int i = 0; me == 0 && i < FILES; i++)
        unlink(name_of(i));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File file = MPI_FILE_NULL;
    value = (uint64_t) me;
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        if (k == begin)
            checkpoint();
        if (k == 0)
            file = open_file(0, 0);
        if (k == begin + MUCH && me == 0)
            note_begun();
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (me + 1) % np, 0, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = mix(value, from);
        usleep(500); /* a failure comes in the middle */
        if (k % 5 == 0) {
            if (is_lines)
                must(MPI_File_write_ordered(file, &value, 1, MPI_UINT64_T, MPI_STATUS_IGNORE),
                     "writing a line");
            else {
                const int step = k / 5;
                page_by(file, step % np, step, value);
                page_by(file, (step + 1) % np, step, value);
                sum = mix(sum, (uint64_t) extended(file, (MPI_Offset) (step + 2) * PAGE));
            }
        }
        if (k % EVERY == EVERY - 1) {
            must(MPI_File_close(&file), "closing");
            file = open_file((k / EVERY + 1) % FILES, is_remade);
            if (is_lines)
                must(MPI_File_seek_shared(file, 0, MPI_SEEK_END), "seeking");
        }
    }
    MPI_File_close(&file);
    MPI_Barrier(MPI_COMM_WORLD);
    value = mix(value, sum) * (2 * (uint64_t) me + 3);
    MPI_Reduce(&value, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx, files %016llx\n", (unsigned long long) all,
               (unsigned long long) hash_of_files());
    MPI_Finalize();
    return 0;
}

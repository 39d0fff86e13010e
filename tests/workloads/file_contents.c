/* Each rank reads what it has written to files of its own, and changes it: by pwrite, by offset, as
 * a stream of the C library, by MPI-IO, mapped, as a restart file that replaces the last one, a
 * file that is a lock, folders, a file that is cut off, and logs. What it finds must be what it has
 * in memory.
 * usage: file_contents ITERATIONS FOLDER GATE */
#define _GNU_SOURCE
#include <mpi.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "gate.h"

enum { BLOCKS = 64, BYTES = BLOCKS * sizeof(uint64_t), EVERY = 7 };

static int me, np;
static const char *folder;

static const char *in_folder(const char *name)
{
    static char path[2][4096];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/rank-%d.%s", folder, me, name);
    return path[turn];
}

static void wrong(int k, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d, iteration %d: ", me, k);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void must(int k, int is_good, const char *what)
{
    if (!is_good)
        wrong(k, "%s: %s", what, strerror(errno));
}

static uint64_t next(uint64_t value, uint64_t with)
{
    return value * 6364136223846793005ull + 2 * with + 1;
}

/* A value that was read, and the one that should have been. */
static void compare(int k, const char *how, uint64_t found, uint64_t wanted)
{
    if (found != wanted)
        wrong(k, "%s: the file has %016llx, it should have %016llx", how,
              (unsigned long long) found, (unsigned long long) wanted);
}

static int new_file(const char *name)
{
    static const uint64_t empty[BLOCKS];
    int file = open(in_folder(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    must(-1, file >= 0 && write(file, empty, BYTES) == BYTES, name);
    return file;
}

/* A restart file that replaces the last one, which is read first. */
static void restart_file(int k, uint64_t value)
{
    static uint64_t last;
    uint64_t both[2];
    int file = open(in_folder("restart"), O_RDONLY);
    must(k, (file >= 0) == (k >= EVERY), "the restart file is there, or is not");
    if (file >= 0) {
        must(k, read(file, both, sizeof both) == sizeof both, "reading the restart file");
        compare(k, "the number of the restart file", both[0], (uint64_t) (k - EVERY));
        compare(k, "the restart file", both[1], last);
        close(file);
    }
    file = open(in_folder("restart.tmp"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    both[0] = (uint64_t) k;
    both[1] = last = value;
    must(k, file >= 0 && write(file, both, sizeof both) == sizeof both, "the next restart file");
    close(file);
    must(k, rename(in_folder("restart.tmp"), in_folder("restart")) == 0, "renaming it");
}

/* A file and a folder that are made and removed in turn. */
static void names(int k)
{
    const char *lock = in_folder("lock"), *place = in_folder("folder");
    if (k / EVERY % 2 == 0) {
        int file = open(lock, O_WRONLY | O_CREAT | O_EXCL, 0600);
        must(k, file >= 0, "the lock is free");
        close(file);
        must(k, mkdir(place, 0700) == 0, "there is no folder");
    } else {
        must(k, unlink(lock) == 0, "the lock is held");
        must(k, rmdir(place) == 0, "there is a folder");
    }
}

int main(int argc, char **argv)
{
    uint64_t memory[BLOCKS] = {0}, value, from, found, all;
    int iterations = atoi(argv[1]), limit = 0;
    long length = 0;
    const char *gate = argv[3];
    folder = argv[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    unlink(in_folder("restart"));
    unlink(in_folder("lock"));
    rmdir(in_folder("folder"));
    int placed = new_file("placed"), at_offset = new_file("offset"), mapped = new_file("mapped");
    int cut = open(in_folder("cut"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    int appended = open(in_folder("appended"), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    uint64_t *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, 0);
    FILE *stream = fopen(in_folder("stream"), "w+"), *text = fopen(in_folder("log"), "w");
    must(-1, cut >= 0 && appended >= 0 && map != MAP_FAILED && stream && text, "opening files");
    must(-1, fwrite(memory, BYTES, 1, stream) == 1, "the stream");
    MPI_File by_mpi;
    int access = MPI_MODE_CREATE | MPI_MODE_RDWR;
    const char *path = in_folder("mpi");
    must(-1, !MPI_File_open(MPI_COMM_SELF, path, access, MPI_INFO_NULL, &by_mpi), path);
    MPI_File_write_at(by_mpi, 0, memory, BLOCKS, MPI_UINT64_T, MPI_STATUS_IGNORE);
    value = (uint64_t) me;
    for (int k = 0; k < iterations; k++) {
        int b = k % BLOCKS;
        off_t at = b * (off_t) sizeof found;
        wait_at(gate, k, &limit);
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (me + 1) % np, 0, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = next(value, from);
        uint64_t now = next(memory[b], value);

        must(k, pread(placed, &found, sizeof found, at) == sizeof found, "pread");
        compare(k, "pread and pwrite", found, memory[b]);
        must(k, pwrite(placed, &now, sizeof now, at) == sizeof now, "pwrite");

        lseek(at_offset, at, SEEK_SET);
        must(k, read(at_offset, &found, sizeof found) == sizeof found, "read");
        compare(k, "read and write", found, memory[b]);
        lseek(at_offset, at, SEEK_SET);
        must(k, write(at_offset, &now, sizeof now) == sizeof now, "write");

        fseek(stream, at, SEEK_SET);
        must(k, fread(&found, sizeof found, 1, stream) == 1, "fread");
        compare(k, "a stream", found, memory[b]);
        fseek(stream, at, SEEK_SET);
        must(k, fwrite(&now, sizeof now, 1, stream) == 1, "fwrite");

        MPI_File_read_at(by_mpi, at, &found, 1, MPI_UINT64_T, MPI_STATUS_IGNORE);
        compare(k, "MPI-IO", found, memory[b]);
        MPI_Request request;
        if (k % 2) {
            MPI_File_write_at(by_mpi, at, &now, 1, MPI_UINT64_T, MPI_STATUS_IGNORE);
        } else {
            MPI_File_iwrite_at(by_mpi, at, &now, 1, MPI_UINT64_T, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }

        compare(k, "a mapped file", map[b], memory[b]);
        map[b] = now;

        compare(k, "the length of a file", (uint64_t) lseek(cut, 0, SEEK_END), (uint64_t) length);
        length = k % 50 == 49 ? 10 : length + 3;
        must(k, ftruncate(cut, length) == 0, "ftruncate");
        must(k, write(appended, &k, sizeof k) == sizeof k, "appending");
        compare(k, "the length of a file that grows", (uint64_t) lseek(appended, 0, SEEK_END),
                (k + 1) * sizeof k);
        fprintf(text, "%d\n", k);

        if (k % EVERY == 0) {
            restart_file(k, value);
            names(k);
        }
        memory[b] = now;
        usleep(500); /* a failure comes in the middle */
    }
    MPI_File_close(&by_mpi);
    fclose(text);
    text = fopen(in_folder("log"), "r");
    for (int k = 0, line; k < iterations; k++)
        must(k, fscanf(text, "%d", &line) == 1 && line == k, "a line of the log");
    must(iterations, fgetc(text) == '\n' && fgetc(text) == EOF, "the end of the log");
    value = (value ^ value >> 29) * (2 * (uint64_t) me + 3);
    MPI_Reduce(&value, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

/* Each rank changes files of its own by each function of the C library that changes a file or its
 * name, one file for each, and reads what it has written before by all that read. What it finds
 * must be what it has in memory.
 * usage: file_forms ITERATIONS FOLDER GATE */
#define _GNU_SOURCE
#include <mpi.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include "gate.h"

static int me, np, now, directory;
static char name[64], other[80];
static const char *what = "the beginning";

static void must(int is_good, const char *step)
{
    if (!is_good) {
        fprintf(stderr, "rank %d, iteration %d, %s: %s: %s\n", me, now, what, step,
                strerror(errno));
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

/* The current folder is that of the files. */
static int opened(const char *path, int how)
{
    int file = open(path, how, 0600);
    must(file >= 0, path);
    return file;
}

static void fill(const char *path, uint64_t value)
{
    int file = opened(path, O_WRONLY | O_CREAT | O_TRUNC);
    must(write(file, &value, sizeof value) == sizeof value, "write");
    close(file);
}

static struct iovec all_of(uint64_t *value)
{
    return (struct iovec){value, sizeof *value};
}

static void by_openat(uint64_t value)
{
    int file = openat(directory, name, O_WRONLY);
    must(file >= 0 && write(file, &value, sizeof value) == sizeof value, "openat");
    close(file);
}

static void by_creat(uint64_t value)
{
    int file = creat(name, 0600);
    must(file >= 0 && write(file, &value, sizeof value) == sizeof value, "creat");
    close(file);
}

static void by_writev(uint64_t value)
{
    int file = opened(name, O_WRONLY | O_TRUNC);
    struct iovec vector = all_of(&value);
    must(writev(file, &vector, 1) == sizeof value, "writev");
    close(file);
}

static void by_pwritev(uint64_t value)
{
    int file = opened(name, O_WRONLY);
    struct iovec vector = all_of(&value);
    must(pwritev(file, &vector, 1, 0) == sizeof value, "pwritev");
    close(file);
}

static void by_pwritev2(uint64_t value)
{
    int file = opened(name, O_WRONLY);
    struct iovec vector = all_of(&value);
    must(pwritev2(file, &vector, 1, -1, 0) == sizeof value, "pwritev2");
    close(file);
}

static void by_truncate(uint64_t value)
{
    must(truncate(name, 3) == 0, "truncate");
    by_pwritev(value);
}

static void by_ftruncate(uint64_t value)
{
    int file = opened(name, O_RDWR);
    must(ftruncate(file, 0) == 0, "ftruncate");
    must(pwrite(file, &value, sizeof value, 0) == sizeof value, "pwrite");
    close(file);
}

static void by_fallocate(uint64_t value)
{
    int file = opened(name, O_RDWR);
    must(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, sizeof value) == 0,
         "fallocate");
    must(pwrite(file, &value, sizeof value, 0) == sizeof value, "pwrite");
    close(file);
}

static void by_posix_fallocate(uint64_t value)
{
    int file = opened(name, O_RDWR);
    must(posix_fallocate(file, 0, 4096) == 0, "posix_fallocate");
    must(ftruncate(file, sizeof value) == 0, "ftruncate");
    must(pwrite(file, &value, sizeof value, 0) == sizeof value, "pwrite");
    close(file);
}

static void by_sendfile(uint64_t value)
{
    fill(other, value);
    int from = opened(other, O_RDONLY), to = opened(name, O_WRONLY);
    must(sendfile(to, from, NULL, sizeof value) == sizeof value, "sendfile");
    close(from);
    close(to);
}

static void by_copy_file_range(uint64_t value)
{
    fill(other, value);
    int from = opened(other, O_RDONLY), to = opened(name, O_WRONLY);
    must(copy_file_range(from, NULL, to, NULL, sizeof value, 0) == sizeof value,
         "copy_file_range");
    close(from);
    close(to);
}

static void by_link(uint64_t value)
{
    fill(other, value);
    must(unlink(name) == 0 && link(other, name) == 0 && unlink(other) == 0, "link");
}

static void by_linkat(uint64_t value)
{
    fill(other, value);
    must(unlinkat(directory, name, 0) == 0, "unlinkat");
    must(linkat(directory, other, directory, name, 0) == 0 && remove(other) == 0, "linkat");
}

static void by_symlink(uint64_t value)
{
    char target[80];
    snprintf(target, sizeof target, "%s.%d", name, now & 1);
    fill(target, value);
    must(unlink(name) == 0, "unlink");
    must((now & 2 ? symlink(target, name) : symlinkat(target, directory, name)) == 0, "symlink");
}

static void by_rename(uint64_t value)
{
    fill(other, value);
    must(rename(other, name) == 0, "rename");
}

static void by_renameat(uint64_t value)
{
    fill(other, value);
    must(renameat(directory, other, directory, name) == 0, "renameat");
}

static void by_renameat2(uint64_t value)
{
    fill(other, value);
    must(remove(name) == 0, "remove");
    must(renameat2(directory, other, directory, name, RENAME_NOREPLACE) == 0, "renameat2");
}

static void by_stream(uint64_t value)
{
    FILE *stream = fopen(name, "w");
    must(stream && fwrite(&value, sizeof value, 1, stream) == 1 && fclose(stream) == 0, "fopen");
}

static void by_rewind(uint64_t value)
{
    FILE *stream = fopen(name, "r+");
    uint64_t before;
    must(stream && fread(&before, sizeof before, 1, stream) == 1, "fopen");
    rewind(stream);
    must(fwrite(&value, sizeof value, 1, stream) == 1 && fclose(stream) == 0, "rewind");
}

static void by_fsetpos(uint64_t value)
{
    FILE *stream = fopen(name, "r+");
    fpos_t start;
    must(stream && fgetpos(stream, &start) == 0 && fseeko(stream, 0, SEEK_END) == 0, "fopen");
    must(fsetpos(stream, &start) == 0, "fsetpos");
    must(fwrite(&value, sizeof value, 1, stream) == 1 && fclose(stream) == 0, "fsetpos");
}

static void by_freopen(uint64_t value)
{
    FILE *stream = fopen("/dev/null", "w");
    must(stream && (stream = freopen(name, "w", stream)), "freopen");
    must(fwrite(&value, sizeof value, 1, stream) == 1 && fclose(stream) == 0, "freopen");
}

static void by_fdopen(uint64_t value)
{
    FILE *stream = fdopen(opened(name, O_WRONLY), "w");
    must(stream && fwrite(&value, sizeof value, 1, stream) == 1 && fclose(stream) == 0, "fdopen");
}

static void by_dup(uint64_t value)
{
    int file = opened(name, O_WRONLY), copy = dup(file);
    must(copy >= 0 && dup2(file, copy) == copy && dup3(copy, file, O_CLOEXEC) == file, "dup");
    must(write(copy, &value, sizeof value) == sizeof value, "write");
    close(file);
    close(copy);
}

static void by_mmap(uint64_t value)
{
    int file = opened(name, O_RDWR);
    uint64_t *map = mmap(NULL, sizeof value, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(map != MAP_FAILED, "mmap");
    *map = value;
    munmap(map, sizeof value);
    close(file);
}

static void by_mkstemp(uint64_t value)
{
    char template[] = "made-XXXXXX";
    int file = mkstemp(template);
    must(file >= 0 && write(file, &value, sizeof value) == sizeof value, "mkstemp");
    close(file);
    must(rename(template, name) == 0, "rename");
}

static void by_folder(uint64_t value)
{
    snprintf(other, sizeof other, "%s.folder", name);
    if (now % 2 == 0)
        must(mkdirat(directory, other, 0700) == 0, "there is no folder");
    else
        must(unlinkat(directory, other, AT_REMOVEDIR) == 0, "there is a folder");
    by_stream(value);
}

/* How a file is read. */
static uint64_t content(int way)
{
    uint64_t value = 0;
    struct iovec vector = all_of(&value);
    int file = opened(name, O_RDONLY);
    ssize_t count = 0;
    struct stat status;
    must(fstat(file, &status) == 0 && status.st_size == sizeof value, "its size");
    switch (way % 6) {
    case 0: count = read(file, &value, sizeof value); break;
    case 1: count = pread(file, &value, sizeof value, 0); break;
    case 2: count = readv(file, &vector, 1); break;
    case 3: count = preadv(file, &vector, 1, 0); break;
    case 4: count = preadv2(file, &vector, 1, 0, 0); break;
    default: {
        FILE *stream = fdopen(dup(file), "r");
        count = (ssize_t) fread(&value, 1, sizeof value, stream);
        fclose(stream);
    }
    }
    must(count == sizeof value, "reading");
    close(file);
    return value;
}

#define FORM(function) {#function, function}
static const struct {
    const char *name;
    void (*change)(uint64_t);
} forms[] = {
    FORM(by_openat), FORM(by_creat), FORM(by_writev), FORM(by_pwritev), FORM(by_pwritev2),
    FORM(by_truncate), FORM(by_ftruncate), FORM(by_fallocate), FORM(by_posix_fallocate),
    FORM(by_sendfile), FORM(by_copy_file_range), FORM(by_link), FORM(by_linkat),
    FORM(by_symlink), FORM(by_rename), FORM(by_renameat), FORM(by_renameat2), FORM(by_stream),
    FORM(by_rewind), FORM(by_fsetpos), FORM(by_freopen), FORM(by_fdopen), FORM(by_dup),
    FORM(by_mmap), FORM(by_mkstemp), FORM(by_folder),
};
enum { FORMS = sizeof forms / sizeof forms[0] };

int main(int argc, char **argv)
{
    static uint64_t kept[FORMS];
    uint64_t value, from, all;
    int iterations = atoi(argv[1]), limit = 0;
    const char *gate = argv[3];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    /* Of an earlier job with the same folder nothing is used. */
    char folder[] = "forms-XXXXXX";
    must(chdir(argv[2]) == 0 && mkdtemp(folder) && chdir(folder) == 0, argv[2]);
    directory = open(".", O_RDONLY | O_DIRECTORY);
    must(directory >= 0, "the folder");
    for (int form = 0; form < FORMS; form++) {
        snprintf(name, sizeof name, "%s", forms[form].name);
        fill(name, 0);
    }
    value = (uint64_t) me;
    for (now = 0; now < iterations; now++) {
        wait_at(gate, now, &limit);
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (me + 1) % np, 0, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        value = value * 6364136223846793005ull + 2 * from + 1;
        for (int form = 0; form < FORMS; form++) {
            what = forms[form].name;
            snprintf(name, sizeof name, "%s", what);
            snprintf(other, sizeof other, "%s.other", what);
            must(content(now + form) == kept[form], "it does not hold what was written to it");
            kept[form] = value ^ (uint64_t) form;
            forms[form].change(kept[form]);
        }
        usleep(500); /* a failure comes in the middle */
    }
    value = (value ^ value >> 29) * (2 * (uint64_t) me + 3);
    MPI_Reduce(&value, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

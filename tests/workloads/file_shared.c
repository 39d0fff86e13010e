/* Ranks of several nodes that use one file, in these ways:
 *   both      each writes its own place and reads that of the one in front of it;
 *   reader    rank 0 writes it, all others read it after its message;
 *   once      rank 0 writes it in the beginning and closes it, all others read it all the time;
 *   table     the same, and all have it open to write to it, as Fortran opens what is only read;
 *   writers   each writes its own place, nobody reads it until the end;
 *   made      the same in files that rank 0 makes or empties, now this one, now that one;
 *   removed   the same, rank 0 removes what it may find, and the last rank makes them;
 *   log       each in its turn appends to one file;
 *   turns     one after the other reads a place of one file and writes there;
 *   late      as once, and rank 0 writes it again just after the last rank was killed, which all
 *             have waited for;
 *   amid      the same, when the last rank is amid of what it repeats;
 *   child     when there is FOLDER/go the same, but children of rank 0 write it, again just before
 *             the last rank is killed;
 *   over      the last rank and rank 0 write the same place, one after the other, until the last
 *             rank is killed;
 *   grown     the same behind the end that the file had, another place each time;
 *   early     the same once, before which the last rank waits for FOLDER/go without MPI;
 *   after     when there is FOLDER/go, the last rank writes to one file and makes another one, and
 *             is killed; rank 0 reads both when the other one is restored and has not gone on;
 *   seen      the same, and rank 0 has read them before that, too;
 *   opendir+fdopendir, scandir+glob, nftw+realpath
 *             as after, and rank 0 finds the other file so before all else, rank 1 as the second;
 *   folders   rank 0 makes folders, each makes a file of its own in them, and the last rank removes
 *             all of that when the next one is made.
 * What is found must be what messages say.
 * With DIE_ONCE in the environment the last rank kills itself in late, amid, child, over, grown,
 * early, after and those behind it, but folders.
 * usage: file_shared ITERATIONS FOLDER GATE HOW */
#define _GNU_SOURCE
#include <mpi.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gate.h"

enum { RARELY = 1 << 30, EVERY = 100, FILES = 8, PLACES = 16, SOON = 20, DEATH = 600 };

static int me, np;

static void must(int k, int is_good, const char *what)
{
    if (!is_good) {
        fprintf(stderr, "rank %d, iteration %d: %s: %s\n", me, k, what, strerror(errno));
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

static uint64_t next(uint64_t value, uint64_t with)
{
    return value * 6364136223846793005ull + 2 * with + 1;
}

static void put(int k, int file, int place, uint64_t value)
{
    must(k, pwrite(file, &value, sizeof value, place * (off_t) sizeof value) == sizeof value,
         "pwrite");
}

static uint64_t get(int k, int file, int place)
{
    uint64_t value;
    must(k, pread(file, &value, sizeof value, place * (off_t) sizeof value) == sizeof value,
         "pread");
    return value;
}

/* A pipe: what is made in files is undone. */
static void die_once(const char *folder)
{
    char name[4200];
    snprintf(name, sizeof name, "%s/has-died", folder);
    if (getenv("DIE_ONCE") && mkfifo(name, 0600) == 0)
        raise(SIGKILL);
}

/* The last rank repeats what it did before that. */
static void say_that_it_repeats(const char *folder)
{
    char died[4200], again[4200];
    snprintf(died, sizeof died, "%s/has-died", folder);
    snprintf(again, sizeof again, "%s/repeats", folder);
    if (access(died, F_OK) == 0)
        mkfifo(again, 0600);
}

/* Waits until this file is there. */
static void await(const char *folder, const char *what)
{
    char name[4200];
    snprintf(name, sizeof name, "%s/%s", folder, what);
    while (access(name, F_OK) != 0)
        usleep(1000);
}

/* What a copy of the process does is not recorded. */
static void write_by_child(int k, const char *path, uint64_t value)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        int file = open(path, O_WRONLY | O_CREAT, 0600);
        _exit(pwrite(file, &value, sizeof value, 0) != sizeof value);
    }
    must(k, child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child");
}

/* One of the files that are made now and then. */
static int made_anew(int k, const char *path, int is_removed)
{
    char name[4200];
    snprintf(name, sizeof name, "%s-%d", path, k / EVERY % FILES);
    if (me == 0 && is_removed)
        unlink(name);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == (is_removed ? np - 1 : 0)) {
        int made = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        must(k, made >= 0, name);
        close(made);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int file = open(name, O_WRONLY);
    must(k, file >= 0, name);
    return file;
}

static void remove_folder(int k, const char *path)
{
    char name[4300];
    for (int rank = 0; rank < np; rank++) {
        snprintf(name, sizeof name, "%s-folder-%d/%d", path, k / EVERY, rank);
        must(k, unlink(name) == 0, name);
    }
    snprintf(name, sizeof name, "%s-folder-%d", path, k / EVERY);
    must(k, rmdir(name) == 0, name);
}

/* A file in a new folder, which must not be there yet. */
static int in_new_folder(int k, const char *path)
{
    char name[4300];
    if (me == np - 1 && k > 0)
        remove_folder(k - EVERY, path);
    snprintf(name, sizeof name, "%s-folder-%d", path, k / EVERY);
    must(k, me != 0 || mkdir(name, 0700) == 0, name);
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(name, sizeof name, "%s-folder-%d/%d", path, k / EVERY, me);
    int file = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
    must(k, file >= 0, name);
    return file;
}

static int is_one_of_after(const char *how)
{
    return !strcmp(how, "after") || !strcmp(how, "seen") || strchr(how, '+');
}

static const char *wanted;
static int is_found;

static int look(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void) status, (void) kind, (void) where;
    is_found |= !strcmp(path, wanted);
    return 0;
}

/* Is there such a file? As this function has it. */
static int is_listed(const char *path, const char *by)
{
    char folder[4200], pattern[4300], real[4096];
    struct dirent **entries, *entry;
    glob_t found;
    int is_there = 0, count;
    DIR *opened;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    const char *name = path + strlen(folder) + 1;
    if (strstr(by, "realpath"))
        return realpath(path, real) && !strcmp(strrchr(real, '/') + 1, name);
    if (strstr(by, "nftw")) {
        wanted = path;
        return nftw(folder, look, 8, FTW_PHYS) == 0 && is_found;
    }
    if (strstr(by, "glob")) {
        snprintf(pattern, sizeof pattern, "%s/*-made", folder);
        is_there = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc > 0
            && !strcmp(found.gl_pathv[0], path);
        globfree(&found);
        return is_there;
    }
    if (strstr(by, "scandir")) {
        count = scandir(folder, &entries, NULL, alphasort);
        for (int i = 0; i < count; i++)
            is_there |= !strcmp(entries[i]->d_name, name);
        return is_there;
    }
    if (strstr(by, "fdopendir"))
        opened = fdopendir(open(folder, O_RDONLY | O_DIRECTORY));
    else
        opened = opendir(folder);
    while (opened && (entry = readdir(opened)))
        is_there |= !strcmp(entry->d_name, name);
    closedir(opened);
    return is_there;
}

/* Before all else. */
static void look_first(int k, const char *made, const char *how)
{
    char by[64];
    const char *second = strchr(how, '+');
    if (!second)
        return;
    snprintf(by, sizeof by, "%.*s", me ? 60 : (int) (second - how), me ? second + 1 : how);
    must(k, is_listed(made, by), by);
}

static void read_both(int k, const char *path, const char *made, uint64_t value, const char *how)
{
    struct stat status;
    const char *names[] = {path, made};
    look_first(k, made, how);
    must(k, access(made, R_OK) == 0 && stat(made, &status) == 0, "the status of what was made");
    must(k, status.st_size == (np + 1) * (off_t) sizeof value, "its size");
    must(k, is_listed(made, "opendir"), "its folder");
    for (int i = 0; i < 2; i++) {
        int file = open(names[i], O_RDONLY);
        must(k, file >= 0, names[i]);
        must(k, get(k, file, np) == value, names[i]);
        close(file);
    }
}

/* The last rank writes, and is killed once; rank 0 reads. */
static void write_and_read(int file, const char *path, const char *folder, const char *how)
{
    char made[4200];
    uint64_t value = 12345;
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(made, sizeof made, "%s-made", path);
    if (me == np - 1) {
        put(0, file, np, value);
        int new = open(made, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        must(0, new >= 0, made);
        put(0, new, np, value);
        close(new);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0 && !strcmp(how, "seen"))
        read_both(0, path, made, value, how);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == np - 1)
        die_once(folder);
    if (me < 2 && getenv("DIE_ONCE"))
        await(folder, "endpoints-3.reached");
    if (me == 1)
        look_first(0, made, how);
    if (me == 0)
        read_both(0, path, made, value, how);
}

/* Of all of them, and of the log. */
static uint64_t hash_of_files(const char *path)
{
    uint64_t hash = 0, word;
    for (int i = -1; i < FILES; i++) {
        char name[4200];
        snprintf(name, sizeof name, i < 0 ? "%s" : "%s-%d", path, i);
        FILE *file = fopen(name, "r");
        while (file && 1 == fread(&word, sizeof word, 1, file))
            hash = next(hash, word);
        if (file)
            fclose(file);
        hash = next(hash ^ hash >> 31, (uint64_t) i);
    }
    return hash;
}

int main(int argc, char **argv)
{
    uint64_t value, from, of_root, all;
    int iterations = atoi(argv[1]), limit = 0;
    char path[4096];
    const char *gate = argv[3], *how = argv[4];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    const int is_turns = !strcmp(how, "turns");
    int both = !strcmp(how, "both"), writers = !strcmp(how, "writers");
    const int is_log = !strcmp(how, "log"), is_removed = !strcmp(how, "removed");
    const int is_folders = !strcmp(how, "folders"), is_child = !strcmp(how, "child");
    const int is_amid = !strcmp(how, "amid");
    const int is_late = is_child || is_amid || !strcmp(how, "late");
    const int is_early = !strcmp(how, "early"), is_grown = is_early || !strcmp(how, "grown");
    const int is_over = is_grown || !strcmp(how, "over");
    const int is_made = !strcmp(how, "made") || is_removed || is_folders;
    const int is_table = !strcmp(how, "table");
    const int is_after = is_one_of_after(how);
    const int death = is_early ? 0 : is_child ? SOON : DEATH;
    int every = is_late || is_table || !strcmp(how, "once") ? RARELY : 1;
    snprintf(path, sizeof path, "%s/shared.%s", argv[2], how);
    if (me == 0 && is_after) { /* of a run before this one */
        char made[4200];
        snprintf(made, sizeof made, "%s-made", path);
        unlink(made);
    }
    if (me == 0 && is_child) {
        write_by_child(-1, path, 0);
    } else if (me == 0) {
        int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        must(-1, file >= 0, path);
        for (int place = 0; place < np || place < PLACES; place++)
            put(-1, file, place, 0);
        close(file);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    int made = -1;
    if (is_log || is_made)
        writers = 1;
    const int reads_too = both || is_turns || is_over || is_table;
    const int is_writer = writers || me == (is_after ? np - 1 : is_child ? -1 : 0);
    int access = reads_too ? O_RDWR : is_writer ? O_WRONLY : O_RDONLY;
    if (is_log)
        access |= O_APPEND;
    int file = open(path, access);
    must(-1, file >= 0, path);
    value = of_root = (uint64_t) me;
    if (me == (is_early ? np - 1 : is_after || is_child ? 0 : -1))
        await(argv[2], "go");
    if (is_after)
        write_and_read(file, path, argv[2], how);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        if (is_made && k % EVERY == 0) {
            close(made);
            made = is_folders ? in_new_folder(k, path) : made_anew(k, path, is_removed);
        }
        if (is_turns && k % np == me) {
            value = next(value, get(k, file, k / np % PLACES));
            put(k, file, k / np % PLACES, value);
        }
        if (is_over && k <= death) {
            int place = is_grown ? PLACES + np + k : k % PLACES;
            if (me == np - 1)
                put(k, file, place, next(value, 1));
            if (is_early)
                usleep(100000); /* out of MPI, where nobody is told that it is restored */
            MPI_Barrier(MPI_COMM_WORLD);
            if (me == 0)
                put(k, file, place, next(value, 2));
            MPI_Barrier(MPI_COMM_WORLD);
        }
        if (is_turns || is_over || is_after)
            ;
        else if (is_log)
            must(k, k % np != me || write(file, &value, sizeof value) == sizeof value, "write");
        else if (is_made)
            put(k, made, me + k % EVERY * np, value);
        else if ((both || writers || me == 0) && k % every == 0) {
            if (is_child)
                write_by_child(k, path, value);
            else
                put(k, file, me, value);
        }
        MPI_Sendrecv(&value, 1, MPI_UINT64_T, (me + 1) % np, 0, &from, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (both)
            must(k, get(k, file, (me + np - 1) % np) == from, "the place of the one in front");
        if (k % every == 0) {
            of_root = value;
            MPI_Bcast(&of_root, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
            if (every == RARELY && me == 0)
                close(file);
        }
        if (!both && !writers && !is_turns && !is_over && !is_after && me != 0)
            must(k, get(k, file, 0) == of_root, "what rank 0 has written");
        value = next(value, from);
        /* Nobody writes again before all have read. */
        MPI_Barrier(MPI_COMM_WORLD);
        if (is_child && k == death) {
            if (me == 0)
                write_by_child(k, path, value);
            MPI_Barrier(MPI_COMM_WORLD);
        }
        if (is_amid && k == EVERY && me == np - 1)
            say_that_it_repeats(argv[2]);
        if ((is_late || is_over) && k == death && me == np - 1)
            die_once(argv[2]);
        if (is_late && k == death) {
            of_root = value;
            if (me == 0 && !is_child) {
                if (is_amid && getenv("DIE_ONCE"))
                    await(argv[2], "repeats");
                else
                    usleep(30000); /* the other one is being restored */
                file = open(path, O_WRONLY);
                must(k, file >= 0, path);
                put(k, file, 0, value);
                close(file);
            }
            MPI_Bcast(&of_root, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        }
        usleep(500);
    }
    close(made);
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_folders && me == np - 1) /* the next run makes it again */
        remove_folder((iterations - 1) / EVERY * EVERY, path);
    if (writers && me == 0 && !is_log && !is_made) {
        close(file);
        file = open(path, O_RDONLY);
        for (int rank = 0; rank < np; rank++)
            value = next(value, get(iterations, file, rank));
    }
    if (me == 0 && (is_log || is_made || is_over))
        value = next(value, hash_of_files(path));
    value = (value ^ value >> 29) * (2 * (uint64_t) me + 3);
    MPI_Reduce(&value, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

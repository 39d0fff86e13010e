/* What files and clocks cost a program that is protected, while nothing fails.
 *
 * usage: services REPEATS     (files are made where it runs, and removed)
 * Each part goes on for some seconds on all ranks, so that checkpoints are taken in it. Prints one
 * line a part: METRIC BYTES VALUE, the median over its rounds, of rank 0. METRIC is one of
 *   append     nanoseconds for a line of 64 bytes by fprintf, at the end of a file that grows
 *   in-place   MB/s of pwrite, 64 KiB at a time, anywhere in a file of 32 MiB
 *   replace    MB/s of a restart file of 8 MiB that is written, and renamed over the one before
 *   clock      nanoseconds for a call of clock_gettime in a loop
 *   step       microseconds for a thousand readings of the clock, and 1 KiB to a neighbour
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, LINES = 20000, PIECE = 1 << 16, FILE_BYTES = 32 << 20, PIECES = 256 };
enum { RESTART_BYTES = 8 << 20, CALLS = 1000000, READINGS = 1000, STEPS = 200, MESSAGE = 1024 };
enum { ROUNDS_MAX = 100000 };

static int me, size;
static unsigned draw = 12345;
static char name[64], other_name[64];
static char *bytes;

static double clock_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

static void must(int good, const char *what)
{
    if (good)
        return;
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void append(void)
{
    static const char text[] = "a line of a log as programs write it, with nothing of interest";
    FILE *file = fopen(name, "a");
    must(NULL != file, name);
    for (int i = 0; i < LINES; i++)
        must(LINE == fprintf(file, "%-63.63s\n", text), name);
    must(0 == fclose(file), name);
}

static void in_place(void)
{
    int file = open(name, O_WRONLY);
    must(0 <= file, name);
    for (int i = 0; i < PIECES; i++) {
        draw = draw * 1103515245u + 12345u;
        off_t at = (off_t) (draw >> 8) % (FILE_BYTES / PIECE) * PIECE;
        bytes[i] = (char) draw;
        must(PIECE == pwrite(file, bytes, PIECE, at), name);
    }
    must(0 == close(file), name);
}

static void replace(void)
{
    int file = open(other_name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(0 <= file, other_name);
    bytes[0]++;
    for (int at = 0; at < RESTART_BYTES; at += 1 << 20)
        must(1 << 20 == write(file, bytes, 1 << 20), other_name);
    must(0 == close(file) && 0 == rename(other_name, name), name);
}

static void read_clock(void)
{
    struct timespec time;
    for (int i = 0; i < CALLS; i++)
        clock_gettime(CLOCK_MONOTONIC, &time);
}

static void steps(void)
{
    struct timespec time;
    static char out[MESSAGE], in[MESSAGE];
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < READINGS; i++)
            clock_gettime(CLOCK_MONOTONIC, &time);
        MPI_Sendrecv(out, MESSAGE, MPI_CHAR, (me + 1) % size, 1, in, MESSAGE, MPI_CHAR,
                     (me + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

/* Seconds of a round, the median. */
static double part(void (*round)(void), double seconds)
{
    static double took[ROUNDS_MAX];
    int rounds = 0, more = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    double end = clock_s() + seconds;
    while (more) {
        double start = clock_s();
        round();
        took[rounds++] = clock_s() - start;
        more = rounds < ROUNDS_MAX && clock_s() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    qsort(took, (size_t) rounds, sizeof took[0], by_value);
    return took[rounds / 2];
}

static void say(const char *metric, int size_of_one, double value)
{
    if (0 == me)
        printf("%s %d %.6g\n", metric, size_of_one, value);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double seconds = 0.6 * (argc > 1 ? atoi(argv[1]) : 1);
    snprintf(name, sizeof name, "services.%d", me);
    snprintf(other_name, sizeof other_name, "services.%d.new", me);
    bytes = calloc(1, FILE_BYTES);
    must(NULL != bytes, "memory");
    unlink(name);
    say("append", 0, 1e9 / LINES * part(append, seconds));
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    must(0 <= file && FILE_BYTES == write(file, bytes, FILE_BYTES) && 0 == close(file), name);
    say("in-place", PIECE, 1e-6 * PIECES * PIECE / part(in_place, seconds));
    say("replace", RESTART_BYTES, 1e-6 * RESTART_BYTES / part(replace, seconds));
    say("clock", 0, 1e9 / CALLS * part(read_clock, seconds));
    say("step", 0, 1e6 / STEPS * part(steps, seconds));
    unlink(name);
    free(bytes);
    MPI_Finalize();
    return 0;
}

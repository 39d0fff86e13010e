/* What the machine itself allows, without MPI: two pinned processes that share memory.
 *
 * usage: floor line REPEATS         half a round trip of one cache line, in microseconds
 *        floor readv SIZES REPEATS  one process_vm_readv of so many bytes, in megabytes a second
 * Prints two lines a size: MODE BYTES MEDIAN, and MODE-best BYTES VALUE of the fastest 30 round
 * trips in a row, or the fastest read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REPEATS_MAX = 1001, LINE = 64 };

/* One line for each direction, far from each other so that no prefetcher joins them. */
struct shared {
    _Alignas(4096) atomic_ulong there;
    _Alignas(4096) atomic_ulong back;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void pin(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    /* A machine with one processor still gets an answer. */
    (void) sched_setaffinity(0, sizeof set, &set);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, count, sizeof values[0], by_value);
    return values[count / 2];
}

static void await(atomic_ulong *line, unsigned long value)
{
    unsigned long spins = 0;
    while (atomic_load_explicit(line, memory_order_acquire) != value)
        if (0 == ++spins % 100000) sched_yield();
}

static pid_t start(void (*body)(struct shared *), struct shared *shared)
{
    pid_t child = fork();
    if (child < 0) fail("floor: fork");
    if (0 == child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1);
        body(shared);
        _exit(0);
    }
    pin(0);
    return child;
}

static void answer(struct shared *shared)
{
    for (unsigned long round = 1;; round++) {
        await(&shared->there, round);
        atomic_store_explicit(&shared->back, round, memory_order_release);
    }
}

static void line(struct shared *shared, int repeats)
{
    enum { ROUNDS = 50000, WARM = 5000, STRETCH = 30 };
    double results[REPEATS_MAX], fastest = 1e9;
    unsigned long round = 0;
    pid_t child = start(answer, shared);
    for (int i = 0; i < repeats; i++) {
        double begin = 0, stretch = 0;
        for (int k = -WARM; k < ROUNDS; k++) {
            if (0 == k) begin = stretch = now();
            atomic_store_explicit(&shared->there, ++round, memory_order_release);
            await(&shared->back, round);
            if (k < 0 || (k + 1) % STRETCH) continue;
            double end = now();
            if (end - stretch < fastest) fastest = end - stretch;
            stretch = end;
        }
        results[i] = 1e6 * (now() - begin) / ROUNDS / 2;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("line %d %.6g\n", LINE, median(results, repeats));
    printf("line-best %d %.6g\n", LINE, 1e6 * fastest / STRETCH / 2);
}

static void sleep_for_ever(struct shared *shared)
{
    (void) shared;
    for (;;) pause();
}

static double read_once(pid_t from, char *into, char *remote, size_t bytes)
{
    struct iovec here = { into, bytes }, there = { remote, bytes };
    double begin = now();
    if (process_vm_readv(from, &here, 1, &there, 1, 0) != (ssize_t) bytes)
        fail("floor: process_vm_readv (may this process look into its child?)");
    return now() - begin;
}

static void readv_of(size_t bytes, int repeats)
{
    double results[REPEATS_MAX], fastest = 1e9;
    char *buffer = malloc(bytes), *into = malloc(bytes);
    memset(buffer, 1, bytes); /* the child has the pages too: fork shares them */
    memset(into, 2, bytes);
    pid_t child = start(sleep_for_ever, NULL);
    int rounds = 200000000 / (bytes + 20000) / 4 + 3;
    for (int i = 0; i < repeats; i++) {
        double sum = 0;
        (void) read_once(child, into, buffer, bytes);
        for (int k = 0; k < rounds; k++) {
            double once = read_once(child, into, buffer, bytes);
            if (once < fastest) fastest = once;
            sum += once;
        }
        results[i] = bytes * (double) rounds / sum / 1e6;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    free(buffer);
    free(into);
    printf("readv %zu %.6g\n", bytes, median(results, repeats));
    printf("readv-best %zu %.6g\n", bytes, bytes / fastest / 1e6);
}

int main(int argc, char **argv)
{
    int lines = argc == 3 && !strcmp(argv[1], "line");
    if (!lines && !(argc == 4 && !strcmp(argv[1], "readv"))) {
        fprintf(stderr, "usage: floor line REPEATS | floor readv SIZES REPEATS\n");
        return 2;
    }
    int repeats = atoi(argv[argc - 1]);
    if (repeats < 1 || repeats > REPEATS_MAX) repeats = 5;
    if (lines) {
        struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (MAP_FAILED == shared) fail("floor: mmap");
        line(shared, repeats);
        return 0;
    }
    for (char *at = argv[2]; *at;) {
        size_t bytes = strtoul(at, &at, 10);
        if (*at) at++;
        if (bytes > 0) readv_of(bytes, repeats);
    }
    return 0;
}

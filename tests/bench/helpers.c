/* Threads and processes beside a program: how often they wake up, and what they take from it.
 *
 * usage: helpers REPEATS      (an even number of ranks; each exchanges with the one half away)
 * Prints one line a number: METRIC BYTES VALUE. PHASE is one of
 *   halo      2 ms of computing, then 1 MiB to and from the partner, again and again
 *   computes  nothing else
 * and METRIC
 *   PHASE-preempted    the processor was taken from the ranks' first threads, times a second each
 *   PHASE-NAME-wakes   threads of this name have woken up, times a second and rank
 *   PHASE-NAME-cpu     their time, in percent of a processor
 *   PHASE-processes-…  the same of all processes rustbtl of this machine, also of other jobs
 *   away               microseconds until a message is there whose receiver comes 20 ms after its
 *                      sender, which computes for 300 ms; median, and in away-most the most
 */
#include "warm.h"

#include <ctype.h>
#include <dirent.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 1 << 20, NAMES = 6, REPEATS_MAX = 1001 };
enum { PREEMPTED, WAKES, CPU, KINDS };

static const double PHASE_S = 2.0;
static const char *const names[NAMES] = { "first", "rustbtl-answer", "rustbtl-ckpt",
                                          "rustbtl-copy", "rustbtl-pages", "processes" };

typedef struct { double of[NAMES][KINDS]; } counts_t;

static int me, size, partner;
static char *out_buffer, *in_buffer;

/* Not MPI_Wtime: what it returns is recorded where everything is on. */
static double clock_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

static void compute(double seconds)
{
    double end = clock_s() + seconds;
    volatile double x = 1;
    do
        for (int i = 0; i < 20000; i++) x = x * 1.0000001 + 1e-9;
    while (clock_s() < end);
}

/* Adds what one thread has done so far. */
static void add_task(double *to, const char *task)
{
    char path[400], line[200];
    double value;
    snprintf(path, sizeof path, "%s/status", task);
    FILE *file = fopen(path, "r");
    while (NULL != file && NULL != fgets(line, sizeof line, file)) {
        if (1 == sscanf(line, "voluntary_ctxt_switches: %lf", &value)) to[WAKES] += value;
        if (1 == sscanf(line, "nonvoluntary_ctxt_switches: %lf", &value)) to[PREEMPTED] += value;
    }
    if (NULL != file) fclose(file);
    snprintf(path, sizeof path, "%s/schedstat", task);
    file = fopen(path, "r");
    if (NULL != file && 1 == fscanf(file, "%lf", &value)) to[CPU] += value / 1e9;
    if (NULL != file) fclose(file);
}

/* Which of the names a thread of this process has; -1: it is none of interest. */
static int name_of(const char *task, int first)
{
    char path[400], name[40] = "";
    if (first) return 0;
    snprintf(path, sizeof path, "%s/comm", task);
    FILE *file = fopen(path, "r");
    if (NULL == file) return -1;
    if (1 != fscanf(file, "%39s", name)) name[0] = '\0';
    fclose(file);
    for (int i = 1; i < NAMES; i++)
        if (0 == strcmp(name, names[i])) return i;
    return -1;
}

/* All threads of a process; under one name, if `as` is not negative. */
static void add_process(counts_t *counts, long pid, int as)
{
    char folder[100], task[380];
    snprintf(folder, sizeof folder, "/proc/%ld/task", pid);
    DIR *tasks = opendir(folder);
    for (struct dirent *e; NULL != tasks && NULL != (e = readdir(tasks));) {
        if (!isdigit((unsigned char) e->d_name[0])) continue;
        snprintf(task, sizeof task, "%s/%s", folder, e->d_name);
        int name = 0 > as ? name_of(task, atol(e->d_name) == pid) : as;
        if (0 <= name) add_task(counts->of[name], task);
    }
    if (NULL != tasks) closedir(tasks);
}

static int is_daemon_of_ours(long pid)
{
    char path[100], words[4096] = "";
    snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (NULL == file) return 0;
    size_t bytes = fread(words, 1, sizeof words - 1, file);
    fclose(file);
    words[bytes] = '\0';
    const char *slash = strrchr(words, '/');
    return 0 == strcmp(NULL == slash ? words : slash + 1, "rustbtl");
}

static counts_t now(void)
{
    counts_t counts;
    memset(&counts, 0, sizeof counts);
    add_process(&counts, getpid(), -1);
    DIR *all = 0 == me ? opendir("/proc") : NULL;
    for (struct dirent *e; NULL != all && NULL != (e = readdir(all));)
        if (isdigit((unsigned char) e->d_name[0]) && is_daemon_of_ours(atol(e->d_name)))
            add_process(&counts, atol(e->d_name), NAMES - 1);
    if (NULL != all) closedir(all);
    return counts;
}

static void exchange(void)
{
    MPI_Request request;
    MPI_Irecv(in_buffer, BYTES, MPI_CHAR, partner, 1, MPI_COMM_WORLD, &request);
    MPI_Send(out_buffer, BYTES, MPI_CHAR, partner, 1, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void halo(void)
{
    int more = 1;
    double end = clock_s() + PHASE_S;
    while (more) {
        for (int i = 0; i < 20; i++) {
            compute(0.002);
            exchange();
        }
        more = clock_s() < end;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

static void computes(void)
{
    compute(PHASE_S);
}

static void phase(const char *title, void (*run)(void))
{
    counts_t sums, before, after;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = clock_s();
    before = now();
    run();
    after = now();
    double seconds = clock_s() - start;
    for (int i = 0; i < NAMES; i++)
        for (int k = 0; k < KINDS; k++) after.of[i][k] -= before.of[i][k];
    MPI_Reduce(&after, &sums, NAMES * KINDS, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 != me) return;
    printf("%s-preempted 0 %.6g\n", title, sums.of[0][PREEMPTED] / seconds / size);
    for (int i = 1; i < NAMES; i++) {
        int over = NAMES - 1 == i ? 1 : size;
        printf("%s-%s-wakes 0 %.6g\n", title, names[i], sums.of[i][WAKES] / seconds / over);
        printf("%s-%s-cpu 0 %.6g\n", title, names[i], 100 * sums.of[i][CPU] / seconds / over);
    }
    fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static void away(int repeats)
{
    double took[REPEATS_MAX];
    int receives = me >= size / 2;
    for (int i = 0; i < repeats; i++) {
        /* A program that was in MPI often until now. */
        for (int k = 0; k < 20; k++) {
            compute(0.001);
            exchange();
        }
        if (receives) {
            compute(0.020);
            took[i] = clock_s();
            MPI_Recv(in_buffer, BYTES, MPI_CHAR, partner, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            took[i] = 1e6 * (clock_s() - took[i]);
        } else {
            MPI_Send(out_buffer, BYTES, MPI_CHAR, partner, 2, MPI_COMM_WORLD);
            compute(0.300);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (receives) qsort(took, (size_t) repeats, sizeof took[0], by_value);
    double result[2] = { took[repeats / 2], took[repeats - 1] };
    if (me == size / 2) MPI_Send(result, 2, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD);
    if (0 != me) return;
    MPI_Recv(result, 2, MPI_DOUBLE, size / 2, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    printf("away %d %.6g\naway-most %d %.6g\n", BYTES, result[0], BYTES, result[1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int repeats = argc > 1 ? atoi(argv[1]) : 1;
    if (0 != size % 2 || 1 > repeats || REPEATS_MAX < repeats) {
        if (0 == me) fprintf(stderr, "usage: helpers REPEATS, with an even number of ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    partner = (me + size / 2) % size;
    out_buffer = calloc(1, BYTES);
    in_buffer = calloc(1, BYTES);
    wait_for_first_checkpoint();
    phase("halo", halo);
    phase("computes", computes);
    away(repeats);
    free(out_buffer);
    free(in_buffer);
    MPI_Finalize();
    return 0;
}

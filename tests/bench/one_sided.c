/* One-sided communication, for paired comparisons of components and PMLs.
 *
 * usage: one_sided MODE SIZES REPEATS [create|allocate|dynamic]
 *   MODE  put        MPI_Put and MPI_Win_flush: microseconds for one
 *         get        the same with MPI_Get
 *         accumulate the same with MPI_Accumulate of longs by MPI_SUM (SIZES in bytes)
 *         fetch      MPI_Fetch_and_op of a long and flush (SIZES is not used, but counts runs)
 *         swap       MPI_Compare_and_swap of a long and flush
 *         lock       exclusive lock, MPI_Put, unlock
 *         fence      all put to the next rank between two fences: microseconds for both
 *         post       the same between MPI_Win_post and MPI_Win_wait, with a group of two
 *         putrate    64 MPI_Put, then a flush: operations a second
 *         getrate    64 MPI_Get, then a flush
 *         fetchrate  16 MPI_Fetch_and_op, then a flush
 *         busy       the target computes 20 ms without MPI; put, get and fetch of SIZES bytes and
 *                    flush while it does: microseconds for each (lines busy-put, -get, -fetch)
 *   SIZES comma separated bytes
 *   REPEATS measurements a size; the median is printed
 * Rank 0 accesses the window of rank size/2; the others wait in a barrier (fence, post: all).
 * Prints MODE BYTES MEDIAN, and MODE-best BYTES VALUE of the fastest stretch of a few operations.
 */
#include "unrecorded_clock.h"
#include "warm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MAX = 1001, RATE_BURST = 64, FETCH_BURST = 16, STRETCH = 20 };
enum mode { PUT, GET, ACCUMULATE, FETCH, SWAP, LOCK, FENCE, POST, PUTRATE, GETRATE, FETCHRATE,
            BUSY, MODES };
static const char *const names[MODES] = {"put",     "get",     "accumulate", "fetch",
                                         "swap",    "lock",    "fence",      "post",
                                         "putrate", "getrate", "fetchrate",  "busy"};

static int me, np, target;
static MPI_Win window;
static MPI_Aint base_at; /* displacement of the target's memory: 0 unless dynamic */
static MPI_Group next_group, previous_group;
static char *buffer;
static long word, result, none;

/* One round of a mode: an operation, a burst, or an epoch of all. */
static void round_of(enum mode mode, int bytes)
{
    const int count = bytes / 8 ? bytes / 8 : 1;
    switch (mode) {
    case PUT:
        MPI_Put(buffer, bytes, MPI_BYTE, target, base_at, bytes, MPI_BYTE, window);
        break;
    case GET:
        MPI_Get(buffer, bytes, MPI_BYTE, target, base_at, bytes, MPI_BYTE, window);
        break;
    case ACCUMULATE:
        MPI_Accumulate(buffer, count, MPI_LONG, target, base_at, count, MPI_LONG, MPI_SUM,
                       window);
        break;
    case FETCH:
        MPI_Fetch_and_op(&word, &result, MPI_LONG, target, base_at, MPI_SUM, window);
        break;
    case SWAP:
        MPI_Compare_and_swap(&word, &none, &result, MPI_LONG, target, base_at, window);
        break;
    case LOCK:
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
        MPI_Put(buffer, bytes, MPI_BYTE, target, base_at, bytes, MPI_BYTE, window);
        MPI_Win_unlock(target, window);
        return;
    case FENCE:
        MPI_Win_fence(0, window);
        MPI_Put(buffer, bytes, MPI_BYTE, (me + 1) % np, base_at, bytes, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        return;
    case POST:
        MPI_Win_post(previous_group, 0, window);
        MPI_Win_start(next_group, 0, window);
        MPI_Put(buffer, bytes, MPI_BYTE, (me + 1) % np, base_at, bytes, MPI_BYTE, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        return;
    case PUTRATE:
        for (int k = 0; k < RATE_BURST; k++)
            MPI_Put(buffer, bytes, MPI_BYTE, target, base_at, bytes, MPI_BYTE, window);
        break;
    case GETRATE:
        for (int k = 0; k < RATE_BURST; k++)
            MPI_Get(buffer, bytes, MPI_BYTE, target, base_at, bytes, MPI_BYTE, window);
        break;
    case FETCHRATE:
        for (int k = 0; k < FETCH_BURST; k++)
            MPI_Fetch_and_op(&word, &result, MPI_LONG, target, base_at, MPI_SUM, window);
        break;
    default:
        break;
    }
    MPI_Win_flush(target, window);
}

static int operations_in(enum mode mode)
{
    return mode == PUTRATE || mode == GETRATE ? RATE_BURST : mode == FETCHRATE ? FETCH_BURST : 1;
}

static int is_of_all(enum mode mode)
{
    return mode == FENCE || mode == POST;
}

/* Seconds for an operation; `best` is lowered to that of the fastest stretch. */
static double measure(enum mode mode, int bytes, int rounds, double *best)
{
    int n = operations_in(mode);
    double start = clock_s(), begin = start;
    for (int k = 0; k < rounds; k++) {
        round_of(mode, bytes);
        if ((k + 1) % STRETCH == 0) {
            double now = clock_s(), each = (now - begin) / STRETCH / n;
            *best = each < *best ? each : *best;
            begin = now;
        }
    }
    return (clock_s() - start) / rounds / n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static void print(const char *name, const char *suffix, int bytes, double value)
{
    printf("%s%s %d %.6g\n", name, suffix, bytes, value);
    fflush(stdout);
}

static double in_unit(enum mode mode, double seconds)
{
    return operations_in(mode) > 1 ? 1 / seconds : 1e6 * seconds;
}

/* The waiting ranks are in a barrier, as the target of a program may be. */
static void run(enum mode mode, int bytes, int repeats)
{
    double all[REPEATS_MAX], best = 1e9;
    int rounds = 0;
    if (me == 0 || is_of_all(mode)) {
        double unused = 1e9, once = measure(mode, bytes, 20, &unused) * operations_in(mode);
        rounds = once > 0 ? (int) (0.02 / once) : 1000;
        rounds = rounds < 2 * STRETCH ? 2 * STRETCH : rounds > 20000 ? 20000 : rounds;
    }
    if (is_of_all(mode))
        MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < repeats && rounds; i++)
        all[i] = measure(mode, bytes, rounds, &best);
    if (me == 0) {
        qsort(all, (size_t) repeats, sizeof *all, by_value);
        print(names[mode], "", bytes, in_unit(mode, all[repeats / 2]));
        if (best < 1e9)
            print(names[mode], "-best", bytes, in_unit(mode, best));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static volatile double sink;
static double turns_a_second;

static void turn(double turns)
{
    for (double k = 0; k < turns; k++)
        sink = k;
}

static void compute(double seconds)
{
    if (turns_a_second <= 0) {
        double start = clock_s();
        turn(1e7);
        turns_a_second = 1e7 / (clock_s() - start);
    }
    turn(seconds * turns_a_second);
}

/* The target computes; how long does the origin wait? */
static void run_busy(int bytes, int repeats)
{
    static const enum mode modes[] = {PUT, GET, FETCH};
    static const char *const shown[] = {"busy-put", "busy-get", "busy-fetch"};
    compute(0);
    for (int m = 0; m < 3; m++) {
        double all[REPEATS_MAX];
        for (int i = 0; i < repeats; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            if (me == target) {
                compute(0.02);
            } else if (me == 0) {
                compute(0.002); /* it has begun */
                double start = clock_s();
                round_of(modes[m], bytes);
                all[i] = clock_s() - start;
            }
        }
        if (me == 0) {
            qsort(all, (size_t) repeats, sizeof *all, by_value);
            print(shown[m], "", bytes, 1e6 * all[repeats / 2]);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static char *make_window(const char *how, MPI_Aint bytes)
{
    char *memory = NULL;
    if (!strcmp(how, "allocate")) {
        MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
        memset(memory, 0, (size_t) bytes);
        return NULL;
    }
    memory = calloc(1, (size_t) bytes);
    if (!strcmp(how, "dynamic")) {
        MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        MPI_Win_attach(window, memory, bytes);
        MPI_Aint all[np], mine;
        MPI_Get_address(memory, &mine);
        MPI_Allgather(&mine, 1, MPI_AINT, all, 1, MPI_AINT, MPI_COMM_WORLD);
        base_at = all[target];
    } else {
        MPI_Win_create(memory, bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    }
    return memory;
}

int main(int argc, char **argv)
{
    int mode = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    while (argc > 1 && mode < MODES && strcmp(argv[1], names[mode]))
        mode++;
    if (argc < 4 || mode == MODES || np < 2) {
        if (me == 0)
            fprintf(stderr, "usage: one_sided MODE SIZES REPEATS [create|allocate|dynamic]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *how = argc > 4 ? argv[4] : "allocate";
    int repeats = atoi(argv[3]), largest = 64, ranks[2] = {(me + 1) % np, (me + np - 1) % np};
    repeats = repeats < 1 || repeats > REPEATS_MAX ? 5 : repeats;
    for (char *at = argv[2]; *at; at += *at != 0) {
        long bytes = strtol(at, &at, 10);
        largest = bytes > largest ? (int) bytes : largest;
    }
    target = np / 2;
    MPI_Group world;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &ranks[0], &next_group);
    MPI_Group_incl(world, 1, &ranks[1], &previous_group);
    buffer = calloc(1, (size_t) largest);
    char *memory = make_window(how, largest);
    int all = is_of_all(mode);
    wait_for_first_checkpoint();
    start_clock();
    if (!all && mode != LOCK)
        MPI_Win_lock_all(0, window);
    if (all && !strcmp(how, "dynamic")) {
        if (me == 0)
            fprintf(stderr, "one_sided: fence and post want another window\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (char *at = argv[2]; *at; at += *at != 0) {
        int bytes = (int) strtol(at, &at, 10);
        if (mode == BUSY)
            run_busy(bytes, repeats);
        else
            run(mode, bytes, repeats);
    }
    if (!all && mode != LOCK)
        MPI_Win_unlock_all(window);
    if (mode == FENCE)
        MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!strcmp(how, "dynamic"))
        MPI_Win_detach(window, memory);
    MPI_Win_free(&window);
    free(memory);
    free(buffer);
    MPI_Group_free(&next_group);
    MPI_Group_free(&previous_group);
    MPI_Group_free(&world);
    MPI_Finalize();
    return 0;
}

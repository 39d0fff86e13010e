/* Common part of the MPI test programs: patterns, loud failures, a time limit, the final `OK`.
 *
 * Every program is one C file:   mpicc -std=gnu11 -O2 -Wall -Wextra -Werror -o t t.c -pthread
 * Its first line tells how it may be run, fields separated by " ; " (README.md):
 *     ranks, nodes, args, thread, exit, output, files, env
 *
 * A byte of a message is a function of (sender, tag, index, iteration), so that a message which
 * went to the wrong receive, came twice, or was cut is seen and can be named.
 *
 * Environment: CHECK_SECONDS  seconds until a hanging rank tells its step and ends the job (240)
 *              CHECK_SEED     seed of the random programs (1)
 *              CHECK_SCALE    divides the loop counts of the long programs (1)
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

static int me UNUSED = -1; /* rank in MPI_COMM_WORLD */
static int np UNUSED = 0;  /* size of MPI_COMM_WORLD */
static char check_step_text[256] = "start";

/* What this rank is doing: shown when it fails or hangs. Main thread only. */
#define STEP(...) ((void)snprintf(check_step_text, sizeof check_step_text, __VA_ARGS__))

__attribute__((noreturn, format(printf, 3, 4), unused)) static void
check_fail(const char *file, int line, const char *format, ...)
{
    char text[1024], all[1600];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    int n = snprintf(all, sizeof all, "FAIL rank %d of %d, %s:%d, step '%s': %s\n", me, np, file,
                     line, check_step_text, text);
    fflush(stdout);
    if (write(STDERR_FILENO, all, (size_t)n) < 0)
        _exit(3);
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

#define FAIL(...) check_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition, format, ...)                                                              \
    do {                                                                                           \
        if (!(condition))                                                                          \
            check_fail(__FILE__, __LINE__, "not (%s): " format, #condition, ##__VA_ARGS__);        \
    } while (0)
#define CHECK_EQ(got, expected, what)                                                              \
    do {                                                                                           \
        long long got_ = (long long)(got), expected_ = (long long)(expected);                      \
        if (got_ != expected_)                                                                     \
            check_fail(__FILE__, __LINE__, "%s: expected %lld, got %lld", what, expected_, got_);  \
    } while (0)

/* The call must return an error of this class (the object's handler must be MPI_ERRORS_RETURN). */
UNUSED static void check_class(const char *file, int line, const char *call, int rc, int class)
{
    int got = MPI_SUCCESS;
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    if (rc != MPI_SUCCESS) {
        MPI_Error_class(rc, &got);
        MPI_Error_string(rc, text, &n);
    }
    if (got != class)
        check_fail(file, line, "%s: expected error class %d, got %d (code %d, %s)", call, class,
                   got, rc, text);
}
#define EXPECT_CLASS(call, class) check_class(__FILE__, __LINE__, #call, (call), (class))
#define EXPECT_OK(call) check_class(__FILE__, __LINE__, #call, (call), MPI_SUCCESS)

/* ---- patterns ------------------------------------------------------------------------------- */

static inline uint64_t mix64(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The key names a message; a byte of the message is pattern_byte(key, position). */
UNUSED static uint64_t key_of(int sender, int tag, long index, long iteration)
{
    uint64_t k = mix64((uint64_t)(uint32_t)sender << 32 | (uint32_t)tag);
    k = mix64(k ^ (uint64_t)index);
    return mix64(k ^ (uint64_t)iteration * 0x2545f4914f6cdd1du);
}

static inline unsigned char pattern_byte(uint64_t key, size_t i)
{
    return (unsigned char)(mix64(key + (i >> 3)) >> (8 * (i & 7)));
}

UNUSED static void fill(void *buffer, size_t n, uint64_t key)
{
    unsigned char *b = buffer;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t w = mix64(key + (i >> 3));
        memcpy(b + i, &w, 8);
    }
    for (; i < n; i++)
        b[i] = pattern_byte(key, i);
}

/* First position that differs from the pattern, or n. */
UNUSED static size_t differs(const void *buffer, size_t n, uint64_t key)
{
    const unsigned char *b = buffer;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t w = mix64(key + (i >> 3));
        if (memcmp(b + i, &w, 8))
            break;
    }
    while (i < n && b[i] == pattern_byte(key, i))
        i++;
    return i;
}

UNUSED static void check_verify(const char *file, int line, const void *buffer, size_t n,
                                uint64_t key, const char *what)
{
    size_t at = differs(buffer, n, key);
    if (at == n)
        return;
    const unsigned char *b = buffer;
    size_t wrong = 0;
    for (size_t i = at; i < n; i++)
        wrong += b[i] != pattern_byte(key, i);
    check_fail(
        file, line, "%s: byte %zu of %zu: expected 0x%02x, got 0x%02x%s; %zu bytes wrong in all",
        what, at, n, pattern_byte(key, at), b[at], b[at] == 0xa5 ? " (never written?)" : "", wrong);
}
#define VERIFY(buffer, n, key, what)                                                               \
    check_verify(__FILE__, __LINE__, (buffer), (size_t)(n), (key), (what))

/* ---- buffers with guards -------------------------------------------------------------------- */

#define GUARD_BYTES 64
#define POISON 0xa5

UNUSED static void *buffer_new(size_t n)
{
    unsigned char *p = malloc(n + 3 * GUARD_BYTES);
    if (!p)
        FAIL("out of memory: %zu bytes", n);
    memcpy(p, &n, sizeof n);
    memset(p + GUARD_BYTES, POISON, n + 2 * GUARD_BYTES);
    return p + 2 * GUARD_BYTES;
}

UNUSED static void poison(void *buffer, size_t n)
{
    memset(buffer, POISON, n);
}

UNUSED static void check_poison(const char *file, int line, const void *buffer, size_t n,
                                const char *what)
{
    const unsigned char *b = buffer;
    for (size_t i = 0; i < n; i++)
        if (b[i] != POISON)
            check_fail(file, line, "%s: byte %zu of %zu was written (0x%02x)", what, i, n, b[i]);
}
#define UNTOUCHED(buffer, n, what) check_poison(__FILE__, __LINE__, (buffer), (size_t)(n), (what))

UNUSED static void check_guards(const char *file, int line, const void *buffer)
{
    const unsigned char *p = (const unsigned char *)buffer - 2 * GUARD_BYTES;
    size_t n;
    memcpy(&n, p, sizeof n);
    check_poison(file, line, p + GUARD_BYTES, GUARD_BYTES, "guard before the buffer");
    check_poison(file, line, p + 2 * GUARD_BYTES + n, GUARD_BYTES, "guard after the buffer");
}
#define GUARDS(buffer) check_guards(__FILE__, __LINE__, (buffer))

UNUSED static void buffer_free(void *buffer)
{
    check_guards(__FILE__, __LINE__, buffer);
    free((unsigned char *)buffer - 2 * GUARD_BYTES);
}

/* ---- statuses ------------------------------------------------------------------------------- */

UNUSED static void check_status(const char *file, int line, const MPI_Status *st, int source,
                                int tag, long long bytes)
{
    MPI_Count count = -1;
    int cancelled = 1;
    MPI_Get_elements_x(st, MPI_BYTE, &count);
    MPI_Test_cancelled(st, &cancelled);
    if (st->MPI_SOURCE != source || st->MPI_TAG != tag || count != bytes || cancelled)
        check_fail(
            file, line,
            "status: expected source %d tag %d bytes %lld, got source %d tag %d bytes %lld%s",
            source, tag, bytes, st->MPI_SOURCE, st->MPI_TAG, (long long)count,
            cancelled ? " cancelled" : "");
}
#define STATUS(st, source, tag, bytes)                                                             \
    check_status(__FILE__, __LINE__, (st), (source), (tag), (long long)(bytes))

/* The "empty" status of MPI 3.1 section 3.7.3. */
UNUSED static void check_empty(const char *file, int line, const MPI_Status *st)
{
    int count = -1, cancelled = 1;
    MPI_Get_count(st, MPI_BYTE, &count);
    MPI_Test_cancelled(st, &cancelled);
    if (st->MPI_SOURCE != MPI_ANY_SOURCE || st->MPI_TAG != MPI_ANY_TAG || count != 0 || cancelled)
        check_fail(file, line,
                   "expected the empty status, got source %d tag %d count %d cancelled %d",
                   st->MPI_SOURCE, st->MPI_TAG, count, cancelled);
}
#define EMPTY_STATUS(st) check_empty(__FILE__, __LINE__, (st))

/* ---- numbers -------------------------------------------------------------------------------- */

UNUSED static uint64_t random_next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return mix64(*state);
}

UNUSED static long random_below(uint64_t *state, long n)
{
    return (long)(random_next(state) % (uint64_t)n);
}

UNUSED static long environment_number(const char *name, long otherwise)
{
    const char *s = getenv(name);
    return s && *s ? atol(s) : otherwise;
}

UNUSED static long scaled(long n)
{
    long m = n / environment_number("CHECK_SCALE", 1);
    return m > 0 ? m : 1;
}

UNUSED static long resident_kib(void)
{
    char text[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(text, sizeof text, f))
        if (sscanf(text, "VmRSS: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

UNUSED static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t))
        ;
}

/* The sizes at which an implementation may change its protocol. */
UNUSED static const long edge_sizes[] = {
    0,     1,     7,     8,     31,    32,     33,     63,     64,      65,
    255,   256,   257,   4095,  4096,  4097,   8191,   8192,   8193,    32767,
    32768, 32769, 65535, 65536, 65537, 131071, 131072, 131073, 1048576, 5000000};

/* One eager and one rendezvous size for programs that need just "small" and "large". */
#define SMALL_BYTES 40
#define LARGE_BYTES 300000

/* ---- begin and end -------------------------------------------------------------------------- */

UNUSED static void check_alarm(int signal)
{
    char text[400];
    (void)signal;
    int n = snprintf(text, sizeof text, "FAIL rank %d of %d: time limit, still in step '%s'\n", me,
                     np, check_step_text);
    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        _exit(4);
    sleep(1); /* the other ranks tell theirs */
    _exit(124);
}

UNUSED static void check_begin_thread(int *argc, char ***argv, int required)
{
    signal(SIGALRM, check_alarm);
    alarm((unsigned)environment_number("CHECK_SECONDS", 240));
    int provided = -1;
    if (required == MPI_THREAD_SINGLE)
        MPI_Init(argc, argv);
    else
        MPI_Init_thread(argc, argv, required, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (required != MPI_THREAD_SINGLE && provided < required)
        FAIL("thread level: asked for %d, got %d", required, provided);
}

UNUSED static void check_begin(int *argc, char ***argv)
{
    check_begin_thread(argc, argv, MPI_THREAD_SINGLE);
}

/* Success: every rank got here. */
UNUSED static int check_end(void)
{
    STEP("final barrier");
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        printf("OK\n");
        fflush(stdout);
    }
    STEP("MPI_Finalize");
    MPI_Finalize();
    alarm(0);
    return 0;
}

UNUSED static bool skip_unless(bool condition, const char *why)
{
    if (!condition && me == 0)
        printf("skipped: %s\n", why);
    return !condition;
}

#endif

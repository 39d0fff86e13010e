/* Point-to-point benchmark for paired comparisons: half round trips, bandwidth, message rate.
 *
 * usage: p2p MODE SIZES REPEATS [THREADS]
 *   MODE    latency   ping-pong with MPI_Send/MPI_Recv: microseconds for half a round trip
 *           bandwidth one way, window of 16 MPI_Isend/MPI_Irecv: megabytes (10^6) a second
 *           stream    blocking ping-pong of large messages, as NetPIPE does it: megabytes a second
 *           any       as latency, but that MPI_ANY_SOURCE receives
 *           rate      one way, window of 64 MPI_Isend/MPI_Irecv: messages a second
 *   SIZES   comma separated bytes
 *   REPEATS measurements a size; the median is printed
 *   THREADS "multiple" asks for MPI_THREAD_MULTIPLE
 * Ranks 0 and size/2 talk; the others wait in a barrier. Prints two lines a size: MODE BYTES
 * MEDIAN,
 * and MODE-best BYTES VALUE of the fastest stretch of a few round trips or windows, which other
 * programs on the machine disturb less.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_RATE = 64, WINDOW_BANDWIDTH = 16, REPEATS_MAX = 1001 };

static char *out_buffer, *in_buffer;
static int me, other, sender, source;

/* Seconds per message in the fastest stretch of this size, and the stretch that is running. */
static double fastest;
static struct {
    double start;
    int rounds;
} stretch;

static void begin_stretch(double now, int rounds)
{
    stretch.start = now;
    stretch.rounds = rounds;
}

/* After each round: if that was the last of a stretch, notes how long it took. */
static void end_round(int round, int messages)
{
    if (round < 0 || (round + 1) % stretch.rounds) return;
    double now = MPI_Wtime(), each = (now - stretch.start) / stretch.rounds / messages;
    if (each < fastest) fastest = each;
    stretch.start = now;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static void receive(void *into, size_t bytes, int tag)
{
    MPI_Recv(into, (int) bytes, MPI_CHAR, source, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double ping_pong(size_t bytes, int rounds)
{
    double start = 0;
    for (int i = -rounds / 10 - 1; i < rounds; i++) {
        if (0 == i) begin_stretch(start = MPI_Wtime(), bytes < 16384 && rounds > 30 ? 30 : 1);
        if (sender) {
            MPI_Send(out_buffer, (int) bytes, MPI_CHAR, other, 1, MPI_COMM_WORLD);
            receive(in_buffer, bytes, 1);
        } else {
            receive(in_buffer, bytes, 1);
            MPI_Send(out_buffer, (int) bytes, MPI_CHAR, other, 1, MPI_COMM_WORLD);
        }
        end_round(i, 2);
    }
    return (MPI_Wtime() - start) / rounds / 2;
}

static double one_way(size_t bytes, int rounds, int window)
{
    MPI_Request requests[WINDOW_RATE];
    double start = 0;
    for (int i = -rounds / 10 - 1; i < rounds; i++) {
        if (0 == i) begin_stretch(start = MPI_Wtime(), bytes < 16384 && rounds > 4 ? 4 : 1);
        for (int k = 0; k < window; k++) {
            MPI_Request *request = &requests[k];
            if (sender)
                MPI_Isend(out_buffer, (int) bytes, MPI_CHAR, other, 1, MPI_COMM_WORLD, request);
            else MPI_Irecv(in_buffer, (int) bytes, MPI_CHAR, other, 1, MPI_COMM_WORLD, request);
        }
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
        if (sender) receive(in_buffer, 0, 2);
        else MPI_Send(out_buffer, 0, MPI_CHAR, other, 2, MPI_COMM_WORLD);
        end_round(i, window);
    }
    return (MPI_Wtime() - start) / rounds / window;
}

enum kind { LATENCY, ANY, STREAM, BANDWIDTH, RATE, KINDS };

/* For each kind: its name, its window (0: ping-pong), and the most rounds a measurement takes. */
static const struct {
    const char *name;
    int window, rounds;
} kinds[KINDS] = {
    { "latency", 0, 20000 },
    { "any", 0, 20000 },
    { "stream", 0, 20000 },
    { "bandwidth", WINDOW_BANDWIDTH, 1000 },
    { "rate", WINDOW_RATE, 2000 },
};

static double seconds_per_message(enum kind kind, size_t bytes, int rounds)
{
    int window = kinds[kind].window;
    return window ? one_way(bytes, rounds, window) : ping_pong(bytes, rounds);
}

/* As many rounds as take about 20 ms, agreed on by both sides: a slow transport or a busy machine
 * must not make the benchmark take for ever. */
static int choose_rounds(enum kind kind, size_t bytes)
{
    int messages = kinds[kind].window ? kinds[kind].window : 2;
    int probe = bytes >= 65536 ? 2 : 200;
    double round = messages * seconds_per_message(kind, bytes, probe);
    int rounds = 0.02 / round < kinds[kind].rounds ? (int) (0.02 / round) : kinds[kind].rounds;
    if (rounds < 3) rounds = 3;
    if (sender) MPI_Send(&rounds, 1, MPI_INT, other, 3, MPI_COMM_WORLD);
    else MPI_Recv(&rounds, 1, MPI_INT, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return rounds;
}

static double in_unit(enum kind kind, size_t bytes, double seconds)
{
    if (LATENCY == kind || ANY == kind) return 1e6 * seconds;
    return RATE == kind ? 1 / seconds : bytes / seconds / 1e6;
}

static enum kind find_kind(const char *name)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (!strcmp(name, kinds[kind].name)) return (enum kind) kind;
    fprintf(stderr, "p2p: unknown mode %s\n", name);
    MPI_Abort(MPI_COMM_WORLD, 2);
    return KINDS;
}

int main(int argc, char **argv)
{
    int provided, size;
    int multiple = argc > 4 && !strcmp(argv[4], "multiple");
    MPI_Init_thread(&argc, &argv, multiple ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 4 || size < 2) {
        if (0 == me)
            fprintf(stderr, "usage: p2p latency|any|stream|bandwidth|rate SIZES REPEATS "
                            "[multiple]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    enum kind kind = find_kind(argv[1]);
    int far = size / 2, repeats = atoi(argv[3]);
    if (repeats < 1 || repeats > REPEATS_MAX) repeats = 5;
    sender = 0 == me;
    other = sender ? far : 0;
    source = ANY == kind ? MPI_ANY_SOURCE : other;
    for (char *at = argv[2]; *at;) {
        size_t bytes = strtoul(at, &at, 10);
        if (*at) at++;
        if (me == 0 || me == far) {
            double results[REPEATS_MAX];
            size_t room = bytes + 64;
            out_buffer = malloc(room);
            in_buffer = malloc(room);
            memset(out_buffer, 1, room);
            memset(in_buffer, 2, room);
            int rounds = choose_rounds(kind, bytes);
            fastest = 1e9;
            for (int i = 0; i < repeats; i++)
                results[i] = in_unit(kind, bytes, seconds_per_message(kind, bytes, rounds));
            qsort(results, repeats, sizeof results[0], by_value);
            if (sender) {
                printf("%s %zu %.6g\n", argv[1], bytes, results[repeats / 2]);
                if (fastest < 1e9)
                    printf("%s-best %zu %.6g\n", argv[1], bytes, in_unit(kind, bytes, fastest));
                fflush(stdout);
            }
            free(out_buffer);
            free(in_buffer);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}

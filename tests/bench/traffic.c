/* Two ranks that send much, for so long that all of protection takes part: the first checkpoint,
 * a log that fills, logging that is suspended and taken up again.
 *
 * usage: traffic MODE BYTES COUNT REPEATS
 *   MODE    alltoall  MPI_Alltoall of BYTES for each rank
 *           stream    MPI_Send from rank 0 to rank 1, one after the other, and one answer in the
 *                     end of COUNT of them
 *           any       ping-pong in which MPI_ANY_SOURCE receives
 *   COUNT   how often, before the next repeat
 *   REPEATS how often that
 * Prints lines METRIC BYTES VALUE: alltoall and stream the seconds for all of it, of which nothing
 * is left out; any the median and the mean ("any-mean") of half a round trip in microseconds, in
 * blocks of ten, from the third second on.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 10 };
static const double warm_s = 2.0;
static char *out, *in;
static int me;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

/* What is received is looked at: a benchmark of messages that never came would be fast. */
static void check(const char *bytes, size_t length, int value)
{
    if (0 == length || (bytes[0] == (char) value && bytes[length - 1] == (char) value))
        return;
    fprintf(stderr, "traffic: a wrong message: %d in place of %d\n", bytes[0], (char) value);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void mark(char *bytes, size_t length, int value)
{
    if (0 < length)
        bytes[0] = bytes[length - 1] = (char) value;
}

static void alltoall(int bytes, int size, int round)
{
    for (int to = 0; to < size; to++)
        mark(out + (size_t) to * (size_t) bytes, (size_t) bytes, round + me);
    MPI_Alltoall(out, bytes, MPI_CHAR, in, bytes, MPI_CHAR, MPI_COMM_WORLD);
    for (int from = 0; from < size; from++)
        check(in + (size_t) from * (size_t) bytes, (size_t) bytes, round + from);
}

static void stream(int bytes, int count)
{
    for (int at = 0; at < count; at++) {
        if (0 == me) {
            mark(out, (size_t) bytes, at);
            MPI_Send(out, bytes, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        } else {
            MPI_Recv(in, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(in, (size_t) bytes, at);
        }
    }
    if (0 == me)
        MPI_Recv(in, 0, MPI_CHAR, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(out, 0, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
}

static void half_round_trips(int bytes, int value)
{
    for (int at = 0; at < BLOCK; at++)
        for (int turn = 0; turn < 2; turn++) {
            if (turn == me) {
                mark(out, (size_t) bytes, value + at);
                MPI_Send(out, bytes, MPI_CHAR, 1 - me, 0, MPI_COMM_WORLD);
            } else {
                MPI_Recv(in, bytes, MPI_CHAR, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
                check(in, (size_t) bytes, value + at);
            }
        }
}

/* Rank 0 says when it is warm, so that both do the same number of blocks. */
static void any(int bytes, int blocks)
{
    double *taken = malloc((size_t) blocks * sizeof *taken), sum = 0, start = MPI_Wtime();
    if (NULL == taken)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int warm = 0; !warm;) {
        half_round_trips(bytes, 0);
        warm = 0 == me && MPI_Wtime() - start > warm_s;
        MPI_Bcast(&warm, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    for (int at = 0; at < blocks; at++) {
        double before = MPI_Wtime();
        half_round_trips(bytes, at);
        taken[at] = (MPI_Wtime() - before) / (2 * BLOCK) * 1e6;
        sum += taken[at];
    }
    qsort(taken, (size_t) blocks, sizeof *taken, by_value);
    if (0 == me)
        printf("any %d %.4f\nany-mean %d %.4f\n", bytes, taken[blocks / 2], bytes, sum / blocks);
    free(taken);
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int bytes = argc == 5 ? atoi(argv[2]) : -1, count = argc == 5 ? atoi(argv[3]) : 0;
    int repeats = argc == 5 ? atoi(argv[4]) : 0;
    if (bytes < 0 || count <= 0 || repeats <= 0 || size != 2) {
        if (0 == me)
            fprintf(stderr, "usage: traffic alltoall|stream|any BYTES COUNT REPEATS, 2 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t room = (size_t) size * (size_t) bytes + 1;
    out = malloc(room);
    in = malloc(room);
    if (NULL == out || NULL == in)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(out, 1, room);
    memset(in, 1, room);
    if (0 == strcmp(argv[1], "any")) {
        any(bytes, count * repeats);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int at = 0; at < repeats; at++)
            if (0 == strcmp(argv[1], "stream"))
                stream(bytes, count);
            else
                for (int round = 0; round < count; round++)
                    alltoall(bytes, size, round);
        MPI_Barrier(MPI_COMM_WORLD);
        if (0 == me)
            printf("%s %d %.4f\n", argv[1], bytes, MPI_Wtime() - start);
    }
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}

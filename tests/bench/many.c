/* Matching with many receives posted, and with many messages that nobody has asked for yet.
 *
 * usage: many COUNTS REPEATS      (two ranks)
 *   posted      COUNT receives with different tags are posted; the messages come in reverse order
 *   unexpected  COUNT messages with different tags have come; they are received in reverse order
 * Prints one line each and count: WHAT COUNT NANOSECONDS, the median of the time per message.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS_MAX = 1001, BYTES = 8 };

static int me, other, count;
static MPI_Request *requests;
static char *data;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static void send_all(int reverse)
{
    for (int i = 0; i < count; i++) {
        int tag = reverse ? count - 1 - i : i;
        MPI_Send(data, BYTES, MPI_CHAR, other, tag, MPI_COMM_WORLD);
    }
}

/* Both barriers are outside of the time; the receiver's time is from "go" to the last message. */
static double posted(void)
{
    for (int i = 0; 1 == me && i < count; i++)
        MPI_Irecv(data + (size_t) i * BYTES, BYTES, MPI_CHAR, other, i, MPI_COMM_WORLD,
                  &requests[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    if (0 == me) send_all(1);
    else MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    double seconds = MPI_Wtime() - start;
    MPI_Barrier(MPI_COMM_WORLD);
    return seconds;
}

static double unexpected(void)
{
    if (0 == me) send_all(0);
    /* It follows the messages on the same channel, so they all have come when it is over. */
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = count - 1; 1 == me && i >= 0; i--)
        MPI_Recv(data, BYTES, MPI_CHAR, other, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double seconds = MPI_Wtime() - start;
    MPI_Barrier(MPI_COMM_WORLD);
    return seconds;
}

static void measure(const char *name, double (*once)(void), int repeats)
{
    double results[REPEATS_MAX];
    /* At least 10,000 messages a measurement, so that few are timed as well as many. */
    int rounds = 10000 / count + 1;
    (void) once();
    for (int i = 0; i < repeats; i++) {
        results[i] = 0;
        for (int k = 0; k < rounds; k++) results[i] += once();
        results[i] *= 1e9 / rounds / count;
    }
    qsort(results, repeats, sizeof results[0], by_value);
    if (1 == me) printf("%s %d %.6g\n", name, count, results[repeats / 2]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3 || size != 2) {
        if (0 == me) fprintf(stderr, "usage: many COUNTS REPEATS, with two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    other = 1 - me;
    int repeats = atoi(argv[2]);
    if (repeats < 1 || repeats > REPEATS_MAX) repeats = 5;
    for (char *at = argv[1]; *at;) {
        count = (int) strtoul(at, &at, 10);
        if (*at) at++;
        if (count < 1) continue;
        requests = malloc(count * sizeof *requests);
        data = calloc(count, BYTES);
        measure("posted", posted, repeats);
        measure("unexpected", unexpected, repeats);
        free(requests);
        free(data);
    }
    MPI_Finalize();
    return 0;
}

/* More ranks than processors: what waiting costs when somebody else needs the processor.
 *
 * usage: crowd REPEATS      (run with several times as many ranks as processors)
 * Prints one line a pattern: PATTERN BYTES MICROSECONDS, the median of the time per operation:
 *   ring       8 bytes go once round all ranks
 *   allreduce  of one double
 *   alltoall   1 KiB from each rank to each
 *   neighbours each rank exchanges 64 KiB with both neighbours
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MAX = 1001, SMALL = 8, BLOCK = 1024, LARGE = 65536 };

static int me, size, left, right;
static char *out_buffer, *in_buffer;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static void ring(void)
{
    MPI_Status *ignore = MPI_STATUS_IGNORE;
    if (0 == me) MPI_Send(out_buffer, SMALL, MPI_CHAR, right, 1, MPI_COMM_WORLD);
    MPI_Recv(in_buffer, SMALL, MPI_CHAR, left, 1, MPI_COMM_WORLD, ignore);
    if (0 != me) MPI_Send(out_buffer, SMALL, MPI_CHAR, right, 1, MPI_COMM_WORLD);
}

static void allreduce(void)
{
    double mine = me, sum;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(void)
{
    MPI_Alltoall(out_buffer, BLOCK, MPI_CHAR, in_buffer, BLOCK, MPI_CHAR, MPI_COMM_WORLD);
}

static void neighbours(void)
{
    MPI_Request requests[4];
    int with[2] = { left, right };
    for (int i = 0; i < 2; i++) {
        char *into = in_buffer + (size_t) i * LARGE;
        MPI_Irecv(into, LARGE, MPI_CHAR, with[i], 2 + i, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < 2; i++)
        MPI_Isend(out_buffer, LARGE, MPI_CHAR, with[i], 3 - i, MPI_COMM_WORLD, &requests[2 + i]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static double seconds_per(void (*once)(void), int rounds)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < rounds; i++) once();
    return (MPI_Wtime() - start) / rounds;
}

static void measure(const char *name, int bytes, void (*once)(void), int repeats)
{
    double results[REPEATS_MAX];
    double probe = seconds_per(once, 5);
    int rounds = probe > 0 && 0.05 / probe < 10000 ? (int) (0.05 / probe) + 2 : 10000;
    MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < repeats; i++) results[i] = 1e6 * seconds_per(once, rounds);
    qsort(results, repeats, sizeof results[0], by_value);
    if (0 == me) printf("%s %d %.6g\n", name, bytes, results[repeats / 2]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int repeats = argc > 1 ? atoi(argv[1]) : 5;
    if (repeats < 1 || repeats > REPEATS_MAX) repeats = 5;
    left = (me + size - 1) % size;
    right = (me + 1) % size;
    size_t room = (size_t) size * BLOCK > 2 * LARGE ? (size_t) size * BLOCK : 2 * LARGE;
    out_buffer = malloc(room);
    in_buffer = malloc(room);
    memset(out_buffer, 1, room);
    memset(in_buffer, 2, room);
    measure("ring", SMALL, ring, repeats);
    measure("allreduce", SMALL, allreduce, repeats);
    measure("alltoall", BLOCK, alltoall, repeats);
    measure("neighbours", LARGE, neighbours, repeats);
    free(out_buffer);
    free(in_buffer);
    MPI_Finalize();
    return 0;
}

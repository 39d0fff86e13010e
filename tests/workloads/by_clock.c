/* What a rank sends, and how much of it, depends on the time that MPI_Wtime gives; a replaying rank
 * that does something else than before contradicts what its neighbour has received of it.
 * In the end each rank compares what it believes to have sent with what the neighbour has got.
 * usage: by_clock MILLISECONDS [GATE]
 * GATE: see gate.h. Rank 0 goes on after that time until the file lets all through.
 * Environment: rank DONE_BY makes the file DONE when it has sent much that a replay would
 * contradict: some rounds after the first second, in which the first checkpoint is taken. */
#include <mpi.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { MOST = 4, EVERY = 8, ASKS = 16, ROUNDS_DONE = 200 };

static int rounds_left = ROUNDS_DONE;

static double last = -1;
static int backwards = 0;

static double now(void)
{
    double time = MPI_Wtime();
    backwards += time < last;
    return last = time;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

/* So many readings of the clock fit into some microseconds. */
static uint64_t spin(double seconds)
{
    uint64_t looks = 0;
    for (double end = now() + seconds; now() < end;)
        looks++;
    return looks;
}

int main(int argc, char **argv)
{
    int me, np, wrong, on = 1;
    double lasts = 1e-3 * (argc > 1 ? atof(argv[1]) : 1000);
    const char *gate = argc > 2 ? argv[2] : NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    int right = (me + 1) % np, left = (me + np - 1) % np;
    uint64_t sent = (uint64_t) me, received = (uint64_t) left;
    const char *done = getenv("DONE"), *done_by = getenv("DONE_BY");
    if (NULL == done_by || atoi(done_by) != me)
        done = NULL;
    double begin = now(), end = begin + lasts;
    for (int i = 0; on; i++) {
        uint64_t out[MOST] = { 0 }, in[MOST], stamp = mix((uint64_t) (now() * 1e9), 1);
        if (i % EVERY == 0)
            stamp = mix(stamp, spin(50e-6));
        int count = 1 + (int) (stamp % MOST), flag = 0;
        MPI_Request request;
        MPI_Status status;
        MPI_Irecv(in, MOST, MPI_UINT64_T, left, 0, MPI_COMM_WORLD, &request);
        for (int k = 0; k < count; k++)
            sent = mix(sent, out[k] = mix(stamp, (uint64_t) k));
        MPI_Send(out, count, MPI_UINT64_T, right, 0, MPI_COMM_WORLD);
        /* Until it is here or the time is up: calls of both kinds in turns. */
        if (i % EVERY == 1)
            for (double until = now() + 1e-3; !flag && now() < until;)
                MPI_Test(&request, &flag, &status);
        if (!flag)
            MPI_Wait(&request, &status);
        if (done && now() > begin + 1 && --rounds_left == 0) {
            FILE *file = fopen(done, "w");
            if (NULL == file || fclose(file))
                MPI_Abort(MPI_COMM_WORLD, 1);
        }
        int got;
        MPI_Get_count(&status, MPI_UINT64_T, &got);
        for (int k = 0; k < got; k++)
            received = mix(received, in[k]);
        if (i % ASKS == 0) {
            on = now() < end || (me == 0 && gate && limit_in(gate) < INT_MAX);
            MPI_Bcast(&on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        }
    }
    uint64_t theirs;
    MPI_Sendrecv(&sent, 1, MPI_UINT64_T, right, 1, &theirs, 1, MPI_UINT64_T, left, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    wrong = (theirs != received) + 2 * (backwards > 0);
    if (wrong)
        fprintf(stderr, "rank %d: %s%s\n", me, wrong & 1 ? "not got what was sent " : "",
                wrong & 2 ? "the clock went backwards" : "");
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %s\n", wrong ? "contradicts itself" : "consistent");
    MPI_Finalize();
    return 0;
}

/* Steps of ranks that read clocks, as most programs do that measure themselves: some milliseconds
 * of computing, not the same on all ranks, then a message to the rank of the same place on the next
 * node, and one from the node before. On three nodes or more a message depends on what a third node
 * has recorded. A rank sleeps in place of computing, as if it had a processor of its own.
 *
 * usage: neighbours RANKS-A-NODE STEPS MILLISECONDS REPEATS
 * Prints lines METRIC BYTES VALUE: "named" and "any", by which the receiver names the source, the
 * seconds for all STEPS, from the third second on.
 */
#include "warm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { COUNT = 64 };
static int me, size, a_node, steps;
static double ms;

static double clock_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void compute(double milliseconds)
{
    struct timespec t = { 0, (long) (1e6 * milliseconds) };
    while (0 != nanosleep(&t, &t)) {}
}

static void all_steps(int any)
{
    double out[COUNT], in[COUNT], spent = 0;
    int next = (me + a_node) % size, before = (me + size - a_node) % size;
    for (int step = 0; step < steps; step++) {
        double begin = clock_s();
        compute(ms * (1 + (me + step) % 3));
        spent += clock_s() - begin;
        for (int i = 0; i < COUNT; i++) out[i] = step * size + me;
        MPI_Request request;
        MPI_Irecv(in, COUNT, MPI_DOUBLE, any ? MPI_ANY_SOURCE : before, 1, MPI_COMM_WORLD,
                  &request);
        MPI_Send(out, COUNT, MPI_DOUBLE, next, 1, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (in[COUNT - 1] != step * size + before || 0 >= spent) {
            fprintf(stderr, "neighbours: a wrong message: %g\n", in[COUNT - 1]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    a_node = argc > 1 ? atoi(argv[1]) : 0, steps = argc > 2 ? atoi(argv[2]) : 0;
    ms = argc > 3 ? atof(argv[3]) : 0;
    int repeats = argc > 4 ? atoi(argv[4]) : 1;
    if (1 > a_node || 1 > steps || 0 >= ms || 300 < ms || 1 > repeats) {
        if (0 == me) fprintf(stderr, "usage: neighbours RANKS-A-NODE STEPS MILLISECONDS REPEATS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    wait_for_first_checkpoint();
    for (int repeat = 0; repeat < repeats; repeat++)
        for (int any = 0; any < 2; any++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double begin = clock_s();
            all_steps(any);
            MPI_Barrier(MPI_COMM_WORLD);
            if (0 == me)
                printf("%s %d %.6g\n", any ? "any" : "named", COUNT * 8, clock_s() - begin);
        }
    MPI_Finalize();
    return 0;
}

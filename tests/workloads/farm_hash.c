/* A master hands out tasks and takes results from whoever has one, by MPI_Testany and MPI_Waitany;
 * workers wait in MPI_Iprobe and MPI_Recv. Meant for more ranks than processors: all that wait give
 * their processor away, in each of these ways. The last line does not depend on who did what.
 * usage: farm_hash TASKS [GATE]
 * GATE: see gate.h. Until the file allows more, workers do the last task again. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { TASK = 1, RESULT = 2, LARGE = 20000, STOP = -1 };

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    return x ^ (x >> 27);
}

static uint64_t work(int task)
{
    uint64_t hash = (uint64_t) task;
    for (int i = 0; i < 200 + task % 800; i++)
        hash = mix(hash + (uint64_t) i);
    return hash;
}

static uint64_t master(int tasks, const char *gate, int workers)
{
    static uint64_t in[2][LARGE];
    MPI_Request requests[2];
    uint64_t sum = 0;
    int limit = gate ? 0 : tasks, next = 0, stopped = 0, rounds = 0;
    for (int k = 0; k < 2; k++)
        MPI_Irecv(in[k], LARGE, MPI_UINT64_T, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD,
                  &requests[k]);
    while (stopped < workers) {
        MPI_Status status;
        int k, flag = 0;
        if (rounds++ % 3 == 0)
            while (!flag) {
                MPI_Testany(2, requests, &k, &flag, &status);
                if (!flag)
                    usleep(20);
            }
        else
            MPI_Waitany(2, requests, &k, &status);
        if (in[k][0]) /* it counts */
            sum += in[k][1];
        MPI_Irecv(in[k], LARGE, MPI_UINT64_T, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD,
                  &requests[k]);
        int order[2] = { STOP, 1 };
        if (next < tasks) {
            if (next >= limit && rounds % 64 == 0)
                limit = limit_in(gate); /* only the master knows */
            order[1] = next < limit;
            order[0] = order[1] ? next++ : next;
        } else {
            stopped++;
        }
        MPI_Send(order, 2, MPI_INT, status.MPI_SOURCE, TASK, MPI_COMM_WORLD);
    }
    for (int k = 0; k < 2; k++) {
        MPI_Cancel(&requests[k]);
        MPI_Wait(&requests[k], MPI_STATUS_IGNORE);
    }
    return sum;
}

static void worker(void)
{
    static uint64_t out[LARGE];
    int order[2] = { 0, 0 };
    for (int done = 0; order[0] != STOP; done++) {
        int large = done % 50 == 49;
        MPI_Send(out, large ? LARGE : 2, MPI_UINT64_T, 0, RESULT, MPI_COMM_WORLD);
        for (int found = 0; done % 5 == 4 && !found;) {
            MPI_Iprobe(0, TASK, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
            if (!found)
                usleep(10);
        }
        MPI_Recv(order, 2, MPI_INT, 0, TASK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        out[0] = (uint64_t) order[1];
        out[1] = work(order[0]);
    }
}

int main(int argc, char **argv)
{
    int me, np, tasks = argc > 1 ? atoi(argv[1]) : 20000;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (me == 0)
        printf("HASH %016lx\n", (unsigned long) master(tasks, argc > 2 ? argv[2] : NULL, np - 1));
    else
        worker();
    MPI_Finalize();
    return 0;
}

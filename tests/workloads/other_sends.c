/*
 * other_sends fewer|padding ITERATIONS [GATE] (see gate.h): a ring of messages. The last rank sends
 * something else once its process is another one, as when it was restored from an image. (It tells
 * by what the kernel keeps for a process and nobody restores, the slack of its timers.)
 *   fewer    it leaves out notes to rank 0, which has no need of them; each has a communicator of
 *            its own, so no later message shows it
 *   padding  what lies between the fields of its messages, which it has never written, differs
 * Prints a hash of what came, which is the same in any case.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "gate.h"

/* Nanoseconds, which no process has by default. */
enum { SLACK = 54321, NOTES = 40 };

struct parts {
    char first;
    uint64_t second;
};

/* Leaves something on the stack, where the message lies afterwards. */
static void __attribute__((noinline)) leave_behind(int what)
{
    volatile char left[256];
    for (size_t at = 0; at < sizeof(left); at++) {
        left[at] = (char) what;
    }
}

static void __attribute__((noinline)) exchange(uint64_t out, uint64_t *in, int to, int from)
{
    struct parts sent, got;
    sent.first = 1;
    sent.second = out;
    MPI_Sendrecv(&sent, sizeof(sent), MPI_BYTE, to, 3, &got, sizeof(got), MPI_BYTE, from, 3,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    *in = got.second;
}

int main(int argc, char **argv)
{
    int rank, size;
    prctl(PR_SET_TIMERSLACK, SLACK, 0, 0, 0);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int fewer = 1 < argc && 0 == strcmp("fewer", argv[1]);
    const long iterations = 2 < argc ? atol(argv[2]) : 1000;
    const char *gate = 3 < argc ? argv[3] : NULL;
    int limit = 0;
    MPI_Comm comms[NOTES];
    MPI_Request requests[NOTES];
    int note = 0, notes[NOTES];
    /* Without notes the ring begins at once. */
    const int kinds = fewer ? NOTES : 0;
    for (int at = 0; at < kinds; at++) {
        MPI_Comm_dup(MPI_COMM_WORLD, comms + at);
        requests[at] = MPI_REQUEST_NULL;
        if (0 == rank) {
            MPI_Irecv(notes + at, 1, MPI_INT, size - 1, 5, comms[at], requests + at);
        }
    }
    uint64_t hash = 1;
    for (long i = 0; i < iterations; i++) {
        wait_at(gate, (int) i, &limit);
        int other = rank == size - 1 && SLACK != prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
        if (rank == size - 1 && note < kinds && i * NOTES / iterations >= note) {
            if (!fewer || !other) {
                MPI_Send(&note, 1, MPI_INT, 0, 5, comms[note]);
            }
            note++;
        }
        uint64_t in = 0;
        leave_behind(fewer ? 0 : other);
        exchange(hash + (uint64_t) rank, &in, (rank + 1) % size, (rank + size - 1) % size);
        hash = hash * 1099511628211u + in;
        usleep(1000);
    }
    uint64_t sum = 0;
    MPI_Reduce(&hash, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    for (int at = 0; 0 == rank && at < kinds; at++) {
        int done = 0;
        MPI_Test(requests + at, &done, MPI_STATUS_IGNORE);
        if (!done) {
            MPI_Cancel(requests + at);
            MPI_Wait(requests + at, MPI_STATUS_IGNORE);
        }
    }
    if (0 == rank) {
        printf("HASH %016llx\n", (unsigned long long) sum);
    }
    MPI_Finalize();
    return 0;
}

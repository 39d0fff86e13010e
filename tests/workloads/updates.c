/* Random updates of a table that is spread over all processes, as HPCC's MPIRandomAccess makes
 * them: four receives from MPI_ANY_SOURCE, MPI_Testany, one send at a time, MPI_Cancel in the end.
 * HPCC loses what a receive has got when it learns that the last process has finished; here that
 * counts, so every table must be exact.
 * usage: updates ITERATIONS [GATE] (see gate.h) */
#include <mpi.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gate.h"

enum { SLOTS = 4, PENDING = 1024, UPDATE = 1, FINISHED = 2, TABLE = 1 << 13, EACH = 5000 };

static int me, ranks, finished;
static uint64_t table[TABLE], in[SLOTS][PENDING], out[PENDING], *buckets;
static int *filled;
static MPI_Request inreq[SLOTS], outreq = MPI_REQUEST_NULL;

static uint64_t next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static uint64_t seed(int rank, long iteration)
{
    return 88172645463325252ull + 977u * (uint64_t) (rank + 1) + 7919u * (uint64_t) iteration;
}

static int owner(uint64_t update)
{
    return (int) ((update >> 20) % (uint64_t) ranks);
}

static void apply(uint64_t update)
{
    table[update % TABLE] ^= update;
}

static void post(int slot)
{
    MPI_Irecv(in[slot], PENDING, MPI_UINT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
              &inreq[slot]);
}

static void take(int slot, MPI_Status *status)
{
    int count;
    if (status->MPI_TAG == FINISHED) {
        finished++;
        return;
    }
    MPI_Get_count(status, MPI_UINT64_T, &count);
    for (int i = 0; i < count; i++)
        apply(in[slot][i]);
}

static void look(void)
{
    for (;;) {
        int slot, found;
        MPI_Status status;
        MPI_Testany(SLOTS, inreq, &slot, &found, &status);
        if (!found || slot == MPI_UNDEFINED)
            return;
        take(slot, &status);
        post(slot);
    }
}

static void wait_for_send(void)
{
    int sent = 0;
    while (MPI_Test(&outreq, &sent, MPI_STATUS_IGNORE), !sent)
        look();
}

static void ship(int to)
{
    wait_for_send();
    memcpy(out, buckets + (size_t) to * PENDING, (size_t) filled[to] * sizeof *out);
    MPI_Isend(out, filled[to], MPI_UINT64_T, to, UPDATE, MPI_COMM_WORLD, &outreq);
    filled[to] = 0;
}

static void update(long iteration)
{
    uint64_t x = seed(me, iteration);
    for (int i = 0, pending = 0; i < EACH; i++) {
        uint64_t update = next(&x);
        int to = owner(update), longest = 0;
        look();
        if (to == me) {
            apply(update);
            continue;
        }
        buckets[(size_t) to * PENDING + (size_t) filled[to]++] = update;
        if (++pending < PENDING)
            continue;
        for (int rank = 0; rank < ranks; rank++)
            if (filled[rank] > filled[longest])
                longest = rank;
        pending -= filled[longest];
        ship(longest);
    }
    for (int rank = 0; rank < ranks; rank++)
        if (filled[rank])
            ship(rank);
    wait_for_send();
}

static void finish(void)
{
    MPI_Request last[ranks];
    for (int rank = 0; rank < ranks; rank++) {
        last[rank] = MPI_REQUEST_NULL;
        if (rank != me)
            MPI_Isend(&me, 1, MPI_INT, rank, FINISHED, MPI_COMM_WORLD, &last[rank]);
    }
    while (finished < ranks - 1)
        look();
    MPI_Waitall(ranks, last, MPI_STATUSES_IGNORE);
    for (int slot = 0; slot < SLOTS; slot++) {
        MPI_Status status;
        int cancelled;
        MPI_Cancel(&inreq[slot]);
        MPI_Wait(&inreq[slot], &status);
        MPI_Test_cancelled(&status, &cancelled);
        if (!cancelled)
            take(slot, &status);
    }
}

/* Everything that belongs here, once more: nothing must be left. */
static long wrong(long iteration)
{
    long wrong = 0;
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t x = seed(rank, iteration);
        for (int i = 0; i < EACH; i++) {
            uint64_t update = next(&x);
            if (owner(update) == me)
                apply(update);
        }
    }
    for (int i = 0; i < TABLE; i++)
        wrong += table[i] != 0;
    return wrong;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long iterations = argc > 1 ? atol(argv[1]) : 100, bad[2] = {0, 0};
    uint64_t hash[2] = {0, 0}, before;
    const char *gate = argc > 2 ? argv[2] : NULL;
    long limit = 0;
    buckets = calloc((size_t) ranks * PENDING, sizeof *buckets);
    filled = calloc((size_t) ranks, sizeof *filled);
    if (!buckets || !filled)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (long iteration = 0; iteration < iterations; iteration++) {
        before = hash[0];
        memset(table, 0, sizeof table);
        finished = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int slot = 0; slot < SLOTS; slot++)
            post(slot);
        update(iteration);
        finish();
        for (int i = 0; i < TABLE; i++)
            hash[0] = hash[0] * 31 + table[i];
        bad[0] += wrong(iteration);
        if (is_to_repeat(gate, iteration, &limit)) {
            hash[0] = before;
            iteration--;
        }
    }
    MPI_Allreduce(&hash[0], &hash[1], 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
    MPI_Allreduce(&bad[0], &bad[1], 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016" PRIx64 ", %ld wrong\n", hash[1], bad[1]);
    MPI_Finalize();
    return bad[1] != 0;
}

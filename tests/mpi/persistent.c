/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Persistent requests of all modes but buffered: Start, Startall, restarted many times, inactive
 * ones in waits and tests, freed while active, cancelled, wildcards. MPI 3.1 section 3.9. */
#include "check.h"

static const long sizes[] = {0, 1, 64, 4097, 65537, LARGE_BYTES};
enum { N = LENGTH(sizes) };

typedef int init_function(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
/* Buffered mode: persistent_bsend.c */
static init_function *const init[] = {MPI_Send_init, MPI_Ssend_init, MPI_Rsend_init};
enum { MODES = LENGTH(init), ALL = MODES * N };

static void exchange(int rounds)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    MPI_Request r[2 * ALL];
    MPI_Status st[2 * ALL];
    unsigned char *buffer[2 * ALL];
    for (int m = 0; m < MODES; m++)
        for (int i = 0; i < N; i++) {
            int k = m * N + i, n = (int)sizes[i];
            buffer[k] = buffer_new((size_t)n);
            buffer[ALL + k] = buffer_new((size_t)n);
            int source = k % 3 == 1 ? MPI_ANY_SOURCE : previous;
            MPI_Recv_init(buffer[k], n, MPI_BYTE, source, k, MPI_COMM_WORLD, &r[k]);
            init[m](buffer[ALL + k], n, MPI_BYTE, next, k, MPI_COMM_WORLD, &r[ALL + k]);
        }
    for (int round = 0; round < rounds; round++) {
        STEP("exchange round %d", round);
        for (int k = 0; k < ALL; k++) {
            size_t n = (size_t)sizes[k % N];
            poison(buffer[k], n);
            fill(buffer[ALL + k], n, key_of(me, k, 0, round));
        }
        MPI_Startall(ALL, r);
        if (np > 1) /* ready mode: the receiver has started */
            MPI_Barrier(MPI_COMM_WORLD);
        if (round % 2)
            MPI_Startall(ALL, r + ALL);
        else
            for (int k = 2 * ALL - 1; k >= ALL; k--)
                MPI_Start(&r[k]);
        if (round % 3 == 0) {
            MPI_Waitall(2 * ALL, r, st);
        } else if (round % 3 == 1) {
            for (int k = 2 * ALL - 1; k >= 0; k--)
                MPI_Wait(&r[k], &st[k]);
        } else {
            int flag = 0;
            while (!flag)
                MPI_Testall(2 * ALL, r, &flag, st);
        }
        for (int k = 0; k < ALL; k++) {
            STATUS(&st[k], previous, k, sizes[k % N]);
            STEP("exchange round %d, mode %d, %ld bytes", round, k / N, sizes[k % N]);
            VERIFY(buffer[k], sizes[k % N], key_of(previous, k, 0, round), "persistent");
            CHECK(r[k] != MPI_REQUEST_NULL && r[ALL + k] != MPI_REQUEST_NULL,
                  "a persistent request must survive its completion");
        }
    }
    STEP("inactive");
    for (int k = 0; k < 2 * ALL; k++) {
        int flag = 0;
        MPI_Status one;
        MPI_Wait(&r[k], &one);
        EMPTY_STATUS(&one);
        MPI_Test(&r[k], &flag, &one);
        CHECK(flag, "test of an inactive request");
        EMPTY_STATUS(&one);
        MPI_Request_get_status(r[k], &flag, &one);
        CHECK(flag, "get_status of an inactive request");
        EMPTY_STATUS(&one);
    }
    int index = 0, count = 0, flag = 0, indices[2 * ALL];
    MPI_Status one;
    MPI_Waitany(2 * ALL, r, &index, &one);
    CHECK_EQ(index, MPI_UNDEFINED, "waitany over inactive requests");
    EMPTY_STATUS(&one);
    MPI_Testany(2 * ALL, r, &index, &flag, &one);
    CHECK(flag && index == MPI_UNDEFINED, "testany over inactive requests");
    MPI_Waitsome(2 * ALL, r, &count, indices, st);
    CHECK_EQ(count, MPI_UNDEFINED, "waitsome over inactive requests");
    MPI_Testsome(2 * ALL, r, &count, indices, st);
    CHECK_EQ(count, MPI_UNDEFINED, "testsome over inactive requests");
    MPI_Waitall(2 * ALL, r, st);
    for (int k = 0; k < 2 * ALL; k++) {
        EMPTY_STATUS(&st[k]);
        MPI_Request_free(&r[k]);
        CHECK(r[k] == MPI_REQUEST_NULL, "freed");
        buffer_free(buffer[k]);
    }
}

/* One pair restarted very often, with a mix of started and inactive in one array. */
static void often(int rounds)
{
    int peer = me ^ 1, in[4], out[4];
    MPI_Request r[8];
    if (peer >= np)
        return;
    for (int k = 0; k < 4; k++) {
        MPI_Recv_init(&in[k], 1, MPI_INT, peer, k, MPI_COMM_WORLD, &r[k]);
        MPI_Send_init(&out[k], 1, MPI_INT, peer, k, MPI_COMM_WORLD, &r[4 + k]);
    }
    STEP("often");
    for (int i = 0; i < rounds; i++) {
        int use = 1 + i % 4;
        for (int k = 0; k < use; k++) {
            out[k] = i * 10 + k;
            in[k] = -1;
        }
        MPI_Startall(use, r);
        MPI_Startall(use, r + 4);
        if (i % 2) {
            MPI_Waitall(8, r, MPI_STATUSES_IGNORE);
        } else {
            for (int left = 2 * use; left > 0; left--) {
                int index;
                MPI_Waitany(8, r, &index, MPI_STATUS_IGNORE);
                CHECK(index >= 0 && index < 8 && index % 4 < use, "waitany gave %d", index);
            }
        }
        for (int k = 0; k < use; k++)
            CHECK_EQ(in[k], i * 10 + k, "value");
    }
    for (int k = 0; k < 8; k++)
        MPI_Request_free(&r[k]);
}

/* Request_free of an active persistent send; cancel of an active persistent receive, then again. */
static void freed_and_cancelled(void)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np, flag;
    int *out = malloc(sizeof *out), in = -1;
    MPI_Request r;
    MPI_Status st;
    STEP("freed while active");
    *out = 100 + me;
    MPI_Send_init(out, 1, MPI_INT, next, 70, MPI_COMM_WORLD, &r);
    MPI_Start(&r);
    MPI_Request_free(&r);
    MPI_Recv(&in, 1, MPI_INT, previous, 70, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQ(in, 100 + previous, "from a freed persistent send");
    MPI_Barrier(MPI_COMM_WORLD);
    free(out);
    STEP("cancelled persistent receive");
    MPI_Recv_init(&in, 1, MPI_INT, MPI_ANY_SOURCE, 71, MPI_COMM_WORLD, &r);
    for (int k = 0; k < 3; k++) {
        in = -1;
        MPI_Start(&r);
        MPI_Cancel(&r);
        MPI_Wait(&r, &st);
        MPI_Test_cancelled(&st, &flag);
        CHECK(flag, "a receive that nobody sends to must be cancelled");
        CHECK(r != MPI_REQUEST_NULL, "a cancelled persistent request stays");
        MPI_Start(&r);
        MPI_Barrier(MPI_COMM_WORLD); /* nobody has sent so far */
        MPI_Send(&me, 1, MPI_INT, next, 71, MPI_COMM_WORLD);
        MPI_Wait(&r, &st);
        STATUS(&st, previous, 71, 4);
        CHECK_EQ(in, previous, "after a cancel");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Request_free(&r);
}

/* To and from MPI_PROC_NULL. */
static void null_peer(void)
{
    MPI_Request r[2];
    MPI_Status st[2];
    int x = 5;
    STEP("proc null");
    MPI_Send_init(&x, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &r[0]);
    MPI_Recv_init(&x, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &r[1]);
    for (int k = 0; k < 5; k++) {
        MPI_Startall(2, r);
        MPI_Waitall(2, r, st);
        CHECK(st[1].MPI_SOURCE == MPI_PROC_NULL && st[1].MPI_TAG == MPI_ANY_TAG,
              "proc null status");
    }
    CHECK_EQ(x, 5, "untouched");
    MPI_Request_free(&r[0]);
    MPI_Request_free(&r[1]);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    exchange(30);
    often((int)scaled(20000));
    freed_and_cancelled();
    null_peer();
    return check_end();
}

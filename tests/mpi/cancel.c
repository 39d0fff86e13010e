/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Cancel of receives (named, wildcards, first, middle and last of a queue; later messages go to the
 * next receive), of receives that are matched already, and of sends (either outcome, and the
 * receiver must agree with it). MPI 3.1 section 3.8.4. */
#include "check.h"

static bool cancelled(MPI_Status *st)
{
    int flag = -1;
    MPI_Test_cancelled(st, &flag);
    CHECK(flag == 0 || flag == 1, "test_cancelled gave %d", flag);
    return flag;
}

/* A queue of receives, some cancelled: the messages go to the others, in order. */
static void receives(int kind)
{
    enum { N = 12 };
    int next = (me + 1) % np, previous = (me + np - 1) % np, in[N], kept = 0;
    int source = kind & 1 ? MPI_ANY_SOURCE : previous, tag = kind & 2 ? MPI_ANY_TAG : 5;
    MPI_Request r[N];
    MPI_Status st;
    STEP("receives, kind %d", kind);
    for (int i = 0; i < N; i++) {
        in[i] = -1;
        MPI_Irecv(&in[i], 1, MPI_INT, source, tag, MPI_COMM_WORLD, &r[i]);
    }
    for (int i = 0; i < N; i++)
        if (i % 3 != 1) { /* first and last too */
            MPI_Cancel(&r[i]);
            if (i % 2) {
                MPI_Wait(&r[i], &st);
            } else {
                int flag = 0;
                while (!flag)
                    MPI_Test(&r[i], &flag, &st);
            }
            CHECK(cancelled(&st), "receive %d is not cancelled although nobody has sent", i);
            CHECK(r[i] == MPI_REQUEST_NULL, "request not null");
        }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < N; i++)
        if (i % 3 == 1) {
            int x = 100 * me + kept++;
            MPI_Send(&x, 1, MPI_INT, next, 5, MPI_COMM_WORLD);
        }
    kept = 0;
    for (int i = 0; i < N; i++)
        if (i % 3 == 1) {
            MPI_Wait(&r[i], &st);
            CHECK(!cancelled(&st), "another receive was cancelled");
            CHECK_EQ(in[i], 100 * previous + kept++, "value");
        } else {
            CHECK_EQ(in[i], -1, "buffer of a cancelled receive");
        }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Cancel of a receive whose message is there: it must not be cancelled, and the data must come. */
static void too_late(int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *in = buffer_new((size_t)n), *out = buffer_new((size_t)n);
    MPI_Request r[2];
    MPI_Status st;
    STEP("too late, %d bytes", n);
    fill(out, (size_t)n, key_of(me, 6, n, 0));
    MPI_Isend(out, n, MPI_BYTE, next, 6, MPI_COMM_WORLD, &r[1]);
    MPI_Probe(previous, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Irecv(in, n, MPI_BYTE, previous, 6, MPI_COMM_WORLD, &r[0]); /* matches at once */
    MPI_Cancel(&r[0]);
    MPI_Wait(&r[0], &st);
    CHECK(!cancelled(&st), "a matched receive was cancelled");
    STATUS(&st, previous, 6, n);
    VERIFY(in, n, key_of(previous, 6, n, 0), "matched before cancel");
    MPI_Wait(&r[1], MPI_STATUS_IGNORE);
    buffer_free(in);
    buffer_free(out);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Cancel in the middle of waitall, and then request_free of a cancelled one. */
static void in_waitall(void)
{
    int in[3], previous = (me + np - 1) % np, next = (me + 1) % np, x = 9;
    MPI_Request r[3];
    MPI_Status st[3];
    STEP("waitall");
    for (int k = 0; k < 3; k++)
        MPI_Irecv(&in[k], 1, MPI_INT, previous, 20 + k, MPI_COMM_WORLD, &r[k]);
    MPI_Cancel(&r[1]);
    MPI_Send(&x, 1, MPI_INT, next, 22, MPI_COMM_WORLD);
    MPI_Send(&x, 1, MPI_INT, next, 20, MPI_COMM_WORLD);
    MPI_Waitall(3, r, st);
    CHECK(!cancelled(&st[0]) && cancelled(&st[1]) && !cancelled(&st[2]), "wrong one cancelled");
    MPI_Irecv(&in[0], 1, MPI_INT, previous, 30, MPI_COMM_WORLD, &r[0]);
    MPI_Cancel(&r[0]);
    MPI_Request_free(&r[0]);
    in[1] = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Sendrecv(&x, 1, MPI_INT, next, 30, &in[1], 1, MPI_INT, previous, 30, MPI_COMM_WORLD,
                 &st[0]);
    CHECK_EQ(in[1], 9, "message after a cancelled and freed receive");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Cancel of sends: if it says cancelled, the receiver must not get it; else it must. */
static void sends(int n, bool synchronous, bool matched)
{
    int peer = me ^ 1, outcome = -1;
    STEP("cancel a send of %d bytes, synchronous %d, matched %d", n, synchronous, matched);
    if (peer >= np)
        goto out;
    if (me % 2 == 0) {
        unsigned char *out = buffer_new((size_t)n);
        MPI_Request r;
        MPI_Status st;
        fill(out, (size_t)n, key_of(me, 40, n, matched));
        if (synchronous)
            MPI_Issend(out, n, MPI_BYTE, peer, 40, MPI_COMM_WORLD, &r);
        else
            MPI_Isend(out, n, MPI_BYTE, peer, 40, MPI_COMM_WORLD, &r);
        if (matched)
            MPI_Recv(NULL, 0, MPI_BYTE, peer, 42, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Cancel(&r);
        /* Stock never cancels a send, and a rendezvous then needs its receive: so tell first. */
        int flag = 0;
        for (int k = 0; k < 20 && !flag; k++) {
            MPI_Test(&r, &flag, &st);
            sleep_ms(1);
        }
        int sure = flag ? cancelled(&st) : 0;
        MPI_Send(&sure, 1, MPI_INT, peer, 41, MPI_COMM_WORLD);
        if (!flag) {
            MPI_Wait(&r, &st);
            CHECK(!cancelled(&st), "cancelled only after 20 ms");
        }
        outcome = sure;
        if (matched)
            CHECK(!outcome, "a matched send was cancelled");
        buffer_free(out);
    } else {
        unsigned char *in = buffer_new((size_t)n);
        MPI_Request r = MPI_REQUEST_NULL;
        MPI_Status st;
        int flag;
        if (matched) {
            MPI_Probe(peer, 40, MPI_COMM_WORLD, &st);
            MPI_Irecv(in, n, MPI_BYTE, peer, 40, MPI_COMM_WORLD, &r);
            MPI_Send(NULL, 0, MPI_BYTE, peer, 42, MPI_COMM_WORLD);
        }
        MPI_Recv(&outcome, 1, MPI_INT, peer, 41, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (outcome) {
            MPI_Iprobe(peer, 40, MPI_COMM_WORLD, &flag, &st);
            CHECK(!flag, "a cancelled send arrived");
        } else {
            if (!matched)
                MPI_Irecv(in, n, MPI_BYTE, peer, 40, MPI_COMM_WORLD, &r);
            MPI_Wait(&r, &st);
            STATUS(&st, peer, 40, n);
            VERIFY(in, n, key_of(peer, 40, n, matched), "not cancelled");
        }
        buffer_free(in);
    }
out:
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int round = 0; round < 20; round++) {
        for (int kind = 0; kind < 4; kind++)
            receives(kind);
        too_late(SMALL_BYTES);
        too_late(LARGE_BYTES);
        in_waitall();
    }
    for (int k = 0; k < 8; k++) {
        sends(0, k & 1, k & 2);
        sends(SMALL_BYTES, k & 1, k & 2);
        sends(10000, k & 1, k & 2);
        sends(LARGE_BYTES, k & 1, k & 2);
    }
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Matched probe: Mprobe, Improbe, Mrecv, Imrecv with wildcards, at eager and rendezvous sizes; a
 * matched message is out of sight of other receives; MPI_MESSAGE_NO_PROC. MPI 3.1 section 3.8.2. */
#include "check.h"

static const long sizes[] = {0, 1, 100, 4097, 65537, LARGE_BYTES};
enum { N = LENGTH(sizes) };
static unsigned char *out[N];
static MPI_Request r[N];

static void send_all(int to, int iteration)
{
    for (int i = 0; i < N; i++) {
        fill(out[i], (size_t)sizes[i], key_of(me, i, to, iteration));
        MPI_Isend(out[i], (int)sizes[i], MPI_BYTE, to, i, MPI_COMM_WORLD, &r[i]);
    }
}

/* All are matched first, then received in another order, blocking and nonblocking. */
static void match_then_receive(int iteration)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np, flag;
    bool any_source = iteration & 1, any_tag = iteration & 2, blocking = iteration & 4;
    MPI_Message m[N];
    MPI_Status st[N];
    unsigned char *in[N];
    STEP("match then receive %d", iteration);
    send_all(next, iteration);
    for (int i = 0; i < N; i++) {
        int source = any_source ? MPI_ANY_SOURCE : previous, tag = any_tag ? MPI_ANY_TAG : i;
        if (blocking)
            MPI_Mprobe(source, tag, MPI_COMM_WORLD, &m[i], &st[i]);
        else
            for (flag = 0; !flag;)
                MPI_Improbe(source, tag, MPI_COMM_WORLD, &flag, &m[i], &st[i]);
        STATUS(&st[i], previous, i, sizes[i]);
        CHECK(m[i] != MPI_MESSAGE_NULL && m[i] != MPI_MESSAGE_NO_PROC, "no message handle");
    }
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag, "a matched message is still seen by a probe");
    MPI_Request q[N];
    int asked = 0;
    for (int k = 0; k < N; k++) {
        int i = (k * 5 + iteration) % N;
        CHECK(m[i] != MPI_MESSAGE_NULL, "order is not a permutation");
        in[i] = buffer_new((size_t)sizes[i]);
        q[i] = MPI_REQUEST_NULL;
        if (k % 2) {
            MPI_Mrecv(in[i], (int)sizes[i], MPI_BYTE, &m[i], &st[i]);
        } else {
            MPI_Imrecv(in[i], (int)sizes[i], MPI_BYTE, &m[i], &q[i]);
            asked++;
        }
        CHECK(m[i] == MPI_MESSAGE_NULL, "the handle must be null after the receive");
    }
    for (; asked > 0; asked--) {
        int i;
        MPI_Status one;
        MPI_Waitany(N, q, &i, &one);
        st[i] = one;
    }
    for (int i = 0; i < N; i++) {
        STATUS(&st[i], previous, i, sizes[i]);
        VERIFY(in[i], sizes[i], key_of(previous, i, me, iteration), "mrecv");
        buffer_free(in[i]);
    }
    MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Two messages with the same envelope: one matched by mprobe, the next by a plain receive. */
static void next_receive_gets_the_next(int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *a = buffer_new((size_t)n), *b = buffer_new((size_t)n),
                  *c = buffer_new((size_t)n), *d = buffer_new((size_t)n);
    MPI_Request q[2];
    MPI_Message m;
    MPI_Status st;
    STEP("next receive gets the next, %d bytes", n);
    fill(a, (size_t)n, key_of(me, 9, 1, n));
    fill(b, (size_t)n, key_of(me, 9, 2, n));
    MPI_Isend(a, n, MPI_BYTE, next, 9, MPI_COMM_WORLD, &q[0]);
    MPI_Isend(b, n, MPI_BYTE, next, 9, MPI_COMM_WORLD, &q[1]);
    MPI_Mprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &m, &st);
    MPI_Recv(d, n, MPI_BYTE, previous, 9, MPI_COMM_WORLD, &st);
    VERIFY(d, n, key_of(previous, 9, 2, n), "plain receive behind a matched message");
    MPI_Mrecv(c, n, MPI_BYTE, &m, &st);
    VERIFY(c, n, key_of(previous, 9, 1, n), "matched message");
    STATUS(&st, previous, 9, n);
    MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
    buffer_free(a), buffer_free(b), buffer_free(c), buffer_free(d);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void no_process(void)
{
    MPI_Message m = MPI_MESSAGE_NULL;
    MPI_Status st;
    MPI_Request q;
    int flag = 0, x = 77;
    STEP("no proc");
    MPI_Mprobe(MPI_PROC_NULL, 1, MPI_COMM_WORLD, &m, &st);
    CHECK(m == MPI_MESSAGE_NO_PROC, "mprobe of PROC_NULL");
    CHECK(st.MPI_SOURCE == MPI_PROC_NULL && st.MPI_TAG == MPI_ANY_TAG, "status");
    MPI_Mrecv(&x, 1, MPI_INT, &m, &st);
    CHECK(m == MPI_MESSAGE_NULL, "after mrecv");
    CHECK(st.MPI_SOURCE == MPI_PROC_NULL && st.MPI_TAG == MPI_ANY_TAG, "status of mrecv");
    MPI_Improbe(MPI_PROC_NULL, 1, MPI_COMM_WORLD, &flag, &m, &st);
    CHECK(flag && m == MPI_MESSAGE_NO_PROC, "improbe of PROC_NULL");
    MPI_Imrecv(&x, 1, MPI_INT, &m, &q);
    MPI_Wait(&q, &st);
    CHECK(st.MPI_SOURCE == MPI_PROC_NULL && st.MPI_TAG == MPI_ANY_TAG && x == 77, "imrecv");
    MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &m, &st);
    CHECK(!flag, "improbe found something");
    MPI_Barrier(MPI_COMM_WORLD); /* only now the next messages */
}

/* A matched synchronous message completes the sender only with the match. */
static void synchronous(void)
{
    int peer = me ^ 1, flag;
    STEP("synchronous");
    if (peer < np && me % 2 == 0) {
        MPI_Request q;
        fill(out[3], (size_t)sizes[3], key_of(me, 3, 3, 3));
        MPI_Issend(out[3], (int)sizes[3], MPI_BYTE, peer, 3, MPI_COMM_WORLD, &q);
        MPI_Wait(&q, MPI_STATUS_IGNORE);
    } else if (peer < np) {
        MPI_Message m;
        MPI_Status st;
        unsigned char *in = buffer_new((size_t)sizes[3]);
        MPI_Mprobe(peer, 3, MPI_COMM_WORLD, &m, &st);
        MPI_Mrecv(in, (int)sizes[3], MPI_BYTE, &m, &st);
        VERIFY(in, sizes[3], key_of(peer, 3, 3, 3), "ssend");
        MPI_Iprobe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag, "something is left");
        buffer_free(in);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int i = 0; i < N; i++)
        out[i] = buffer_new((size_t)sizes[i]);
    for (int k = 0; k < 24; k++)
        match_then_receive(k);
    next_receive_gets_the_next(4);
    next_receive_gets_the_next(5000);
    next_receive_gets_the_next(LARGE_BYTES);
    no_process();
    synchronous();
    for (int i = 0; i < N; i++)
        buffer_free(out[i]);
    return check_end();
}

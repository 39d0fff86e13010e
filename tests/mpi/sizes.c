/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Blocking and nonblocking messages at every size where a protocol may change, both directions at
 * once, also to oneself. MPI 3.1 sections 3.2, 3.7, 3.10. */
#include "check.h"

static unsigned char *out, *in;

/* One direction at a time, blocking, the receive posted late and early. */
static void one_way(int a, int b, long n, int tag)
{
    MPI_Status st;
    if (me == a) {
        fill(out, (size_t)n, key_of(a, tag, n, 0));
        MPI_Send(out, (int)n, MPI_BYTE, b, tag, MPI_COMM_WORLD);
        MPI_Send(out, (int)n, MPI_BYTE, b, tag + 1, MPI_COMM_WORLD);
    } else if (me == b) {
        for (int k = 0; k < 2; k++) {
            poison(in, (size_t)n);
            MPI_Recv(in, (int)n, MPI_BYTE, a, tag + k, MPI_COMM_WORLD, &st);
            STATUS(&st, a, tag + k, n);
            VERIFY(in, n, key_of(a, tag, n, 0), "blocking");
            GUARDS(in);
        }
    }
}

/* Receive buffer larger than the message: the rest must stay as it was. */
static void short_message(int a, int b, long n)
{
    MPI_Status st;
    if (me == a) {
        fill(out, (size_t)n, key_of(a, 3, n, 1));
        MPI_Send(out, (int)n, MPI_BYTE, b, 3, MPI_COMM_WORLD);
    } else if (me == b) {
        poison(in, (size_t)n + 100);
        MPI_Recv(in, (int)n + 100, MPI_BYTE, a, 3, MPI_COMM_WORLD, &st);
        STATUS(&st, a, 3, n);
        VERIFY(in, n, key_of(a, 3, n, 1), "short message");
        UNTOUCHED(in + n, 100, "behind a short message");
    }
}

/* Every pair, self included, both directions at once. */
static void both_ways(long n, int iteration)
{
    int next = (me + iteration) % np, previous = (me - iteration % np + np) % np;
    MPI_Request r[2];
    MPI_Status st[2];
    fill(out, (size_t)n, key_of(me, 9, n, iteration));
    poison(in, (size_t)n);
    if (iteration % 2) {
        MPI_Irecv(in, (int)n, MPI_BYTE, previous, 9, MPI_COMM_WORLD, &r[0]);
        MPI_Isend(out, (int)n, MPI_BYTE, next, 9, MPI_COMM_WORLD, &r[1]);
    } else {
        MPI_Isend(out, (int)n, MPI_BYTE, next, 9, MPI_COMM_WORLD, &r[1]);
        MPI_Irecv(in, (int)n, MPI_BYTE, previous, 9, MPI_COMM_WORLD, &r[0]);
    }
    MPI_Waitall(2, r, st);
    STATUS(&st[0], previous, 9, n);
    VERIFY(in, n, key_of(previous, 9, n, iteration), "both ways");
    GUARDS(in);
    CHECK(r[0] == MPI_REQUEST_NULL && r[1] == MPI_REQUEST_NULL, "requests not null after waitall");
    poison(in, (size_t)n);
    MPI_Sendrecv(out, (int)n, MPI_BYTE, next, 5, in, (int)n, MPI_BYTE, previous, 5, MPI_COMM_WORLD,
                 &st[0]);
    STATUS(&st[0], previous, 5, n);
    VERIFY(in, n, key_of(previous, 9, n, iteration), "sendrecv");
}

/* Both directions between a pair at once, several messages of growing size in flight. */
static void burst(void)
{
    enum { N = 16 };
    static unsigned char *bufs[2 * N];
    MPI_Request r[2 * N];
    MPI_Status st[2 * N];
    int peer = me ^ 1;
    if (peer >= np)
        return;
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)edge_sizes[12 + i];
        bufs[i] = buffer_new(n);
        bufs[N + i] = buffer_new(n);
        fill(bufs[N + i], n, key_of(me, i, (long)n, 77));
        MPI_Irecv(bufs[i], (int)n, MPI_BYTE, peer, i, MPI_COMM_WORLD, &r[i]);
    }
    for (int i = 0; i < N; i++)
        MPI_Isend(bufs[N + i], (int)edge_sizes[12 + i], MPI_BYTE, peer, i, MPI_COMM_WORLD,
                  &r[N + i]);
    MPI_Waitall(2 * N, r, st);
    for (int i = 0; i < N; i++) {
        STATUS(&st[i], peer, i, edge_sizes[12 + i]);
        VERIFY(bufs[i], edge_sizes[12 + i], key_of(peer, i, edge_sizes[12 + i], 77), "burst");
        buffer_free(bufs[i]);
        buffer_free(bufs[N + i]);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    out = buffer_new(5000100);
    in = buffer_new(5000100);
    for (int i = 0; i < LENGTH(edge_sizes); i++) {
        long n = edge_sizes[i];
        STEP("size %ld", n);
        for (int a = 0; a < np; a++)
            for (int b = 0; b < np; b++)
                if (a != b && (n < 1000000 || b == (a + 1) % np)) {
                    one_way(a, b, n, i);
                    short_message(a, b, n);
                }
        for (int k = 0; k <= np; k++)
            both_ways(n, k);
    }
    STEP("burst");
    for (int k = 0; k < 4; k++)
        burst();
    buffer_free(out);
    buffer_free(in);
    return check_end();
}

/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* The progress rule: what a rank has started goes on while it sits in some other MPI call, and a
 * chain of ranks that each wait for the previous one ends. MPI 3.1 sections 3.5, 3.7.4. */
#include "check.h"

/* a has an open large isend to b and waits for a small message from b, who sends it after
 * receiving. */
static void send_while_receiving(int n)
{
    unsigned char *b = buffer_new((size_t)n);
    int peer = me ^ 1, x = 0;
    STEP("send while receiving, %d bytes", n);
    if (peer < np && me % 2 == 0) {
        MPI_Request r;
        fill(b, (size_t)n, key_of(me, 1, n, 0));
        MPI_Isend(b, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &r);
        MPI_Recv(&x, 1, MPI_INT, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
    } else if (peer < np) {
        MPI_Recv(b, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        VERIFY(b, n, key_of(peer, 1, n, 0), "while the sender received");
        MPI_Send(&x, 1, MPI_INT, peer, 2, MPI_COMM_WORLD);
    }
    buffer_free(b);
}

/* The same with a receive that must be answered (rendezvous) while the receiver is in a barrier, a
 * probe, a test loop on something else, a Waitany, or a collective. */
static void receive_while(int way, int n)
{
    unsigned char *b = buffer_new((size_t)n);
    MPI_Request r;
    MPI_Comm pair;
    int peer = me ^ 1, x = 0, flag = 0;
    STEP("receive while %d, %d bytes", way, n);
    MPI_Comm_split(MPI_COMM_WORLD, me / 2, me, &pair);
    if (peer < np && me % 2 == 0) {
        fill(b, (size_t)n, key_of(me, 3, n, way));
        MPI_Ssend(b, n, MPI_BYTE, peer, 3, MPI_COMM_WORLD);
        if (way == 0)
            MPI_Barrier(pair);
        else if (way == 4)
            MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_INT, MPI_SUM, pair);
        else
            MPI_Send(&x, 1, MPI_INT, peer, 4, MPI_COMM_WORLD);
    } else if (peer < np) {
        MPI_Request q[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        MPI_Irecv(b, n, MPI_BYTE, peer, 3, MPI_COMM_WORLD, &r);
        if (way == 0)
            MPI_Barrier(pair);
        else if (way == 1)
            MPI_Probe(peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else if (way == 2)
            while (!flag)
                MPI_Iprobe(peer, 4, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        else if (way == 3) {
            MPI_Irecv(&x, 1, MPI_INT, peer, 4, MPI_COMM_WORLD, &q[1]);
            MPI_Waitany(2, q, &flag, MPI_STATUS_IGNORE);
        } else
            MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_INT, MPI_SUM, pair);
        if (way == 1 || way == 2)
            MPI_Recv(&x, 1, MPI_INT, peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        VERIFY(b, n, key_of(peer, 3, n, way), "received meanwhile");
    }
    MPI_Comm_free(&pair);
    buffer_free(b);
}

/* Sends that are larger than any buffer, all around a ring, receives posted first by one rank only.
 */
static void chain(int n)
{
    unsigned char *in = buffer_new((size_t)n), *out = buffer_new((size_t)n);
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    STEP("chain, %d bytes", n);
    fill(out, (size_t)n, key_of(me, 5, n, 0));
    if (me == 0) {
        MPI_Recv(in, n, MPI_BYTE, previous, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, n, MPI_BYTE, next, 5, MPI_COMM_WORLD);
    } else {
        MPI_Send(out, n, MPI_BYTE, next, 5, MPI_COMM_WORLD);
        MPI_Recv(in, n, MPI_BYTE, previous, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    VERIFY(in, n, key_of(previous, 5, n, 0), "chain");
    buffer_free(in);
    buffer_free(out);
}

/* A rank that computes does not stop the others from talking to each other. */
static void one_computes(void)
{
    STEP("one computes");
    if (me == 0) {
        sleep_ms(300);
    } else if (np > 2) {
        int next = me % (np - 1) + 1, previous = (me - 2 + np - 1) % (np - 1) + 1, x = me, y;
        double start = MPI_Wtime();
        for (int k = 0; k < 200; k++)
            MPI_Sendrecv(&x, 1, MPI_INT, next, 6, &y, 1, MPI_INT, previous, 6, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
        CHECK_EQ(y, previous, "value");
        CHECK(MPI_Wtime() - start < 20, "the others took %g s", MPI_Wtime() - start);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {4, 5000, 70000, LARGE_BYTES, 4000000};
    check_begin(&argc, &argv);
    for (int i = 0; i < LENGTH(sizes); i++) {
        send_while_receiving(sizes[i]);
        for (int way = 0; way < 5; way++)
            receive_while(way, sizes[i]);
        for (int k = 0; k < 5; k++)
            chain(sizes[i]);
    }
    one_computes();
    return check_end();
}

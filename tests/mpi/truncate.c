/* ranks: 2,4 ; nodes: 1,2,3 */
/* Messages longer than the receive: MPI_ERR_TRUNCATE from recv, wait, waitall (in the status),
 * waitany, sendrecv, at eager and rendezvous sizes, early and late; the sender sees no error, and
 * the next messages are whole. That nothing is written behind the buffer is checked at eager sizes
 * only: stock ob1 does it above (truncate_overrun.c). MPI 3.1 section 3.2.4. */
#include "check.h"

enum { MAX = 400000 };
static unsigned char *in, *out;
static int peer;

static void behind(int room, int n)
{
    if (n < 4000)
        UNTOUCHED(in + room, n - room, "behind a truncated message");
    GUARDS(in);
}

static void whole_message_after(int n)
{
    MPI_Status st;
    poison(in, (size_t)n);
    EXPECT_OK(MPI_Recv(in, n, MPI_BYTE, peer, 8, MPI_COMM_WORLD, &st));
    STATUS(&st, peer, 8, n);
    VERIFY(in, n, key_of(peer, 8, n, 0), "message after a truncated one");
}

static void send_pair(int n, int mode)
{
    fill(out, (size_t)n, key_of(me, 8, n, 0));
    if (mode == 0) {
        EXPECT_OK(MPI_Send(out, n, MPI_BYTE, peer, 7, MPI_COMM_WORLD));
    } else {
        MPI_Request r;
        EXPECT_OK(MPI_Issend(out, n, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &r));
        EXPECT_OK(MPI_Wait(&r, MPI_STATUS_IGNORE));
    }
    EXPECT_OK(MPI_Send(out, n, MPI_BYTE, peer, 8, MPI_COMM_WORLD));
}

static void single(int n, int room, int mode)
{
    MPI_Status st;
    MPI_Request r;
    STEP("%d into %d bytes, mode %d", n, room, mode);
    if (me % 2 == 0) {
        if (mode & 1)
            MPI_Recv(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        send_pair(n, mode & 2);
        return;
    }
    poison(in, (size_t)n);
    if (mode & 1) { /* posted early */
        EXPECT_OK(MPI_Irecv(in, room, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &r));
        MPI_Send(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        EXPECT_CLASS(MPI_Wait(&r, &st), MPI_ERR_TRUNCATE);
    } else { /* unexpected */
        MPI_Probe(peer, 7, MPI_COMM_WORLD, &st);
        EXPECT_CLASS(MPI_Recv(in, room, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &st), MPI_ERR_TRUNCATE);
    }
    CHECK(st.MPI_SOURCE == peer && st.MPI_TAG == 7, "source %d tag %d", st.MPI_SOURCE, st.MPI_TAG);
    behind(room, n);
    whole_message_after(n);
}

/* Waitall: MPI_ERR_IN_STATUS, and only the truncated ones say so. */
static void in_waitall(int n)
{
    enum { N = 6 };
    MPI_Request r[N];
    MPI_Status st[N];
    unsigned char *b[N];
    STEP("waitall, %d bytes", n);
    if (me % 2 == 0) {
        fill(out, (size_t)n, key_of(me, 9, n, 0));
        for (int k = 0; k < N; k++)
            EXPECT_OK(MPI_Send(out, n, MPI_BYTE, peer, k, MPI_COMM_WORLD));
        return;
    }
    for (int k = 0; k < N; k++) {
        b[k] = buffer_new((size_t)n);
        EXPECT_OK(MPI_Irecv(b[k], k % 2 ? n / 2 : n, MPI_BYTE, peer, k, MPI_COMM_WORLD, &r[k]));
    }
    int left = N;
    for (int k = 0; k < N; k++)
        st[k].MPI_ERROR = 0;
    EXPECT_CLASS(MPI_Waitall(N, r, st), MPI_ERR_IN_STATUS);
    for (int k = 0; k < N; k++) { /* some may still be pending */
        int class = -1;
        MPI_Error_class(st[k].MPI_ERROR, &class);
        if (class == MPI_ERR_PENDING) {
            CHECK(r[k] != MPI_REQUEST_NULL, "pending, but the request is gone");
            class = MPI_SUCCESS;
            int rc = MPI_Wait(&r[k], &st[k]);
            if (rc != MPI_SUCCESS)
                MPI_Error_class(rc, &class);
        }
        CHECK_EQ(class, k % 2 ? MPI_ERR_TRUNCATE : MPI_SUCCESS, "error class in the status");
        VERIFY(b[k], k % 2 ? 0 : n, key_of(peer, 9, n, 0), "whole one among truncated ones");
        if (n < 4000)
            UNTOUCHED(b[k] + (k % 2 ? n / 2 : n), k % 2 ? n - n / 2 : 0, "behind");
        buffer_free(b[k]);
        left--;
    }
    CHECK_EQ(left, 0, "left");
}

static void other_calls(int n)
{
    MPI_Request r[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status st;
    int flag = 0, index = -1, rc = 0;
    STEP("other calls, %d bytes", n);
    if (me % 2 == 0) {
        fill(out, (size_t)n, key_of(me, 8, n, 0));
        for (int k = 0; k < 4; k++)
            EXPECT_OK(MPI_Send(out, n, MPI_BYTE, peer, 7, MPI_COMM_WORLD));
        EXPECT_OK(MPI_Send(out, n, MPI_BYTE, peer, 8, MPI_COMM_WORLD));
        EXPECT_OK(MPI_Recv(out, 1, MPI_BYTE, peer, 3, MPI_COMM_WORLD, &st));
        return;
    }
    poison(in, (size_t)n);
    MPI_Irecv(in, n / 3, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &r[1]);
    EXPECT_CLASS(MPI_Waitany(2, r, &index, &st), MPI_ERR_TRUNCATE);
    CHECK_EQ(index, 1, "index of waitany");
    MPI_Irecv(in, n / 3, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &r[0]);
    while (!flag && rc == MPI_SUCCESS)
        rc = MPI_Test(&r[0], &flag, &st);
    EXPECT_CLASS(rc, MPI_ERR_TRUNCATE);
    EXPECT_CLASS(MPI_Sendrecv(out, 1, MPI_BYTE, peer, 3, in, n / 3, MPI_BYTE, MPI_ANY_SOURCE, 7,
                              MPI_COMM_WORLD, &st),
                 MPI_ERR_TRUNCATE);
    MPI_Recv_init(in, n / 3, MPI_BYTE, peer, 7, MPI_COMM_WORLD, &r[0]);
    MPI_Start(&r[0]);
    EXPECT_CLASS(MPI_Wait(&r[0], &st), MPI_ERR_TRUNCATE);
    if (r[0] != MPI_REQUEST_NULL) /* 4.1.4 frees it or not */
        MPI_Request_free(&r[0]);
    behind(n / 3, n);
    whole_message_after(n);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 8, 257, 4096, 4097, 66000, MAX};
    check_begin(&argc, &argv);
    peer = me ^ 1;
    in = buffer_new(MAX);
    out = buffer_new(MAX);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < LENGTH(sizes); i++)
        for (int mode = 0; mode < 4; mode++) {
            single(sizes[i], 0, mode);
            single(sizes[i], sizes[i] - 1, mode);
            if (sizes[i] > 100) {
                single(sizes[i], 50, mode);
                single(sizes[i], sizes[i] / 2, mode);
            }
        }
    for (int i = 1; i < LENGTH(sizes); i++) {
        in_waitall(sizes[i]);
        other_calls(sizes[i]);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    buffer_free(in);
    buffer_free(out);
    return check_end();
}

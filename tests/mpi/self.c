/* ranks: 1,2,4 ; nodes: 1,2 */
/* Messages to oneself, on MPI_COMM_SELF and MPI_COMM_WORLD: all modes and sizes, before and after
 * the receive is posted, probes, wildcards, order, truncation, cancel, datatypes. */
#include "check.h"

static void simple(MPI_Comm comm, int self)
{
    for (int i = 0; i < LENGTH(edge_sizes); i++) {
        size_t n = (size_t)edge_sizes[i];
        unsigned char *in = buffer_new(n), *out = buffer_new(n);
        MPI_Request r[2];
        MPI_Status st[2];
        STEP("self, %zu bytes", n);
        for (int way = 0; way < 6; way++) {
            fill(out, n, key_of(me, way, i, 0));
            poison(in, n);
            if (way == 0) { /* send first */
                MPI_Isend(out, (int)n, MPI_BYTE, self, way, comm, &r[0]);
                MPI_Recv(in, (int)n, MPI_BYTE, self, way, comm, &st[0]);
                MPI_Wait(&r[0], MPI_STATUS_IGNORE);
            } else if (way == 1) { /* blocking send into a posted receive */
                MPI_Irecv(in, (int)n, MPI_BYTE, self, way, comm, &r[0]);
                MPI_Send(out, (int)n, MPI_BYTE, self, way, comm);
                MPI_Wait(&r[0], &st[0]);
            } else if (way == 2) {
                MPI_Irecv(in, (int)n, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &r[0]);
                MPI_Ssend(out, (int)n, MPI_BYTE, self, way, comm);
                MPI_Wait(&r[0], &st[0]);
            } else if (way == 3) {
                MPI_Sendrecv(out, (int)n, MPI_BYTE, self, way, in, (int)n, MPI_BYTE, self, way,
                             comm, &st[0]);
            } else if (way == 4) {
                MPI_Issend(out, (int)n, MPI_BYTE, self, way, comm, &r[1]);
                MPI_Probe(self, MPI_ANY_TAG, comm, &st[0]);
                STATUS(&st[0], self, way, n);
                MPI_Irecv(in, (int)n, MPI_BYTE, self, way, comm, &r[0]);
                MPI_Waitall(2, r, st);
            } else {
                MPI_Message m;
                MPI_Isend(out, (int)n, MPI_BYTE, self, way, comm, &r[0]);
                MPI_Mprobe(MPI_ANY_SOURCE, way, comm, &m, &st[0]);
                MPI_Mrecv(in, (int)n, MPI_BYTE, &m, &st[0]);
                MPI_Wait(&r[0], MPI_STATUS_IGNORE);
            }
            STATUS(&st[0], self, way, n);
            VERIFY(in, n, key_of(me, way, i, 0), "self");
        }
        buffer_free(in);
        buffer_free(out);
    }
}

static void issend_waits(MPI_Comm comm, int self)
{
    int x = 1, y = 0, flag;
    MPI_Request r;
    STEP("issend to self waits");
    MPI_Issend(&x, 1, MPI_INT, self, 1, comm, &r);
    for (int k = 0; k < 10; k++) {
        MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag, "Issend to self complete without a receive");
    }
    MPI_Recv(&y, 1, MPI_INT, self, 1, comm, MPI_STATUS_IGNORE);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    CHECK_EQ(y, 1, "value");
}

static void many(MPI_Comm comm, int self)
{
    enum { N = 500 };
    static int in[N], out[N];
    static MPI_Request r[2 * N];
    STEP("many to self");
    for (int way = 0; way < 2; way++) {
        for (int k = 0; k < N; k++) {
            out[k] = k * 7;
            in[k] = -1;
            if (way)
                MPI_Irecv(&in[k], 1, MPI_INT, self, 0, comm, &r[k]);
            else
                MPI_Isend(&out[k], 1, MPI_INT, self, N - k, comm, &r[k]);
        }
        for (int k = 0; k < N; k++) {
            if (way)
                MPI_Isend(&out[k], 1, MPI_INT, self, 0, comm, &r[N + k]);
            else
                MPI_Irecv(&in[k], 1, MPI_INT, self, N - k, comm, &r[N + k]);
        }
        MPI_Waitall(2 * N, r, MPI_STATUSES_IGNORE);
        for (int k = 0; k < N; k++)
            CHECK_EQ(in[k], k * 7, "order to self");
    }
}

static void truncated_and_cancelled(MPI_Comm comm, int self)
{
    int x[4] = {1, 2, 3, 4}, y[4] = {0}, flag;
    MPI_Request r[2];
    MPI_Status st;
    STEP("truncated and cancelled");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Isend(x, 4, MPI_INT, self, 1, comm, &r[0]);
    EXPECT_CLASS(MPI_Recv(y, 2, MPI_INT, self, 1, comm, &st), MPI_ERR_TRUNCATE);
    MPI_Wait(&r[0], MPI_STATUS_IGNORE);
    CHECK_EQ(y[2], 0, "behind");
    MPI_Irecv(y, 4, MPI_INT, self, 2, comm, &r[0]);
    MPI_Cancel(&r[0]);
    MPI_Wait(&r[0], &st);
    MPI_Test_cancelled(&st, &flag);
    CHECK(flag, "not cancelled");
    MPI_Sendrecv(x, 4, MPI_INT, self, 2, y, 4, MPI_INT, self, 2, comm, &st);
    CHECK_EQ(y[3], 4, "after a cancel");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
}

/* Different layouts at both ends. */
static void layouts(MPI_Comm comm, int self)
{
    enum { N = 30000 };
    int *x = malloc(2 * N * sizeof *x), *y = malloc(N * sizeof *y);
    MPI_Datatype every_second;
    STEP("layouts");
    MPI_Type_vector(N, 1, 2, MPI_INT, &every_second);
    MPI_Type_commit(&every_second);
    for (int k = 0; k < 2 * N; k++)
        x[k] = k;
    MPI_Sendrecv(x, 1, every_second, self, 3, y, N, MPI_INT, self, 3, comm, MPI_STATUS_IGNORE);
    for (int k = 0; k < N; k++)
        CHECK_EQ(y[k], 2 * k, "vector to contiguous");
    MPI_Sendrecv_replace(x, 1, every_second, self, 3, self, 3, comm, MPI_STATUS_IGNORE);
    for (int k = 0; k < 2 * N; k++)
        CHECK_EQ(x[k], k, "replace with itself");
    MPI_Type_free(&every_second);
    free(x), free(y);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int k = 0; k < 2; k++) {
        MPI_Comm comm = k ? MPI_COMM_WORLD : MPI_COMM_SELF;
        int self = k ? me : 0;
        simple(comm, self);
        issend_waits(comm, self);
        many(comm, self);
        truncated_and_cancelled(comm, self);
        layouts(comm, self);
    }
    return check_end();
}

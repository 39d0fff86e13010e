/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Probe and Iprobe: named and wildcards, sizes unknown to the receiver, order, PROC_NULL, a probed
 * message is received by the next matching receive. MPI 3.1 section 3.8.1. */
#include "check.h"

static const long sizes[] = {0, 1, 100, 4096, 4097, 40000, 65537, LARGE_BYTES};
enum { N = LENGTH(sizes) };

static unsigned char *out[N];
static MPI_Request r[N];

static void send_all(int to, int tag_base, int iteration)
{
    for (int i = 0; i < N; i++) {
        fill(out[i], (size_t)sizes[i], key_of(me, tag_base + i, to, iteration));
        MPI_Isend(out[i], (int)sizes[i], MPI_BYTE, to, tag_base + i, MPI_COMM_WORLD, &r[i]);
    }
}

static void receive_probed(const MPI_Status *st, int expected_source, int expected_tag,
                           int iteration)
{
    int count = -1;
    MPI_Status s;
    MPI_Get_count(st, MPI_BYTE, &count);
    unsigned char *in = buffer_new((size_t)count);
    MPI_Recv(in, count, MPI_BYTE, st->MPI_SOURCE, st->MPI_TAG, MPI_COMM_WORLD, &s);
    STATUS(&s, expected_source, expected_tag, count);
    STATUS(st, expected_source, expected_tag, count);
    VERIFY(in, count, key_of(expected_source, expected_tag, me, iteration), "probed message");
    buffer_free(in);
}

static void named(int iteration, bool blocking, bool reverse)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    STEP("named %d blocking %d reverse %d", iteration, blocking, reverse);
    send_all(next, 10, iteration);
    for (int k = 0; k < N; k++) {
        int i = reverse ? N - 1 - k : k, flag = 0;
        MPI_Status st;
        if (blocking)
            MPI_Probe(previous, 10 + i, MPI_COMM_WORLD, &st);
        else
            while (!flag)
                MPI_Iprobe(previous, 10 + i, MPI_COMM_WORLD, &flag, &st);
        STATUS(&st, previous, 10 + i, sizes[i]);
        MPI_Probe(previous, 10 + i, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* again: it stays */
        receive_probed(&st, previous, 10 + i, iteration);
        MPI_Iprobe(previous, 10 + i, MPI_COMM_WORLD, &flag, &st);
        CHECK(!flag, "a received message is still probed");
    }
    MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* ANY_TAG from one source shows the messages in their order. */
static void any_tag_in_order(int iteration)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    STEP("any tag %d", iteration);
    send_all(next, 50, iteration);
    for (int i = 0; i < N; i++) {
        MPI_Status st;
        MPI_Probe(iteration % 2 ? previous : MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
        STATUS(&st, previous, 50 + i, sizes[i]);
        receive_probed(&st, previous, 50 + i, iteration);
    }
    MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Everybody sends to rank 0, who probes with both wildcards; per source in order. */
static void farm(int iteration)
{
    int last[64];
    memset(last, -1, sizeof last);
    STEP("farm %d", iteration);
    if (me != 0) {
        send_all(0, 200, iteration);
        MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
    } else {
        for (int k = 0; k < N * (np - 1); k++) {
            MPI_Status st;
            int flag = 0;
            if (k % 2)
                MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
            else
                while (!flag)
                    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &st);
            int i = st.MPI_TAG - 200;
            CHECK_EQ(i, last[st.MPI_SOURCE % 64] + 1, "order of one source");
            last[st.MPI_SOURCE % 64] = i;
            STATUS(&st, st.MPI_SOURCE, 200 + i, sizes[i]);
            receive_probed(&st, st.MPI_SOURCE, 200 + i, iteration);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void nothing_there(void)
{
    int flag = 1;
    MPI_Status st;
    STEP("nothing there");
    for (int k = 0; k < 50; k++) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &st);
        CHECK(!flag, "probe found source %d tag %d", st.MPI_SOURCE, st.MPI_TAG);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, &st);
        CHECK(!flag, "probe on self found source %d tag %d", st.MPI_SOURCE, st.MPI_TAG);
        if (k % 10 == 0)
            MPI_Barrier(MPI_COMM_WORLD); /* collective traffic is invisible */
    }
    MPI_Iprobe(MPI_PROC_NULL, 3, MPI_COMM_WORLD, &flag, &st);
    CHECK(flag && st.MPI_SOURCE == MPI_PROC_NULL && st.MPI_TAG == MPI_ANY_TAG, "iprobe PROC_NULL");
    memset(&st, 0x55, sizeof st);
    MPI_Probe(MPI_PROC_NULL, 3, MPI_COMM_WORLD, &st);
    int count = -1;
    MPI_Get_count(&st, MPI_INT, &count);
    CHECK(st.MPI_SOURCE == MPI_PROC_NULL && st.MPI_TAG == MPI_ANY_TAG && count == 0, "PROC_NULL");
}

/* A posted receive takes the message: the probe must not see it. */
static void posted_receive_goes_first(void)
{
    int a = -1, b = -1, flag = 0, next = (me + 1) % np, previous = (me + np - 1) % np, x = 1, y = 2;
    MPI_Request q;
    MPI_Status st;
    STEP("posted receive first");
    MPI_Irecv(&a, 1, MPI_INT, previous, 5, MPI_COMM_WORLD, &q);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Send(&x, 1, MPI_INT, next, 5, MPI_COMM_WORLD);
    MPI_Wait(&q, MPI_STATUS_IGNORE);
    MPI_Iprobe(previous, 5, MPI_COMM_WORLD, &flag, &st);
    CHECK(!flag, "probe sees a matched message");
    MPI_Barrier(MPI_COMM_WORLD);
    if (np > 1) {
        MPI_Send(&y, 1, MPI_INT, next, 5, MPI_COMM_WORLD);
        MPI_Probe(previous, 5, MPI_COMM_WORLD, &st);
        MPI_Recv(&b, 1, MPI_INT, previous, 5, MPI_COMM_WORLD, &st);
        CHECK(a == 1 && b == 2, "got %d and %d", a, b);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int i = 0; i < N; i++)
        out[i] = buffer_new((size_t)sizes[i]);
    for (int k = 0; k < 8; k++) {
        named(k, k & 1, k & 2);
        any_tag_in_order(k);
        farm(k);
    }
    nothing_there();
    posted_receive_goes_first();
    for (int i = 0; i < N; i++)
        buffer_free(out[i]);
    return check_end();
}

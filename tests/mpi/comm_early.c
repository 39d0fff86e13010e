/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Messages on a new communicator reach a rank that has not made it yet: it is busy, in another
 * call, or slow; small and large, probed, many, also when the context id was in use before. */
#include "check.h"

enum { N = 6 };
static const long sizes[N] = {0, 4, 100, 5000, 70000, LARGE_BYTES};

/* create_group is collective over the group only; its last step may leave a rank behind. */
static void round_of(int round)
{
    MPI_Comm comm;
    MPI_Request r[N];
    unsigned char *out[N];
    int late = round % np;
    STEP("round %d", round);
    if (me == late && round % 8 == 0)
        sleep_ms(2);
    if (round % 3 == 0)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    else if (round % 3 == 1)
        MPI_Comm_split(MPI_COMM_WORLD, 0, me, &comm);
    else {
        MPI_Group group;
        MPI_Comm_group(MPI_COMM_WORLD, &group);
        MPI_Comm_create_group(MPI_COMM_WORLD, group, 7, &comm);
        MPI_Group_free(&group);
    }
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    for (int k = 0; k < N; k++) {
        out[k] = buffer_new((size_t)sizes[k]);
        fill(out[k], (size_t)sizes[k], key_of(me, k, round, 0));
        MPI_Isend(out[k], (int)sizes[k], MPI_BYTE, next, k, comm, &r[k]);
    }
    for (int k = 0; k < N; k++) {
        MPI_Status st;
        int tag = round % 2 ? MPI_ANY_TAG : k;
        unsigned char *in = buffer_new((size_t)sizes[k]);
        if (k % 2)
            MPI_Probe(MPI_ANY_SOURCE, tag, comm, &st);
        MPI_Recv(in, (int)sizes[k], MPI_BYTE, previous, tag, comm, &st);
        STATUS(&st, previous, k, sizes[k]);
        VERIFY(in, sizes[k], key_of(previous, k, round, 0), "early message");
        buffer_free(in);
    }
    MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
    for (int k = 0; k < N; k++)
        buffer_free(out[k]);
    MPI_Comm_free(&comm);
}

/* Many small ones arrive while the receiver still sleeps inside the creation (from a thread's
 * view): rank 0 makes the communicator with idup and completes it only after the others have sent.
 */
static void with_idup(int round)
{
    enum { M = 50 };
    MPI_Comm comm;
    MPI_Request r, s[M];
    static int out[M];
    STEP("idup round %d", round);
    MPI_Comm_idup(MPI_COMM_WORLD, &comm, &r);
    if (me == 0) {
        /* Progress happens only now and then: the others get far ahead. */
        int flag = 0;
        while (!flag) {
            MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
            sleep_ms(1);
        }
        for (int source = 1; source < np; source++)
            for (int k = 0; k < M; k++) {
                int x = -1;
                MPI_Recv(&x, 1, MPI_INT, source, MPI_ANY_TAG, comm, MPI_STATUS_IGNORE);
                CHECK_EQ(x, source * 1000 + k, "order on a new communicator");
            }
    } else {
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        for (int k = 0; k < M; k++) {
            out[k] = me * 1000 + k;
            MPI_Isend(&out[k], 1, MPI_INT, 0, k, comm, &s[k]);
        }
        MPI_Waitall(M, s, MPI_STATUSES_IGNORE);
    }
    MPI_Barrier(comm);
    MPI_Comm_free(&comm);
}

/* Several idups under way at once, messages on each as soon as it is there. */
static void many_idups(void)
{
    enum { C = 12 };
    MPI_Comm comm[C];
    MPI_Request r[C], s[C], q[C];
    int in[C], out[C], next = (me + 1) % np, previous = (me + np - 1) % np;
    STEP("many idups");
    for (int k = 0; k < C; k++)
        MPI_Comm_idup(MPI_COMM_WORLD, &comm[k], &r[k]);
    for (int left = C; left > 0; left--) {
        int k;
        MPI_Waitany(C, r, &k, MPI_STATUS_IGNORE);
        out[k] = me * 100 + k;
        MPI_Isend(&out[k], 1, MPI_INT, next, 1, comm[k], &s[k]);
        MPI_Irecv(&in[k], 1, MPI_INT, previous, 1, comm[k], &q[k]);
    }
    MPI_Waitall(C, s, MPI_STATUSES_IGNORE);
    MPI_Waitall(C, q, MPI_STATUSES_IGNORE);
    for (int k = 0; k < C; k++) {
        CHECK_EQ(in[k], previous * 100 + k, "value");
        int result = -1;
        MPI_Comm_compare(comm[k], MPI_COMM_WORLD, &result);
        CHECK_EQ(result, MPI_CONGRUENT, "compare");
        MPI_Comm_free(&comm[k]);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int round = 0; round < (int)scaled(300); round++)
        round_of(round);
    for (int round = 0; round < 30; round++)
        with_idup(round);
    for (int round = 0; round < 20; round++)
        many_idups();
    return check_end();
}

/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Intercommunicators: create, messages in both directions, wildcards, probes, collectives, dup,
 * split and merge. MPI 3.1 section 6.6. */
#include "check.h"

static MPI_Comm half, inter;
static int side, my_rank, my_size, remote_size;

static int world_of(int remote_rank)
{
    return remote_rank * 2 + (1 - side);
} /* even, odd */

static void point_to_point(int n)
{
    unsigned char *out = buffer_new((size_t)n), *in = buffer_new((size_t)n);
    MPI_Request *r = malloc((size_t)remote_size * sizeof *r);
    MPI_Status st;
    STEP("point to point, %d bytes", n);
    fill(out, (size_t)n, key_of(me, 1, n, 0));
    for (int k = 0; k < remote_size; k++)
        MPI_Isend(out, n, MPI_BYTE, k, my_rank, inter, &r[k]);
    for (int k = 0; k < remote_size; k++) {
        poison(in, (size_t)n);
        if (k % 2) {
            MPI_Recv(in, n, MPI_BYTE, MPI_ANY_SOURCE, k, inter, &st);
        } else {
            MPI_Probe(k, MPI_ANY_TAG, inter, &st);
            STATUS(&st, k, k, n);
            MPI_Recv(in, n, MPI_BYTE, k, MPI_ANY_TAG, inter, &st);
        }
        STATUS(&st, k, k, n);
        VERIFY(in, n, key_of(world_of(k), 1, n, 0), "from the other side");
    }
    MPI_Waitall(remote_size, r, MPI_STATUSES_IGNORE);
    free(r);
    buffer_free(out);
    buffer_free(in);
    MPI_Barrier(inter);
}

static void collectives(void)
{
    int x = me + 1, y = -1, expected = 0,
        *all = malloc((size_t)(remote_size + my_size) * sizeof(int));
    STEP("barrier");
    for (int k = 0; k < 20; k++)
        MPI_Barrier(inter);
    STEP("allreduce");
    for (int k = 0; k < remote_size; k++)
        expected += world_of(k) + 1;
    MPI_Allreduce(&x, &y, 1, MPI_INT, MPI_SUM, inter);
    CHECK_EQ(y, expected, "sum over the other side");
    STEP("allgather");
    MPI_Allgather(&x, 1, MPI_INT, all, 1, MPI_INT, inter);
    for (int k = 0; k < remote_size; k++)
        CHECK_EQ(all[k], world_of(k) + 1, "allgather");
    STEP("bcast");
    for (int root_side = 0; root_side < 2; root_side++) {
        int value = 0;
        if (side == root_side) {
            value = 77 + root_side;
            MPI_Bcast(&value, 1, MPI_INT, my_rank == 0 ? MPI_ROOT : MPI_PROC_NULL, inter);
        } else {
            MPI_Bcast(&value, 1, MPI_INT, 0, inter);
            CHECK_EQ(value, 77 + root_side, "bcast");
        }
        STEP("reduce and gather, root side %d", root_side);
        y = -1;
        if (side == root_side) {
            int root = my_rank == my_size - 1 ? MPI_ROOT : MPI_PROC_NULL;
            MPI_Reduce(&x, &y, 1, MPI_INT, MPI_SUM, root, inter);
            if (root == MPI_ROOT)
                CHECK_EQ(y, expected, "reduce");
            MPI_Gather(&x, 1, MPI_INT, all, 1, MPI_INT, root, inter);
            for (int k = 0; root == MPI_ROOT && k < remote_size; k++)
                CHECK_EQ(all[k], world_of(k) + 1, "gather");
            for (int k = 0; k < remote_size; k++)
                all[k] = k * 3;
            MPI_Scatter(all, 1, MPI_INT, &y, 1, MPI_INT, root, inter);
        } else {
            MPI_Reduce(&x, &y, 1, MPI_INT, MPI_SUM, remote_size - 1, inter);
            MPI_Gather(&x, 1, MPI_INT, all, 1, MPI_INT, remote_size - 1, inter);
            MPI_Scatter(all, 1, MPI_INT, &y, 1, MPI_INT, remote_size - 1, inter);
            CHECK_EQ(y, my_rank * 3, "scatter");
        }
    }
    STEP("alltoall");
    int *out = malloc((size_t)remote_size * sizeof *out);
    for (int k = 0; k < remote_size; k++)
        out[k] = me * 100 + world_of(k);
    MPI_Alltoall(out, 1, MPI_INT, all, 1, MPI_INT, inter);
    for (int k = 0; k < remote_size; k++)
        CHECK_EQ(all[k], world_of(k) * 100 + me, "alltoall");
    free(out);
    free(all);
}

static void dup_split_merge(void)
{
    MPI_Comm dup, merged, part;
    int flag, n, rank, sum = -1;
    STEP("dup");
    MPI_Comm_dup(inter, &dup);
    MPI_Comm_test_inter(dup, &flag);
    CHECK(flag, "a dup of an intercommunicator");
    MPI_Comm_remote_size(dup, &n);
    CHECK_EQ(n, remote_size, "remote size");
    MPI_Barrier(dup);
    MPI_Comm_free(&dup);
    for (int high = 0; high < 2; high++) {
        STEP("merge %d", high);
        MPI_Intercomm_merge(inter, side == high, &merged);
        MPI_Comm_size(merged, &n);
        MPI_Comm_rank(merged, &rank);
        CHECK_EQ(n, np, "size after merge");
        CHECK(side == high ? rank >= remote_size : rank < my_size, "rank %d after merge", rank);
        MPI_Allreduce(&me, &sum, 1, MPI_INT, MPI_SUM, merged);
        CHECK_EQ(sum, np * (np - 1) / 2, "sum after merge");
        int got = -1;
        MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % n, 1, &got, 1, MPI_INT, (rank + n - 1) % n, 1,
                     merged, MPI_STATUS_IGNORE);
        CHECK_EQ(got, (rank + n - 1) % n, "ring after merge");
        MPI_Comm_free(&merged);
    }
    if (np >= 4) {
        STEP("split");
        MPI_Comm_split(inter, my_rank % 2, 0, &part);
        if (part != MPI_COMM_NULL) {
            MPI_Comm_test_inter(part, &flag);
            CHECK(flag, "split of an intercommunicator");
            MPI_Barrier(part);
            MPI_Comm_free(&part);
        }
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    side = me % 2;
    MPI_Comm_split(MPI_COMM_WORLD, side, me, &half);
    MPI_Comm_rank(half, &my_rank);
    MPI_Comm_size(half, &my_size);
    for (int round = 0; round < 15; round++) {
        STEP("create %d", round);
        int leader = round % 2 ? my_size - 1 : 0;
        int other = round % 2 ? ((np + side) / 2 - 1) * 2 + 1 - side : 1 - side; /* world rank */
        MPI_Intercomm_create(half, leader, MPI_COMM_WORLD, other, round, &inter);
        MPI_Comm_remote_size(inter, &remote_size);
        CHECK_EQ(remote_size, np - my_size, "remote size");
        point_to_point(0);
        point_to_point(SMALL_BYTES);
        point_to_point(5000);
        point_to_point(LARGE_BYTES);
        collectives();
        dup_split_merge();
        MPI_Comm_free(&inter);
    }
    MPI_Comm_free(&half);
    return check_end();
}

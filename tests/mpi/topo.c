/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Cartesian, graph and distributed graph communicators with shifts and the neighbour collectives,
 * blocking and nonblocking. MPI 3.1 chapter 7. */
#include "check.h"

#pragma GCC diagnostic ignored "-Wstringop-overread" /* MPI_UNWEIGHTED is (int *)2 */

static void cartesian(int periodic, int reorder)
{
    int dims[2] = {0, 0}, periods[2] = {periodic, periodic}, at[2], rank, n = 600;
    MPI_Comm cart, line;
    STEP("cartesian %d %d", periodic, reorder);
    MPI_Dims_create(np, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, reorder, &cart);
    MPI_Comm_rank(cart, &rank);
    MPI_Cart_coords(cart, rank, 2, at);
    int peers[4]; /* in the order of the neighbour collectives */
    for (int d = 0; d < 2; d++) {
        MPI_Cart_shift(cart, d, 1, &peers[2 * d], &peers[2 * d + 1]);
        int x = rank, y = -1;
        MPI_Sendrecv(&x, 1, MPI_INT, peers[2 * d + 1], d, &y, 1, MPI_INT, peers[2 * d], d, cart,
                     MPI_STATUS_IGNORE);
        CHECK_EQ(y, peers[2 * d] == MPI_PROC_NULL ? -1 : peers[2 * d], "shift");
    }
    int *out = malloc((size_t)(4 * n) * sizeof *out), *in = malloc((size_t)(4 * n) * sizeof *in);
    for (int nonblocking = 0; nonblocking < 2; nonblocking++) {
        MPI_Request r;
        for (int k = 0; k < 4 * n; k++) {
            out[k] = rank * 10000 + k;
            in[k] = -1;
        }
        if (nonblocking) {
            MPI_Ineighbor_allgather(out, n, MPI_INT, in, n, MPI_INT, cart, &r);
            MPI_Wait(&r, MPI_STATUS_IGNORE);
        } else {
            MPI_Neighbor_allgather(out, n, MPI_INT, in, n, MPI_INT, cart);
        }
        for (int p = 0; p < 4; p++)
            for (int k = 0; k < n; k++)
                CHECK_EQ(in[p * n + k], peers[p] == MPI_PROC_NULL ? -1 : peers[p] * 10000 + k,
                         "neighbour allgather");
        bool twice = (periodic && (dims[0] <= 2 || dims[1] <= 2)); /* one peer on both sides */
        for (int k = 0; k < 4 * n; k++)
            in[k] = -1;
        if (nonblocking) {
            MPI_Ineighbor_alltoall(out, n, MPI_INT, in, n, MPI_INT, cart, &r);
            MPI_Wait(&r, MPI_STATUS_IGNORE);
        } else {
            MPI_Neighbor_alltoall(out, n, MPI_INT, in, n, MPI_INT, cart);
        }
        for (int p = 0; p < 4 && !twice; p++) /* what he sent towards me */
            for (int k = 0; k < n; k++)
                CHECK_EQ(in[p * n + k],
                         peers[p] == MPI_PROC_NULL ? -1 : peers[p] * 10000 + (p ^ 1) * n + k,
                         "neighbour alltoall");
    }
    for (int d = 0; d < 2; d++) {
        int size, sum = -1, one = 1;
        MPI_Cart_sub(cart, (int[]){d == 0, d == 1}, &line);
        MPI_Comm_size(line, &size);
        CHECK_EQ(size, dims[d], "size of a line");
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, line);
        CHECK_EQ(sum, dims[d], "sum over a line");
        MPI_Comm_free(&line);
    }
    free(out), free(in);
    MPI_Comm_free(&cart);
}

/* Everybody sends to the ranks above, with sizes that differ per pair. */
static void distributed_graph(void)
{
    int sources[64], targets[64], in_degree = 0, out_degree = 0, weighted;
    MPI_Comm graph;
    STEP("distributed graph");
    for (int k = 0; k < np; k++) {
        if (k < me)
            sources[in_degree++] = k;
        if (k > me)
            targets[out_degree++] = k;
    }
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, in_degree, sources, MPI_UNWEIGHTED, out_degree,
                                   targets, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph);
    int a, b;
    MPI_Dist_graph_neighbors_count(graph, &a, &b, &weighted);
    CHECK(a == in_degree && b == out_degree, "degrees %d %d", a, b);
    int out_counts[64], in_counts[64], out_at[64], in_at[64], total_out = 0, total_in = 0;
    for (int k = 0; k < out_degree; k++) {
        out_counts[k] = (me + 1) * 100 + targets[k];
        out_at[k] = total_out;
        total_out += out_counts[k];
    }
    for (int k = 0; k < in_degree; k++) {
        in_counts[k] = (sources[k] + 1) * 100 + me;
        in_at[k] = total_in;
        total_in += in_counts[k];
    }
    int *out = malloc((size_t)(total_out + 1) * sizeof *out),
        *in = malloc((size_t)(total_in + 1) * sizeof *in);
    for (int k = 0; k < out_degree; k++)
        for (int i = 0; i < out_counts[k]; i++)
            out[out_at[k] + i] = me * 1000000 + targets[k] * 10000 + i;
    MPI_Neighbor_alltoallv(out, out_counts, out_at, MPI_INT, in, in_counts, in_at, MPI_INT, graph);
    for (int k = 0; k < in_degree; k++)
        for (int i = 0; i < in_counts[k]; i++)
            CHECK_EQ(in[in_at[k] + i], sources[k] * 1000000 + me * 10000 + i,
                     "neighbour alltoallv");
    free(out), free(in);
    MPI_Comm_free(&graph);
    STEP("distributed graph, edges told by others");
    int source = (me + 1) % np, degree = 1, target = (me + 2) % np, x = me * 3, y[64];
    MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &source, &degree, &target, MPI_UNWEIGHTED,
                          MPI_INFO_NULL, 0, &graph);
    memset(y, 0, sizeof y);
    MPI_Neighbor_allgather(&x, 1, MPI_INT, y, 1, MPI_INT, graph);
    CHECK_EQ(y[0], (me + np - 1) % np * 3, "from my only source");
    MPI_Comm_free(&graph);
}

static void old_graph(void)
{
    int index[64], edges[128], x = me + 5, y[2] = {-1, -1};
    MPI_Comm graph;
    STEP("graph");
    for (int k = 0; k < np; k++) { /* a ring, both directions */
        index[k] = 2 * (k + 1);
        edges[2 * k] = (k + np - 1) % np;
        edges[2 * k + 1] = (k + 1) % np;
    }
    MPI_Graph_create(MPI_COMM_WORLD, np, index, edges, 0, &graph);
    MPI_Neighbor_allgather(&x, 1, MPI_INT, y, 1, MPI_INT, graph);
    CHECK_EQ(y[0], (me + np - 1) % np + 5, "left");
    CHECK_EQ(y[1], (me + 1) % np + 5, "right");
    MPI_Comm_free(&graph);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < 4; k++)
            cartesian(k & 1, k & 2);
        distributed_graph();
        if (np > 1)
            old_graph();
    }
    return check_end();
}

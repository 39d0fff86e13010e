/* ranks: 1,2,3,4,5,7 ; nodes: 1,2,3 */
/* Bcast, Gather, Gatherv, Scatter, Scatterv, Reduce: every root, sizes from nothing to large, in
 * place, with datatypes. MPI 3.1 sections 5.4 to 5.6, 5.9. */
#include "check.h"

static const int sizes[] = {0, 1, 7, 100, 1000, 5000, 20000, 300000};

static void bcast(int n, int root)
{
    unsigned char *b = buffer_new((size_t)n);
    STEP("bcast %d bytes, root %d", n, root);
    if (me == root)
        fill(b, (size_t)n, key_of(root, 1, n, 0));
    MPI_Bcast(b, n, MPI_BYTE, root, MPI_COMM_WORLD);
    VERIFY(b, n, key_of(root, 1, n, 0), "bcast");
    buffer_free(b);
    /* a strided column at the root, contiguous elsewhere */
    int m = n / 16;
    if (m == 0)
        return; /* stock: a root with one empty element sends, the others with none do not receive
                 */
    MPI_Datatype column;
    double *d = malloc((size_t)(2 * m + 2) * sizeof *d);
    MPI_Type_vector(m, 1, 2, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    for (int k = 0; k < 2 * m; k++)
        d[k] = me == root ? k : -1;
    if (me == root)
        MPI_Bcast(d, 1, column, root, MPI_COMM_WORLD);
    else
        MPI_Bcast(d, m, MPI_DOUBLE, root, MPI_COMM_WORLD);
    for (int k = 0; k < m && me != root; k++)
        CHECK(d[k] == 2 * k, "bcast of a column: element %d is %g", k, d[k]);
    MPI_Type_free(&column);
    free(d);
}

static void gather_scatter(int n, int root)
{
    unsigned char *mine = buffer_new((size_t)n), *all = buffer_new((size_t)n * (size_t)np);
    STEP("gather %d bytes, root %d", n, root);
    fill(mine, (size_t)n, key_of(me, 2, n, root));
    MPI_Gather(mine, n, MPI_BYTE, all, n, MPI_BYTE, root, MPI_COMM_WORLD);
    for (int k = 0; k < np && me == root; k++)
        VERIFY(all + (size_t)k * (size_t)n, n, key_of(k, 2, n, root), "gather");
    STEP("gather in place");
    if (me == root) {
        poison(all, (size_t)n * (size_t)np);
        fill(all + (size_t)me * (size_t)n, (size_t)n, key_of(me, 2, n, root));
        MPI_Gather(MPI_IN_PLACE, n, MPI_BYTE, all, n, MPI_BYTE, root, MPI_COMM_WORLD);
        for (int k = 0; k < np; k++)
            VERIFY(all + (size_t)k * (size_t)n, n, key_of(k, 2, n, root), "gather in place");
    } else {
        MPI_Gather(mine, n, MPI_BYTE, NULL, 0, MPI_BYTE, root, MPI_COMM_WORLD);
    }
    STEP("scatter %d bytes, root %d", n, root);
    for (int k = 0; k < np && me == root; k++)
        fill(all + (size_t)k * (size_t)n, (size_t)n, key_of(k, 3, n, root));
    poison(mine, (size_t)n);
    MPI_Scatter(all, n, MPI_BYTE, mine, n, MPI_BYTE, root, MPI_COMM_WORLD);
    VERIFY(mine, n, key_of(me, 3, n, root), "scatter");
    if (me == root)
        MPI_Scatter(all, n, MPI_BYTE, MPI_IN_PLACE, n, MPI_BYTE, root, MPI_COMM_WORLD);
    else
        MPI_Scatter(NULL, 0, MPI_BYTE, mine, n, MPI_BYTE, root, MPI_COMM_WORLD);
    VERIFY(mine, n, key_of(me, 3, n, root), "scatter in place");
    buffer_free(mine);
    buffer_free(all);
}

/* Rank k has n + 3k bytes (rank 0 none); the pieces lie backwards with gaps. */
static void with_counts(int n, int root)
{
    int counts[64], at[64], total = 0;
    for (int k = np - 1; k >= 0; k--) {
        counts[k] = k ? n + 3 * k : 0;
        at[k] = total;
        total += counts[k] + 5;
    }
    unsigned char *mine = buffer_new((size_t)counts[me]), *all = buffer_new((size_t)total);
    STEP("gatherv %d bytes, root %d", n, root);
    fill(mine, (size_t)counts[me], key_of(me, 4, n, root));
    MPI_Gatherv(mine, counts[me], MPI_BYTE, all, counts, at, MPI_BYTE, root, MPI_COMM_WORLD);
    for (int k = 0; k < np && me == root; k++) {
        VERIFY(all + at[k], counts[k], key_of(k, 4, n, root), "gatherv");
        UNTOUCHED(all + at[k] + counts[k], 5, "gatherv gap");
    }
    STEP("scatterv %d bytes, root %d", n, root);
    for (int k = 0; k < np && me == root; k++)
        fill(all + at[k], (size_t)counts[k], key_of(k, 5, n, root));
    poison(mine, (size_t)counts[me]);
    MPI_Scatterv(all, counts, at, MPI_BYTE, mine, counts[me], MPI_BYTE, root, MPI_COMM_WORLD);
    VERIFY(mine, counts[me], key_of(me, 5, n, root), "scatterv");
    buffer_free(mine);
    buffer_free(all);
}

static void reduce(int n, int root)
{
    n /= 4;
    int *x = malloc((size_t)(n + 1) * sizeof *x), *y = malloc((size_t)(n + 1) * sizeof *y);
    STEP("reduce %d ints, root %d", n, root);
    for (int k = 0; k < n; k++) {
        x[k] = me * (k % 17) + 1;
        y[k] = -1;
    }
    MPI_Reduce(x, y, n, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
    for (int k = 0; k < n; k++)
        CHECK_EQ(y[k], me == root ? np * (np - 1) / 2 * (k % 17) + np : -1, "sum");
    MPI_Reduce(me == root ? MPI_IN_PLACE : x, x, n, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
    for (int k = 0; k < n; k++)
        CHECK_EQ(x[k], (me == root ? np - 1 : me) * (k % 17) + 1, "max in place");
    free(x), free(y);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int i = 0; i < LENGTH(sizes); i++)
        for (int root = 0; root < np; root++)
            for (int round = 0; round < (sizes[i] < 10000 ? 5 : 1); round++) {
                bcast(sizes[i], root);
                gather_scatter(sizes[i], root);
                with_counts(sizes[i], root);
                reduce(sizes[i], root);
            }
    return check_end();
}

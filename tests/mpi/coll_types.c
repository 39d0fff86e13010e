/* ranks: 2,3,4 ; nodes: 1,2 */
/* Collectives whose types have gaps, other ones at each rank; lengths around what fits beside a
 * flag and around what is cut; communicators that are made, used and freed again and again. */
#include "check.h"

static const int counts[] = {0, 1, 5, 6, 7, 1024, 1025, 8191, 8192, 8193, 20000};
static int rank, size;

/* Doubles that lie `stride` apart: odd ranks have gaps. */
static MPI_Datatype spread(int stride)
{
    MPI_Datatype type;
    MPI_Type_create_resized(MPI_DOUBLE, 0, stride * (MPI_Aint)sizeof(double), &type);
    MPI_Type_commit(&type);
    return type;
}

static double value(int from, int to, int at)
{
    return from * 1e6 + to * 1e3 + at + 0.25;
}

static void expect(const double *got, double wanted, const char *what, int at)
{
    if (*got != wanted)
        FAIL("%s: element %d is %f, not %f", what, at, *got, wanted);
}

static void all_with(int n, int stride, MPI_Comm comm)
{
    MPI_Datatype type = spread(stride);
    size_t room = (size_t)n * (size_t)size * (size_t)stride;
    double *from = malloc((room + 1) * sizeof *from), *into = malloc((room + 1) * sizeof *into);
    for (size_t i = 0; i < room; i++)
        from[i] = into[i] = -1;
    for (int to = 0; to < size; to++)
        for (int i = 0; i < n; i++)
            from[(to * n + i) * stride] = value(rank, to, i);
    STEP("alltoall of %d, %d apart", n, stride);
    MPI_Alltoall(from, n, type, into, n, type, comm);
    for (int k = 0; k < size; k++)
        for (int i = 0; i < n; i++)
            expect(into + (k * n + i) * stride, value(k, rank, i), "alltoall", i);
    for (size_t i = 0; i < room; i++)
        if (i % (size_t)stride && into[i] != -1)
            FAIL("a gap was written to");
    STEP("allgather");
    MPI_Allgather(from, n, type, into, n, type, comm);
    for (int k = 0; k < size; k++)
        for (int i = 0; i < n; i++)
            expect(into + (k * n + i) * stride, value(k, 0, i), "allgather", i);
    for (int root = 0; root < size; root++) {
        STEP("rooted at %d", root);
        MPI_Gather(from, n, type, into, n, type, root, comm);
        for (int k = 0; rank == root && k < size; k++)
            for (int i = 0; i < n; i++)
                expect(into + (k * n + i) * stride, value(k, 0, i), "gather", i);
        MPI_Scatter(from, n, type, into, n, type, root, comm);
        for (int i = 0; i < n; i++)
            expect(into + i * stride, value(root, rank, i), "scatter", i);
        for (int i = 0; i < n; i++)
            into[i * stride] = rank == root ? value(root, 7, i) : 0;
        MPI_Bcast(into, n, type, root, comm);
        for (int i = 0; i < n; i++)
            expect(into + i * stride, value(root, 7, i), "bcast", i);
    }
    MPI_Type_free(&type);
    free(from);
    free(into);
}

/* Pairs with a gap behind them, and a result where the data is. */
static void pairs(int n, MPI_Comm comm)
{
    struct { short value; int rank; } *x = malloc(((size_t)n + 1) * sizeof *x);
    STEP("maxloc of %d", n);
    for (int i = 0; i < n; i++) {
        x[i].value = (short)((rank * 7 + i) % size);
        x[i].rank = rank;
    }
    MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_SHORT_INT, MPI_MAXLOC, comm);
    for (int i = 0; i < n; i++) {
        int first = 0;
        while ((first * 7 + i) % size != x[i].value)
            first++;
        for (int k = 0; k < size; k++)
            if ((k * 7 + i) % size > x[i].value)
                FAIL("maxloc: %d is not the largest", x[i].value);
        if (x[i].rank != first)
            FAIL("maxloc: rank %d, not %d", x[i].rank, first);
    }
    free(x);
}

static void churn(void)
{
    for (int k = 0; k < (int)scaled(400); k++) {
        MPI_Comm copy;
        STEP("communicator %d", k);
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        for (int i = 0; i < (k % 5 ? 3 : 30); i++) {
            double mine = rank + k + i, sum = 0;
            MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, copy);
            expect(&sum, size * (size - 1) / 2. + size * (k + i), "sum", i);
        }
        MPI_Comm_free(&copy);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        all_with(counts[i], 1 + rank % 2 * 2, MPI_COMM_WORLD);
        pairs(counts[i], MPI_COMM_WORLD);
    }
    churn();
    return check_end();
}

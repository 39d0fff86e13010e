/* ranks: 1,2,3,4,5,7 ; nodes: 1,2,3 */
/* Barrier, Allgather(v), Alltoall(v,w), Allreduce, Reduce_scatter(_block), Scan, Exscan, in place
 * too; user operations that do not commute, MAXLOC; on subcommunicators. MPI 3.1 chapter 5. */
#include "check.h"

static const int sizes[] = {0, 1, 7, 100, 1000, 5000, 20000, 200000};
static MPI_Comm comm;
static int rank, size;

static void allgather(int n)
{
    unsigned char *mine = buffer_new((size_t)n), *all = buffer_new((size_t)n * (size_t)size);
    STEP("allgather %d", n);
    fill(mine, (size_t)n, key_of(rank, 1, n, 0));
    MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, comm);
    for (int k = 0; k < size; k++)
        VERIFY(all + (size_t)k * (size_t)n, n, key_of(k, 1, n, 0), "allgather");
    poison(all, (size_t)n * (size_t)size);
    fill(all + (size_t)rank * (size_t)n, (size_t)n, key_of(rank, 1, n, 0));
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, n, MPI_BYTE, comm);
    for (int k = 0; k < size; k++)
        VERIFY(all + (size_t)k * (size_t)n, n, key_of(k, 1, n, 0), "allgather in place");
    buffer_free(mine);
    buffer_free(all);
    int counts[64], at[64], total = 0;
    STEP("allgatherv %d", n);
    for (int k = 0; k < size; k++) {
        counts[k] = (n + k * 7) % (n + 3);
        at[k] = total + 2;
        total += counts[k] + 2;
    }
    mine = buffer_new((size_t)counts[rank]);
    all = buffer_new((size_t)total);
    fill(mine, (size_t)counts[rank], key_of(rank, 2, n, 0));
    MPI_Allgatherv(mine, counts[rank], MPI_BYTE, all, counts, at, MPI_BYTE, comm);
    for (int k = 0; k < size; k++)
        VERIFY(all + at[k], counts[k], key_of(k, 2, n, 0), "allgatherv");
    buffer_free(mine);
    buffer_free(all);
}

static void alltoall(int n)
{
    size_t total = (size_t)n * (size_t)size;
    unsigned char *out = buffer_new(total), *in = buffer_new(total);
    STEP("alltoall %d", n);
    for (int k = 0; k < size; k++)
        fill(out + (size_t)k * (size_t)n, (size_t)n, key_of(rank, k, n, 3));
    MPI_Alltoall(out, n, MPI_BYTE, in, n, MPI_BYTE, comm);
    for (int k = 0; k < size; k++)
        VERIFY(in + (size_t)k * (size_t)n, n, key_of(k, rank, n, 3), "alltoall");
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_BYTE, out, n, MPI_BYTE, comm);
    for (int k = 0; k < size; k++)
        VERIFY(out + (size_t)k * (size_t)n, n, key_of(k, rank, n, 3), "alltoall in place");
    buffer_free(out);
    buffer_free(in);
    /* alltoallv and w: the size of a piece depends on the pair; some are empty */
    int oc[64], ic[64], oa[64], ia[64], ot = 0, it = 0;
    MPI_Datatype types[64];
    for (int k = 0; k < size; k++) {
        oc[k] = (rank + 2 * k) % 3 ? n + rank + k : 0;
        ic[k] = (k + 2 * rank) % 3 ? n + rank + k : 0;
        oa[k] = ot;
        ia[k] = it;
        ot += oc[k] + 1;
        it += ic[k] + 3;
        types[k] = MPI_BYTE;
    }
    out = buffer_new((size_t)ot);
    in = buffer_new((size_t)it);
    for (int w = 0; w < 2; w++) {
        STEP("alltoall%c %d", w ? 'w' : 'v', n);
        poison(in, (size_t)it);
        for (int k = 0; k < size; k++)
            fill(out + oa[k], (size_t)oc[k], key_of(rank, k, n, 4));
        if (w)
            MPI_Alltoallw(out, oc, oa, types, in, ic, ia, types, comm);
        else
            MPI_Alltoallv(out, oc, oa, MPI_BYTE, in, ic, ia, MPI_BYTE, comm);
        for (int k = 0; k < size; k++) {
            VERIFY(in + ia[k], ic[k], key_of(k, rank, n, 4), "alltoallv");
            UNTOUCHED(in + ia[k] + ic[k], 3, "gap");
        }
    }
    buffer_free(out);
    buffer_free(in);
}

/* 2 x 2 matrices modulo a prime: associative, does not commute. */
typedef struct {
    unsigned a, b, c, d;
} matrix;
enum { PRIME = 10007 };
static matrix times(matrix x, matrix y)
{
    return (matrix){(x.a * y.a + x.b * y.c) % PRIME, (x.a * y.b + x.b * y.d) % PRIME,
                    (x.c * y.a + x.d * y.c) % PRIME, (x.c * y.b + x.d * y.d) % PRIME};
}
static void multiply(void *in, void *inout, int *n, MPI_Datatype *type)
{
    matrix *x = in, *y = inout;
    (void)type;
    for (int k = 0; k < *n; k++)
        y[k] = times(x[k], y[k]);
}
static matrix of(int r, int k)
{
    return (matrix){(unsigned)(r + 1), (unsigned)(k % 5), 1, (unsigned)(r * k % 7)};
}
static matrix product(int from, int to, int k)
{
    matrix m = of(from, k);
    for (int r = from + 1; r <= to; r++)
        m = times(m, of(r, k));
    return m;
}
static void same_matrix(matrix got, matrix expected, const char *what)
{
    CHECK(!memcmp(&got, &expected, sizeof got), "%s: expected %u %u %u %u, got %u %u %u %u", what,
          expected.a, expected.b, expected.c, expected.d, got.a, got.b, got.c, got.d);
}

static void not_commuting(int n)
{
    MPI_Op op;
    MPI_Datatype type;
    matrix *x = malloc((size_t)(n + 1) * sizeof *x), *y = malloc((size_t)(n + 1) * sizeof *y);
    MPI_Type_contiguous(4, MPI_UNSIGNED, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(multiply, 0, &op);
    for (int k = 0; k < n; k++)
        x[k] = of(rank, k);
    STEP("allreduce of matrices %d", n);
    MPI_Allreduce(x, y, n, type, op, comm);
    for (int k = 0; k < n; k++)
        same_matrix(y[k], product(0, size - 1, k), "allreduce");
    STEP("reduce of matrices %d", n);
    for (int root = 0; root < size; root++) {
        MPI_Reduce(x, y, n, type, op, root, comm);
        for (int k = 0; k < n && rank == root; k++)
            same_matrix(y[k], product(0, size - 1, k), "reduce");
    }
    STEP("scan of matrices %d", n);
    MPI_Scan(x, y, n, type, op, comm);
    for (int k = 0; k < n; k++)
        same_matrix(y[k], product(0, rank, k), "scan");
    MPI_Exscan(x, y, n, type, op, comm);
    for (int k = 0; k < n && rank > 0; k++)
        same_matrix(y[k], product(0, rank - 1, k), "exscan");
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    free(x), free(y);
}

static void reductions(int n)
{
    n /= 8;
    long *x = malloc((size_t)((n + 1) * size) * sizeof *x),
         *y = malloc((size_t)((n + 1) * size) * sizeof *y);
    long sum = (long)size * (size - 1) / 2;
    STEP("allreduce %d", n);
    for (int k = 0; k < n; k++)
        x[k] = rank + k;
    MPI_Allreduce(x, y, n, MPI_LONG, MPI_SUM, comm);
    for (int k = 0; k < n; k++)
        CHECK_EQ(y[k], sum + (long)size * k, "sum");
    MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_LONG, MPI_MIN, comm);
    for (int k = 0; k < n; k++)
        CHECK_EQ(x[k], k, "min in place");
    STEP("reduce_scatter_block %d", n);
    for (int k = 0; k < n * size; k++)
        x[k] = rank * 3 + k;
    MPI_Reduce_scatter_block(x, y, n, MPI_LONG, MPI_SUM, comm);
    for (int k = 0; k < n; k++)
        CHECK_EQ(y[k], 3 * sum + (long)size * (rank * n + k), "reduce_scatter_block");
    STEP("reduce_scatter %d", n);
    int counts[64], before = 0, total = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = r % 3 ? n / (r + 1) : n;
        before += r < rank ? counts[r] : 0;
        total += counts[r];
    }
    for (int k = 0; k < total; k++)
        x[k] = rank + k;
    MPI_Reduce_scatter(x, y, counts, MPI_LONG, MPI_SUM, comm);
    for (int k = 0; k < counts[rank]; k++)
        CHECK_EQ(y[k], sum + (long)size * (before + k), "reduce_scatter");
    STEP("scan %d", n);
    for (int k = 0; k < n; k++)
        x[k] = rank + k;
    MPI_Scan(x, y, n, MPI_LONG, MPI_SUM, comm);
    for (int k = 0; k < n; k++)
        CHECK_EQ(y[k], (long)rank * (rank + 1) / 2 + (long)(rank + 1) * k, "scan");
    MPI_Exscan(MPI_IN_PLACE, x, n, MPI_LONG, MPI_SUM, comm);
    for (int k = 0; k < n && rank > 0; k++)
        CHECK_EQ(x[k], (long)rank * (rank - 1) / 2 + (long)rank * k, "exscan");
    STEP("maxloc");
    struct {
        double value;
        int index;
    } a = {(rank * 5 + 3) % size, rank}, b;
    MPI_Allreduce(&a, &b, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
    CHECK((b.index * 5 + 3) % size == (int)b.value, "maxloc %g at %d", b.value, b.index);
    free(x), free(y);
}

/* Nobody leaves the barrier before the last has come. */
static void barrier(void)
{
    int flag;
    STEP("barrier");
    for (int late = 0; late < size; late++) {
        MPI_Status st;
        if (rank == late) {
            sleep_ms(5);
            for (int k = 0; k < size; k++) {
                MPI_Iprobe(MPI_ANY_SOURCE, 77, comm, &flag, &st);
                CHECK(!flag, "rank %d left the barrier early", st.MPI_SOURCE);
            }
        }
        MPI_Barrier(comm);
        if (rank != late)
            MPI_Send(NULL, 0, MPI_BYTE, late, 77, comm);
        else
            for (int k = 1; k < size; k++)
                MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, 77, comm, &st);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int which = 0; which < 2; which++) {
        if (which)
            MPI_Comm_split(MPI_COMM_WORLD, me == 0, -me, &comm);
        else
            comm = MPI_COMM_WORLD;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        for (int i = 0; i < LENGTH(sizes); i++)
            for (int round = 0; round < (sizes[i] < 10000 ? 5 : 1); round++) {
                allgather(sizes[i]);
                alltoall(sizes[i]);
                reductions(sizes[i]);
                not_commuting(sizes[i] / 16);
            }
        barrier();
    }
    MPI_Comm_free(&comm);
    return check_end();
}

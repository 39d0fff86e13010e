/* ranks: 2,3,4,5 ; nodes: 1,2 */
/* Gatherv, Scatterv, Allgatherv, Alltoallv, Alltoallw, Reduce_scatter: blocks of other lengths,
 * many of them empty, in other types at each rank (some with gaps), in any order in memory, in
 * place; lengths around what is cut; sums whose order of folding shows; operations that do not
 * commute. MPI 3.1 chapter 5. */
#include "check.h"

static const int most[] = {0, 1, 5, 7, 700, 2048, 5000, 8192, 8193, 20000};
enum { RANKS = 64 };
static int rank, size;
static MPI_Comm comm;

/* Doubles that lie `stride` apart. */
static MPI_Datatype spread(int stride)
{
    MPI_Datatype type;
    MPI_Type_create_resized(MPI_DOUBLE, 0, stride * (MPI_Aint)sizeof(double), &type);
    MPI_Type_commit(&type);
    return type;
}

static int stride_of(int member)
{
    return 1 + member % 3;
}

/* What one gives another. */
static int length(int n, int from, int to)
{
    unsigned draw = (unsigned)(from * 31 + to * 17 + n) * 2654435761u >> 8;
    return draw % 4 ? (int)(draw % (unsigned)(n + 1)) : draw % 8 ? 0 : n;
}

static double value(int from, int to, int at)
{
    return from * 1e6 + to * 1e5 + at + 0.25;
}

/* Blocks in memory, the last one first, a gap between any two. */
typedef struct {
    int counts[RANKS], at[RANKS], stride;
    double *data;
    MPI_Datatype type;
} blocks;

static blocks lay(const int *counts)
{
    blocks all = {.stride = stride_of(rank)};
    int end = 1;
    for (int k = size - 1; k >= 0; k--) {
        all.counts[k] = counts[k];
        all.at[k] = end;
        end += counts[k] + k % 2;
    }
    size_t words = (size_t)(end + 1) * (size_t)all.stride;
    all.data = malloc(words * sizeof *all.data);
    for (size_t i = 0; i < words; i++)
        all.data[i] = -1;
    all.type = spread(all.stride);
    return all;
}

static double *block(const blocks *all, int k)
{
    return all->data + all->at[k] * all->stride;
}

static void put(double *data, int count, int stride, int from, int to)
{
    for (int i = 0; i < count; i++)
        data[i * stride] = value(from, to, i);
}

static void expect(const double *data, int count, int stride, int from, int to, const char *what)
{
    for (int i = 0; i < count; i++) {
        if (data[i * stride] != value(from, to, i))
            FAIL("%s: element %d of %d of %d is %f, not %f", what, i, count, from,
                 data[i * stride], value(from, to, i));
        for (int gap = 1; gap < stride; gap++)
            if (data[i * stride + gap] != -1)
                FAIL("%s: a gap was written to", what);
    }
}

static void drop(blocks *all)
{
    free(all->data);
    MPI_Type_free(&all->type);
}

static void gathers(int n)
{
    int counts[RANKS];
    for (int k = 0; k < size; k++)
        counts[k] = length(n, k, 0);
    blocks in = lay(counts);
    double *mine = malloc((size_t)(counts[rank] + 1) * sizeof *mine);
    put(mine, counts[rank], 1, rank, 0);
    STEP("allgatherv of up to %d", n);
    MPI_Allgatherv(mine, counts[rank], MPI_DOUBLE, in.data, in.counts, in.at, in.type, comm);
    for (int k = 0; k < size; k++)
        expect(block(&in, k), counts[k], in.stride, k, 0, "allgatherv");
    drop(&in);
    in = lay(counts);
    put(block(&in, rank), counts[rank], in.stride, rank, 0);
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DOUBLE, in.data, in.counts, in.at, in.type, comm);
    for (int k = 0; k < size; k++)
        expect(block(&in, k), counts[k], in.stride, k, 0, "allgatherv in place");
    drop(&in);
    for (int root = 0; root < size; root++)
        for (int in_place = 0; in_place < 2; in_place++) {
            STEP("gatherv of up to %d to %d", n, root);
            in = lay(counts);
            if (rank != root)
                MPI_Gatherv(mine, counts[rank], MPI_DOUBLE, NULL, NULL, NULL, MPI_DOUBLE, root,
                            comm);
            else if (in_place) {
                put(block(&in, rank), counts[rank], in.stride, rank, 0);
                MPI_Gatherv(MPI_IN_PLACE, 0, MPI_DOUBLE, in.data, in.counts, in.at, in.type, root,
                            comm);
            } else
                MPI_Gatherv(mine, counts[rank], MPI_DOUBLE, in.data, in.counts, in.at, in.type,
                            root, comm);
            for (int k = 0; rank == root && k < size; k++)
                expect(block(&in, k), counts[k], in.stride, k, 0, "gatherv");
            drop(&in);
        }
    free(mine);
}

static void scatters(int n)
{
    int counts[RANKS];
    for (int root = 0; root < size; root++)
        for (int in_place = 0; in_place < 2; in_place++) {
            STEP("scatterv of up to %d from %d", n, root);
            for (int k = 0; k < size; k++)
                counts[k] = length(n, root, k);
            blocks out = lay(counts);
            double *mine = malloc((size_t)(counts[rank] + 1) * sizeof *mine);
            for (int k = 0; k < size; k++)
                put(block(&out, k), counts[k], out.stride, root, k);
            if (rank != root)
                MPI_Scatterv(NULL, NULL, NULL, MPI_DOUBLE, mine, counts[rank], MPI_DOUBLE, root,
                             comm);
            else if (in_place)
                MPI_Scatterv(out.data, out.counts, out.at, out.type, MPI_IN_PLACE, 0, MPI_DOUBLE,
                             root, comm);
            else
                MPI_Scatterv(out.data, out.counts, out.at, out.type, mine, counts[rank],
                             MPI_DOUBLE, root, comm);
            if (rank != root || !in_place)
                expect(mine, counts[rank], 1, root, rank, "scatterv");
            for (int k = 0; k < size; k++)
                expect(block(&out, k), counts[k], out.stride, root, k, "what was given");
            free(mine);
            drop(&out);
        }
}

static void exchanges(int n)
{
    int give[RANKS], get[RANKS];
    for (int k = 0; k < size; k++) {
        give[k] = length(n, rank, k);
        get[k] = length(n, k, rank);
    }
    for (int w = 0; w < 2; w++) {
        STEP("alltoall%c of up to %d", w ? 'w' : 'v', n);
        blocks out = lay(give), in = lay(get);
        MPI_Datatype out_types[RANKS], in_types[RANKS];
        int out_at[RANKS], in_at[RANKS];
        for (int k = 0; k < size; k++) {
            put(block(&out, k), give[k], out.stride, rank, k);
            out_types[k] = out.type, in_types[k] = in.type;
            out_at[k] = (int)((char *)block(&out, k) - (char *)out.data);
            in_at[k] = (int)((char *)block(&in, k) - (char *)in.data);
        }
        if (w)
            MPI_Alltoallw(out.data, give, out_at, out_types, in.data, get, in_at, in_types, comm);
        else
            MPI_Alltoallv(out.data, give, out.at, out.type, in.data, get, in.at, in.type, comm);
        for (int k = 0; k < size; k++)
            expect(block(&in, k), get[k], in.stride, k, rank, "alltoallv");
        drop(&out);
        drop(&in);
        /* In place both give as much. */
        int both[RANKS];
        for (int k = 0; k < size; k++)
            both[k] = length(n, k < rank ? k : rank, k < rank ? rank : k);
        in = lay(both);
        for (int k = 0; k < size; k++) {
            put(block(&in, k), both[k], in.stride, rank, k);
            in_at[k] = (int)((char *)block(&in, k) - (char *)in.data);
            in_types[k] = in.type;
        }
        if (w)
            MPI_Alltoallw(MPI_IN_PLACE, NULL, NULL, NULL, in.data, both, in_at, in_types, comm);
        else
            MPI_Alltoallv(MPI_IN_PLACE, NULL, NULL, MPI_DOUBLE, in.data, both, in.at, in.type,
                          comm);
        for (int k = 0; k < size; k++)
            expect(block(&in, k), both[k], in.stride, k, rank, "alltoallv in place");
        drop(&in);
    }
}

/* a x + b modulo a prime: associative, does not commute. */
typedef struct {
    unsigned a, b;
} line;
static void compose(void *in, void *inout, int *n, MPI_Datatype *type)
{
    line *x = in, *y = inout;
    (void)type;
    for (int k = 0; k < *n; k++)
        y[k] = (line){x[k].a * y[k].a % 10007, (x[k].a * y[k].b + x[k].b) % 10007};
}
static line of(int member, int k)
{
    return (line){(unsigned)(member * 7 + k % 11 + 1), (unsigned)(member + k % 13)};
}

static void folds(int n)
{
    int counts[RANKS], total = 0, before = 0;
    for (int k = 0; k < size; k++) {
        counts[k] = length(n, 3, k);
        before += k < rank ? counts[k] : 0;
        total += counts[k];
    }
    MPI_Op op;
    MPI_Datatype type;
    MPI_Type_contiguous(2, MPI_UNSIGNED, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(compose, 0, &op);
    line *x = malloc((size_t)(total + 1) * sizeof *x), *y = malloc((size_t)(total + 1) * sizeof *y);
    for (int in_place = 0; in_place < 2; in_place++) {
        STEP("reduce_scatter of up to %d", n);
        for (int k = 0; k < total; k++)
            x[k] = y[k] = of(rank, k);
        MPI_Reduce_scatter(in_place ? MPI_IN_PLACE : x, y, counts, type, op, comm);
        for (int k = 0; k < counts[rank]; k++) {
            line want = of(size - 1, before + k);
            for (int r = size - 2; r >= 0; r--) {
                line left = of(r, before + k);
                compose(&left, &want, &(int){1}, NULL);
            }
            CHECK(!memcmp(&y[k], &want, sizeof want), "element %d of %d: %u %u, not %u %u", k,
                  counts[rank], y[k].a, y[k].b, want.a, want.b);
        }
    }
    size_t bytes = (size_t)(total + 1) * sizeof(double);
    double *a = malloc(bytes), *b = malloc(bytes);
    for (int k = 0; k < total; k++)
        a[k] = value(rank, 0, k);
    MPI_Reduce_scatter(a, b, counts, MPI_DOUBLE, MPI_SUM, comm);
    for (int k = 0; k < counts[rank]; k++) {
        double want = 0;
        for (int r = 0; r < size; r++)
            want += value(r, 0, before + k);
        CHECK(b[k] == want, "sum %d: %f, not %f", k, b[k], want);
    }
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    free(x), free(y), free(a), free(b);
}

/* Who has nothing to give or get takes part. */
static void one_gives(void)
{
    int give[RANKS] = {0}, get[RANKS] = {0}, at[RANKS] = {0}, x = rank + 5, y = -1;
    STEP("one gives something");
    give[(rank + 1) % size] = rank == 1;
    get[(rank + size - 1) % size] = (rank + size - 1) % size == 1;
    MPI_Alltoallv(&x, give, at, MPI_INT, &y, get, at, MPI_INT, comm);
    CHECK_EQ(y, get[(rank + size - 1) % size] ? 6 : -1, "the only block");
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int which = 0; which < 2; which++) {
        if (which)
            MPI_Comm_split(MPI_COMM_WORLD, me % 2, -me, &comm);
        else
            comm = MPI_COMM_WORLD;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        for (int i = 0; i < LENGTH(most); i++)
            for (int round = 0; round < (most[i] < 1000 ? 5 : 1); round++) {
                gathers(most[i]);
                scatters(most[i]);
                folds(most[i]);
                /* coll/self takes displacements of alltoallw for elements. */
                if (size > 1)
                    exchanges(most[i]), one_gives();
            }
    }
    MPI_Comm_free(&comm);
    return check_end();
}

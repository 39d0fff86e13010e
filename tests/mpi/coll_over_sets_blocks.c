/* ranks: 2,3,4,6 ; nodes: 1,2,3 */
/* Collectives in which members give each other blocks, and scans, on communicators over several nodes
 * whose ranks lie on them in blocks, backwards, in turn and unevenly: every root, lengths around each
 * cut, in place, types with gaps, operations that do not commute, nothing at all. What everybody must
 * have follows from ranks. Long enough for shared memory. MPI 3.1 chapter 5. */
#include "check.h"
#include "matrices.h"

enum { RANKS = 6, BLOCK = 4100, MOST = 8200 };

static MPI_Op product;
static MPI_Datatype matrix, every_other;
static long from[2 * RANKS * BLOCK], into[2 * RANKS * BLOCK];

/* What one rank gives another. */
static long item(int giver, int taker, int i, int k)
{
    return (giver * 100L + taker) * 1000000L + k * 10000L + i;
}

static const long HOLE = -1;

/* Ranks have types of their own, the signature is the same: `apart` words from one to the next. */
static int apart(int rank, int k)
{
    return (rank + k) % 3 == 1 ? 2 : 1;
}

static MPI_Datatype type_of(int rank, int k)
{
    return apart(rank, k) == 2 ? every_other : MPI_LONG;
}

/* From one rank to another, or where that lies. */
static void lay(long *block, int stride, int giver, int taker, int count, int k)
{
    for (int i = 0; i < count; i++)
        block[i * stride] = item(giver, taker, i, k);
}

static void is(const long *block, int stride, int giver, int taker, int count, int k,
               const char *what)
{
    for (int i = 0; i < count; i++) {
        CHECK_EQ(block[i * stride], item(giver, taker, i, k), what);
        for (int gap = 1; gap < stride; gap++)
            CHECK_EQ(block[i * stride + gap], HOLE, "between");
    }
}

static void clear(void)
{
    for (int i = 0; i < LENGTH(from); i++)
        from[i] = into[i] = HOLE;
}

static void rooted(MPI_Comm comm, int k, int count)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int root = k % size, stride = apart(rank, k);
    bool in_place = k % 2 == 0 && rank == root;
    MPI_Datatype type = type_of(rank, k);
    long *block = from;
    STEP("gather of %d, call %d, root %d", count, k, root);
    clear();
    if (in_place)
        block = into + root * count * stride;
    lay(block, stride, rank, root, count, k);
    MPI_Gather(in_place ? MPI_IN_PLACE : from, count, type, into, count, type, root, comm);
    for (int i = 0; rank == root && i < size; i++)
        is(into + i * count * stride, stride, i, root, count, k, "gather");
    if (rank != root)
        CHECK_EQ(into[0], HOLE, "gather has no result here");
    STEP("scatter of %d, call %d, root %d", count, k, root);
    clear();
    for (int i = 0; rank == root && i < size; i++)
        lay(from + i * count * stride, stride, root, i, count, k);
    MPI_Scatter(from, count, type, in_place ? MPI_IN_PLACE : into, count, type, root, comm);
    is(in_place ? from + root * count * stride : into, stride, root, rank, count, k, "scatter");
}

static void exchanged(MPI_Comm comm, int k, int count)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int stride = apart(rank, k);
    bool in_place = k % 3 == 0;
    MPI_Datatype type = type_of(rank, k);
    STEP("allgather of %d, call %d", count, k);
    clear();
    lay(in_place ? into + rank * count * stride : from, stride, rank, 0, count, k);
    MPI_Allgather(in_place ? MPI_IN_PLACE : from, count, type, into, count, type, comm);
    for (int i = 0; i < size; i++)
        is(into + i * count * stride, stride, i, 0, count, k, "allgather");
    STEP("alltoall of %d, call %d", count, k);
    clear();
    for (int i = 0; i < size; i++)
        lay((in_place ? into : from) + i * count * stride, stride, rank, i, count, k);
    MPI_Alltoall(in_place ? MPI_IN_PLACE : from, count, type, into, count, type, comm);
    for (int i = 0; i < size; i++)
        is(into + i * count * stride, stride, i, rank, count, k, "alltoall");
}

/* Blocks of different lengths, some of them empty, backwards with a gap between them. */
static void varying(MPI_Comm comm, int k, int count)
{
    int rank, size, counts[RANKS], at[RANKS], next = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int stride = apart(rank, k);
    bool in_place = k % 3 == 1;
    MPI_Datatype type = type_of(rank, k);
    STEP("allgatherv of %d, call %d", count, k);
    clear();
    for (int i = size - 1; i >= 0; i--) {
        counts[i] = (i + k) % 3 == 0 ? 0 : (i + k) % 3 == 1 ? count : count / 2;
        at[i] = next;
        next += counts[i] + 1;
    }
    lay(in_place ? into + at[rank] * stride : from, stride, rank, 0, counts[rank], k);
    MPI_Allgatherv(in_place ? MPI_IN_PLACE : from, counts[rank], type, into, counts, at, type, comm);
    for (int i = 0; i < size; i++) {
        is(into + at[i] * stride, stride, i, 0, counts[i], k, "allgatherv");
        CHECK_EQ(into[(at[i] + counts[i]) * stride], HOLE, "behind a block");
    }
    STEP("reduce_scatter of %d, call %d", count, k);
    clear();
    long *data = in_place ? into : from;
    next = 0;
    for (int i = 0; i < size; i++) {
        at[i] = next;
        lay(data + next, 1, rank, i, counts[i], k);
        next += counts[i];
    }
    MPI_Reduce_scatter(in_place ? MPI_IN_PLACE : from, into, counts, MPI_LONG, MPI_SUM, comm);
    long others = size * (size - 1) / 2 * 100000000L;
    for (int i = 0; i < counts[rank]; i++)
        CHECK_EQ(into[i], size * item(0, rank, i, k) + others, "reduce_scatter");
    STEP("reduce_scatter_block of %d, call %d", count, k);
    clear();
    for (int i = 0; i < size; i++)
        lay(data + i * count, 1, rank, i, count, k);
    MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : from, into, count, MPI_LONG, MPI_SUM, comm);
    for (int i = 0; i < count; i++)
        CHECK_EQ(into[i], size * item(0, rank, i, k) + others, "reduce_scatter_block");
}

/* Of ranks from..to, in their order. */
static void products(uint32_t *all, int begin, int end, int first, int count, int k)
{
    static uint32_t next[4 * MOST];
    for (int rank = end - 1; rank >= begin; rank--) {
        uint32_t *at = rank == end - 1 ? all : next;
        for (int i = 0; i < 4 * count; i++)
            at[i] = word(rank, 4 * first + i, k);
        if (at == next)
            multiply(next, all, &count, NULL);
    }
}

static void before(MPI_Comm comm, int k, int count)
{
    static uint32_t a[4 * MOST], b[4 * MOST], want[4 * MOST];
    static long mine[MOST], sums[MOST];
    int rank, size;
    bool in_place = k % 2;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    STEP("scans of %d, call %d", count, k);
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < count; i++) {
            mine[i] = (rank + 1) * 1000L + i + k;
            sums[i] = in_place ? mine[i] : HOLE;
        }
        int ranks = kind == 0 ? rank + 1 : rank;
        if (kind == 0)
            MPI_Scan(in_place ? MPI_IN_PLACE : mine, sums, count, MPI_LONG, MPI_SUM, comm);
        else
            MPI_Exscan(in_place ? MPI_IN_PLACE : mine, sums, count, MPI_LONG, MPI_SUM, comm);
        for (int i = 0; ranks > 0 && i < count; i++)
            CHECK_EQ(sums[i], ranks * (ranks + 1) / 2 * 1000L + ranks * (long)(i + k), "sum");
    }
    count /= 2;
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 4 * count; i++)
            a[i] = b[i] = word(rank, i, k);
        int ranks = kind == 0 ? rank + 1 : rank;
        products(want, 0, ranks, 0, count, k);
        if (kind == 0)
            MPI_Scan(in_place ? MPI_IN_PLACE : a, b, count, matrix, product, comm);
        else
            MPI_Exscan(in_place ? MPI_IN_PLACE : a, b, count, matrix, product, comm);
        for (int i = 0; ranks > 0 && i < 4 * count; i++)
            CHECK_EQ(b[i], want[i], "product of those before");
    }
    count /= size;
    for (int i = 0; i < 4 * count * size; i++)
        a[i] = word(rank, i, k);
    STEP("products of %d, call %d", count, k);
    MPI_Reduce_scatter_block(a, b, count, matrix, product, comm);
    products(want, 0, size, rank * count, count, k);
    for (int i = 0; i < 4 * count; i++)
        CHECK_EQ(b[i], want[i], "block of the product");
}

int main(int argc, char **argv)
{
    static const int lengths[] = { 1, 8192, 0, 7, 8193, 100, 2047, 2, 1026 };
    check_begin(&argc, &argv);
    MPI_Op_create(multiply, 0, &product);
    MPI_Type_contiguous(4, MPI_UINT32_T, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Type_create_resized(MPI_LONG, 0, 2 * sizeof(long), &every_other);
    MPI_Type_commit(&every_other);
    MPI_Comm comms[5];
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &comms[1]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, me % 2 * np + me, &comms[2]);
    MPI_Comm_split(MPI_COMM_WORLD, me == np - 1, 0, &comms[3]);
    /* Of two nodes with three each: three and one. */
    MPI_Comm_split(MPI_COMM_WORLD, me > 3, 0, &comms[4]);
    for (int k = 0; k < 40; k++)
        for (int at = 0; at < LENGTH(comms); at++) {
            int size;
            MPI_Comm_size(comms[at], &size);
            /* 64 KiB and 16 KiB of a communicator; of the rows of two members. */
            const int counts[] = { 1, 0, 6, 7, 8192 / size, 8192 / size + 1, 2, 2048 / size,
                                   2048 / size + 1, 1024 / size, 1024 / size + 1 };
            int count = counts[(k + at) % LENGTH(counts)];
            count = count > BLOCK ? BLOCK : count;
            rooted(comms[at], k, count);
            exchanged(comms[at], k, count);
            varying(comms[at], k, count);
            before(comms[at], k, lengths[(k + at) % LENGTH(lengths)]);
        }
    for (int at = 0; at < LENGTH(comms); at++)
        MPI_Comm_free(&comms[at]);
    MPI_Type_free(&every_other);
    MPI_Type_free(&matrix);
    MPI_Op_free(&product);
    return check_end();
}

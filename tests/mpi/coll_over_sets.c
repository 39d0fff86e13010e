/* ranks: 2,3,4,6 ; nodes: 1,2,3 */
/* Barrier, bcast, reduce and allreduce of communicators over several nodes, whose ranks lie on them
 * in blocks, backwards and in turn: every root, lengths around each cut, in place, types with gaps,
 * operations that do not commute, nothing at all. Long enough for shared memory. MPI 3.1 chapter 5. */
#include "check.h"
#include "matrices.h"

enum { MOST = 8200 };

static MPI_Op product, largest;
static MPI_Datatype matrix, every_other;

static void greater(void *left, void *right, int *count, MPI_Datatype *type)
{
    (void)type;
    long *a = left, *b = right;
    for (int i = 0; i < *count; i++)
        b[i] = a[i] > b[i] ? a[i] : b[i];
}

/* In the order of ranks. */
static void products(uint32_t *all, int count, int size, int k)
{
    static uint32_t next[4 * MOST];
    for (int rank = size - 1; rank >= 0; rank--) {
        uint32_t *into = rank == size - 1 ? all : next;
        for (int i = 0; i < 4 * count; i++)
            into[i] = word(rank, i, k);
        if (into == next) {
            multiply(next, all, &count, NULL);
        }
    }
}

static void fold(MPI_Comm comm, int k, int count)
{
    static long mine[MOST], all[MOST];
    static uint32_t a[4 * MOST], b[4 * MOST], want[4 * MOST];
    int rank, size, root;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    root = k % size;
    bool in_place = k % 3 == 0;
    STEP("sums of %d, call %d, root %d", count, k, root);
    for (int i = 0; i < count; i++) {
        mine[i] = (rank + 1) * 1000L + i + k;
        all[i] = in_place ? mine[i] : -1;
    }
    MPI_Allreduce(in_place ? MPI_IN_PLACE : mine, all, count, MPI_LONG, MPI_SUM, comm);
    for (int i = 0; i < count; i++)
        CHECK_EQ(all[i], size * (size + 1) / 2 * 1000L + size * (long)(i + k), "allreduce");
    for (int i = 0; i < count; i++)
        all[i] = in_place && rank == root ? mine[i] : -1;
    MPI_Reduce(in_place && rank == root ? MPI_IN_PLACE : mine, all, count, MPI_LONG, largest, root,
               comm);
    for (int i = 0; i < count; i++)
        CHECK_EQ(all[i], rank == root ? size * 1000L + i + k : -1L, "reduce");
    count /= 4;
    STEP("products of %d, call %d, root %d", count, k, root);
    products(want, count, size, k);
    for (int i = 0; i < 4 * count; i++)
        a[i] = b[i] = word(rank, i, k);
    MPI_Allreduce(in_place ? MPI_IN_PLACE : a, b, count, matrix, product, comm);
    for (int i = 0; i < 4 * count; i++)
        CHECK_EQ(b[i], want[i], "product");
    MPI_Reduce(a, b, count, matrix, product, root, comm);
    for (int i = 0; rank == root && i < 4 * count; i++)
        CHECK_EQ(b[i], want[i], "product at the root");
}

static void spread(MPI_Comm comm, int k, int count)
{
    static long all[2 * MOST];
    int rank, size, root;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    root = (k + 1) % size;
    STEP("bcast of %d, call %d, root %d", count, k, root);
    for (int i = 0; i < 2 * count; i++)
        all[i] = rank == root ? k + i : -1;
    /* Each has its own type, the signature is the same. */
    if ((rank + k) % 2)
        MPI_Bcast(all, count, every_other, root, comm);
    else {
        long packed[MOST];
        for (int i = 0; i < count; i++)
            packed[i] = all[2 * i];
        MPI_Bcast(packed, count, MPI_LONG, root, comm);
        for (int i = 0; i < count; i++)
            all[2 * i] = packed[i];
    }
    for (int i = 0; i < 2 * count; i++)
        CHECK_EQ(all[i], rank == root || i % 2 == 0 ? k + i : -1L, "bcast");
}

/* Nobody leaves before the last has come, who comes late: there is a clock for all ranks here. */
static void meet(MPI_Comm comm, int k)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    STEP("barrier, call %d", k);
    struct timespec now;
    if (rank == k % size && k % 10 == 0)
        usleep(2000);
    clock_gettime(CLOCK_MONOTONIC, &now);
    long mine[2] = { 0, now.tv_sec * 1000000000L + now.tv_nsec }, last = 0;
    MPI_Barrier(comm);
    clock_gettime(CLOCK_MONOTONIC, &now);
    mine[0] = now.tv_sec * 1000000000L + now.tv_nsec;
    MPI_Allreduce(&mine[1], &last, 1, MPI_LONG, MPI_MAX, comm);
    CHECK(mine[0] >= last, "left %ld ns before the last one came", last - mine[0]);
}

int main(int argc, char **argv)
{
    static const int counts[] = { 1, 0, 6, 7, 1023, 1024, 1025, 2, 4096, 4097, 8192, 8193 };
    check_begin(&argc, &argv);
    MPI_Op_create(multiply, 0, &product);
    MPI_Op_create(greater, 1, &largest);
    MPI_Type_contiguous(4, MPI_UINT32_T, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Type_create_resized(MPI_LONG, 0, 2 * sizeof(long), &every_other);
    MPI_Type_commit(&every_other);
    MPI_Comm comms[4];
    MPI_Comm_dup(MPI_COMM_WORLD, &comms[0]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &comms[1]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, me % 2 * np + me, &comms[2]);
    MPI_Comm_split(MPI_COMM_WORLD, me == np - 1, 0, &comms[3]);
    for (int k = 0; k < 150; k++)
        for (int at = 0; at < LENGTH(comms); at++) {
            int count = counts[(k + at) % LENGTH(counts)];
            fold(comms[at], k, count);
            spread(comms[at], k, count);
            meet(comms[at], k);
        }
    for (int at = 0; at < LENGTH(comms); at++)
        MPI_Comm_free(&comms[at]);
    MPI_Type_free(&every_other);
    MPI_Type_free(&matrix);
    MPI_Op_free(&largest);
    MPI_Op_free(&product);
    return check_end();
}

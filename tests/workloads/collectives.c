/* Sums of doubles and other collectives among the ranks of each node, of each half of a node, of
 * all nodes in the order of ranks and in turn; each 16th step a message to the next node. The hash
 * has every bit of every result: the order in which sums are folded is part of it. Sizes go from
 * nothing to several hundred kilobytes.
 * usage: collectives ITERATIONS [GATE]; PACE_US: hash.h */
#include "folds.h"
#include "gate.h"

enum { WORDS = 1 << 15 };

static double from[WORDS], into[WORDS];
static uint64_t hash;

static int count_of(int step)
{
    static const int counts[] = { 1, 3, 6, 7, 100, 1024, 1025, 8192, 9000, 32000 };
    uint64_t draw = mix((uint64_t) step * 7 + 1);
    int at = (int) (draw % (draw % 5 ? 6 : 10));
    return counts[at];
}

/* Blocks of different lengths, some of them empty. */
static void varying(MPI_Comm comm, int step, int count)
{
    enum { RANKS = 16 };
    int me, np, give[RANKS], get[RANKS], give_at[RANKS], get_at[RANKS], gives = 0, gets = 0;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &np);
    for (int k = 0; k < np; k++) {
        give[k] = (me + 2 * k + step) % 3 * count / (3 * np);
        get[k] = (k + 2 * me + step) % 3 * count / (3 * np);
        give_at[k] = gives;
        get_at[k] = gets;
        gives += give[k];
        gets += get[k];
    }
    MPI_Alltoallv(from, give, give_at, MPI_DOUBLE, into, get, get_at, MPI_DOUBLE, comm);
    eat(&hash, into, sizeof *into * (size_t) gets);
    gets = 0;
    for (int k = 0; k < np; k++) {
        get[k] = (k + step) % 3 * count / (3 * np);
        get_at[k] = gets;
        gets += get[k];
    }
    MPI_Allgatherv(from, get[me], MPI_DOUBLE, into, get, get_at, MPI_DOUBLE, comm);
    eat(&hash, into, sizeof *into * (size_t) gets);
    MPI_Gatherv(from, get[me], MPI_DOUBLE, into, get, get_at, MPI_DOUBLE, step % np, comm);
    MPI_Scatterv(into, get, get_at, MPI_DOUBLE, into + WORDS / 2, get[me], MPI_DOUBLE, step % np,
                 comm);
    eat(&hash, into + WORDS / 2, sizeof *into * (size_t) get[me]);
    MPI_Reduce_scatter(from, into, get, MPI_DOUBLE, MPI_SUM, comm);
    eat(&hash, into, sizeof *into * (size_t) get[me]);
}

static void one_round(MPI_Comm comm, int step, MPI_Op op, MPI_Datatype matrix)
{
    int me, np, count = count_of(step);
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &np);
    int root = step % np, share = count / np;
    for (int i = 0; i < count; i++)
        from[i] = number((uint64_t) (step * 1000 + me * 77 + i) ^ hash);
    MPI_Allreduce(from, into, count, MPI_DOUBLE, MPI_SUM, comm);
    eat(&hash, into, sizeof *into * (size_t) count);
    MPI_Bcast(into, count, MPI_DOUBLE, root, comm);
    MPI_Barrier(comm);
    MPI_Scan(from, into, count, MPI_DOUBLE, MPI_SUM, comm);
    eat(&hash, into, sizeof *into * (size_t) count);
    MPI_Alltoall(from, share, MPI_DOUBLE, into, share, MPI_DOUBLE, comm);
    eat(&hash, into, sizeof *into * (size_t) (share * np));
    MPI_Allgather(from, share, MPI_DOUBLE, into, share, MPI_DOUBLE, comm);
    eat(&hash, into, sizeof *into * (size_t) (share * np));
    MPI_Gather(from, share, MPI_DOUBLE, into, share, MPI_DOUBLE, root, comm);
    if (me == root)
        eat(&hash, into, sizeof *into * (size_t) (share * np));
    MPI_Scatter(into, share, MPI_DOUBLE, into + WORDS / 2, share, MPI_DOUBLE, root, comm);
    eat(&hash, into + WORDS / 2, sizeof *into * (size_t) share);
    MPI_Reduce_scatter_block(from, into, share, MPI_DOUBLE, MPI_SUM, comm);
    eat(&hash, into, sizeof *into * (size_t) share);
    MPI_Exscan(from, into, count / 2, matrix, op, comm);
    if (me > 0)
        eat(&hash, into, sizeof *into * (size_t) (count / 2 * 2));
    MPI_Allreduce(MPI_IN_PLACE, from, count / 2, matrix, op, comm);
    eat(&hash, from, sizeof *from * (size_t) (count / 2 * 2));
    MPI_Reduce(from, into, count, MPI_DOUBLE, MPI_SUM, root, comm);
    if (me == root)
        eat(&hash, into, sizeof *into * (size_t) count);
    varying(comm, step, count);
    MPI_Bcast(&hash, 1, MPI_UINT64_T, root, comm);
    hash = mix(hash + (uint64_t) me);
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0, here;
    const char *gate = argc > 2 ? argv[2] : NULL;
    MPI_Comm node, half, turns;
    MPI_Op op;
    MPI_Datatype matrix;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &here);
    MPI_Comm_split(node, here % 2, 0, &half);
    MPI_Comm_split(MPI_COMM_WORLD, 0, here * np + me, &turns);
    MPI_Type_contiguous(4, MPI_UINT32_T, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Op_create(multiply, 0, &op);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        pace();
        one_round(node, k, op, matrix);
        if (k % 4 == 0) {
            one_round(half, k, op, matrix);
        }
        if (k % 3 == 0) {
            one_round(k % 2 ? turns : MPI_COMM_WORLD, k, op, matrix);
        }
        if (k % 16 == 0) {
            uint64_t theirs = 0;
            MPI_Sendrecv(&hash, 1, MPI_UINT64_T, (me + 1) % np, 5, &theirs, 1, MPI_UINT64_T,
                         (me + np - 1) % np, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            hash = mix(hash ^ theirs);
        }
        if (k % 50 == 7) {
            /* A short-lived one. */
            MPI_Comm copy;
            MPI_Comm_dup(node, &copy);
            one_round(copy, k, op, matrix);
            MPI_Comm_free(&copy);
            MPI_Comm_dup(turns, &copy);
            one_round(copy, k, op, matrix);
            MPI_Comm_free(&copy);
        }
    }
    print_hash(hash, 0);
    MPI_Op_free(&op);
    MPI_Type_free(&matrix);
    MPI_Comm_free(&turns);
    MPI_Comm_free(&half);
    MPI_Comm_free(&node);
    MPI_Finalize();
    return 0;
}

/* A table of elements spread over the windows of all ranks, as in Besta and Hoefler 2014 (7.2.2):
 * an insertion swaps the element into its slot, and if that is taken, draws a cell of the heap and
 * appends it to the slot's list. In each iteration all insert, under lock_all or locks in turn;
 * then each volume is read: every element has to be there once. A count of insertions is kept by
 * get and put under the exclusive lock. The order in lists is free, the contents are not.
 * usage: window_store ITERATIONS [GATE [INSERTIONS]]; PACE_US: hash.h; TIMES=1: also prints the
 * time of an insertion in microseconds, as "insertion INSERTIONS US" */
#include "hash.h"
#include "gate.h"
#include <string.h>

enum { SLOTS = 64, HEAD = 2 };

/* Words: next free cell, count; then {element, first, last} of each slot; then {element, next} of
 * each cell of the heap. Lists name cells by their number plus 1. */
static MPI_Aint slot_at(long slot)
{
    return HEAD + 3 * slot;
}

static MPI_Aint cell_at(long cell)
{
    return HEAD + 3 * SLOTS + 2 * cell;
}

static MPI_Win window;
static int64_t *volume;
static long heap;
static int me, np;

static int64_t swap(int rank, MPI_Aint at, int64_t was, int64_t is)
{
    int64_t seen;
    MPI_Compare_and_swap(&is, &was, &seen, MPI_INT64_T, rank, at, window);
    MPI_Win_flush(rank, window);
    return seen;
}

static int64_t fetch(int rank, MPI_Aint at, int64_t with, MPI_Op op)
{
    int64_t seen;
    MPI_Fetch_and_op(&with, &seen, MPI_INT64_T, rank, at, op, window);
    MPI_Win_flush(rank, window);
    return seen;
}

static void put(int rank, MPI_Aint at, int64_t value)
{
    MPI_Put(&value, 1, MPI_INT64_T, rank, at, 1, MPI_INT64_T, window);
    MPI_Win_flush(rank, window);
}

static void insert(int64_t element, int rank, long slot)
{
    if (swap(rank, slot_at(slot), 0, element) == 0)
        return;
    int64_t cell = fetch(rank, 0, 1, MPI_SUM);
    if (cell >= heap) {
        fprintf(stderr, "rank %d: cell %ld of %ld\n", me, (long) cell, heap);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    put(rank, cell_at(cell), element);
    int64_t last = fetch(rank, slot_at(slot) + 2, cell + 1, MPI_REPLACE);
    put(rank, last ? cell_at(last - 1) + 1 : slot_at(slot) + 1, cell + 1);
}

/* Not atomic by itself. */
static void count(int rank)
{
    int64_t value;
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    MPI_Get(&value, 1, MPI_INT64_T, rank, 1, 1, MPI_INT64_T, window);
    MPI_Win_flush(rank, window);
    put(rank, 1, value + 1);
    MPI_Win_unlock(rank, window);
}

static int64_t element(int rank, long iteration, long number)
{
    uint64_t name = (uint64_t) iteration * 1000003 + (uint64_t) number * 64 + (uint64_t) rank;
    return (int64_t) (mix(name) >> 2) | 1;
}

static void insert_all(long iteration, long each)
{
    int by_lock = iteration % 2;
    if (!by_lock)
        MPI_Win_lock_all(0, window);
    for (long k = 0; k < each; k++) {
        int64_t e = element(me, iteration, k);
        uint64_t place = mix((uint64_t) e);
        int rank = (int) (place % (uint64_t) np);
        if (by_lock)
            MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
        insert(e, rank, (long) (place / (uint64_t) np % SLOTS));
        if (by_lock)
            MPI_Win_unlock(rank, window);
        if (by_lock && k % 4 == 0)
            count(rank);
    }
    if (!by_lock)
        MPI_Win_unlock_all(window);
}

/* Numbers and sums of what should be in this rank's volume, less what is there. */
static long wrong(long iteration, long each, uint64_t *hash)
{
    uint64_t sum = 0;
    long number = 0, counts = 0;
    for (int rank = 0; rank < np; rank++)
        for (long k = 0; k < each; k++) {
            int64_t e = element(rank, iteration, k);
            if ((int) (mix((uint64_t) e) % (uint64_t) np) == me) {
                sum += mix((uint64_t) e);
                number++;
                counts += iteration % 2 && k % 4 == 0;
            }
        }
    *hash = mix(*hash ^ sum);
    for (long s = 0; s < SLOTS; s++) {
        int64_t *slot = volume + slot_at(s);
        if (!slot[0])
            continue;
        sum -= mix((uint64_t) slot[0]);
        number--;
        for (int64_t cell = slot[1]; cell; cell = volume[cell_at(cell - 1) + 1]) {
            sum -= mix((uint64_t) volume[cell_at(cell - 1)]);
            number--;
        }
    }
    return (sum != 0) + (number != 0) + (volume[1] != counts);
}

int main(int argc, char **argv)
{
    int iterations = argc > 1 ? atoi(argv[1]) : 100, limit = 0;
    const char *gate = argc > 2 && argv[2][0] ? argv[2] : NULL;
    double inserting = 0, slowest;
    long each = argc > 3 ? atol(argv[3]) : 40, bad = 0;
    uint64_t hash = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    heap = each * np;
    size_t bytes = (size_t) cell_at(heap) * sizeof *volume;
    volume = calloc(1, bytes); /* MPI_Win_create: stock's osc/rdma cannot swap in allocated ones */
    MPI_Win_create(volume, (MPI_Aint) bytes, sizeof *volume, MPI_INFO_NULL, MPI_COMM_WORLD,
                   &window);
    for (long k = 0; k < iterations; k++) {
        wait_at(gate, (int) k, &limit);
        pace();
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, window);
        memset(volume, 0, bytes);
        MPI_Win_unlock(me, window);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = MPI_Wtime();
        insert_all(k, each);
        inserting += MPI_Wtime() - begin;
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, me, 0, window);
        bad += wrong(k, each, &hash);
        MPI_Win_unlock(me, window);
    }
    int right = print_hash(hash, bad);
    MPI_Reduce(&inserting, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (me == 0 && getenv("TIMES"))
        printf("insertion %ld %.3f\n", each, slowest / ((double) iterations * (double) each) * 1e6);
    MPI_Win_free(&window);
    free(volume);
    MPI_Finalize();
    return !right;
}

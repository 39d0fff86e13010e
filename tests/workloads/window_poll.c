/* A ring without messages: each rank waits for the previous one's data by polling its own window
 * with MPI_Win_sync, and gives its own to the next by put, flush and a flag, all in one epoch of
 * lock_all. The next rank says by another flag that a slot is free.
 * usage: window_poll ITERATIONS [GATE]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"

enum { SLOTS = 2, WORDS = 200, FULL = 0, FREE = 8, DATA = 64 };

static MPI_Win window;
static volatile uint64_t *mine;

static void wait_until(int word, uint64_t value)
{
    while (mine[word] < value)
        MPI_Win_sync(window);
    MPI_Win_sync(window);
}

static void set(int rank, int word, uint64_t value)
{
    MPI_Accumulate(&value, 1, MPI_UINT64_T, rank, word, 1, MPI_UINT64_T, MPI_REPLACE, window);
    MPI_Win_flush(rank, window);
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t *base, data[WORDS], hash = 0;
    long wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    MPI_Win_allocate((DATA + SLOTS * WORDS) * sizeof *base, sizeof *base, MPI_INFO_NULL,
                     MPI_COMM_WORLD, &base, &window);
    for (int i = 0; i < DATA + SLOTS * WORDS; i++)
        base[i] = 0;
    mine = base;
    for (int i = 0; i < WORDS; i++)
        data[i] = mix((uint64_t) (me * WORDS + i));
    MPI_Win_lock_all(0, window);
    MPI_Win_sync(window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < iterations; k++) {
        uint64_t turn = (uint64_t) k + 1;
        int slot = k % SLOTS;
        wait_at(gate, k, &limit);
        pace();
        if (k >= SLOTS)
            wait_until(FREE, turn - SLOTS);
        MPI_Put(data, WORDS, MPI_UINT64_T, next, DATA + slot * WORDS, WORDS, MPI_UINT64_T, window);
        MPI_Win_flush(next, window);
        set(next, FULL, turn);
        wait_until(FULL, turn);
        wrong += mine[FULL] > turn + SLOTS; /* it waits for a free slot */
        for (int i = 0; i < WORDS; i++)
            data[i] = mix(data[i] * 3 + mine[DATA + slot * WORDS + i] + (uint64_t) k);
        MPI_Win_sync(window);
        set(previous, FREE, turn);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(window);
    for (int i = 0; i < WORDS; i++)
        hash = mix(hash ^ data[i]);
    int right = print_hash(hash, wrong);
    MPI_Win_free(&window);
    MPI_Finalize();
    return !right;
}

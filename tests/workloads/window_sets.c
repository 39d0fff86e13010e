/* Ranks of a node write to memory that they share, ordered by MPI_Win_sync and messages, so that
 * nothing depends on chance: each step reads what the neighbours stored in the step before. The
 * nodes exchange what they have. Some steps also add by MPI_Fetch_and_op, whose sum counts, and put
 * into the neighbour's part. With sets of single processes the window is one of several sets.
 * usage: window_sets ITERATIONS [GATE]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"

enum { WORDS = 400, COUNTER = 2 * WORDS, BOX, ALL };

int main(int argc, char **argv)
{
    int me, np, rank, ranks, unit, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t *own, *left, *first, hash = 0, seen = 0;
    const uint64_t one = 1;
    long wrong = 0, added = 0;
    MPI_Comm node;
    MPI_Win window;
    MPI_Aint bytes;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &ranks);
    MPI_Win_allocate_shared(ALL * sizeof *own, sizeof *own, MPI_INFO_NULL, node, &own, &window);
    MPI_Win_shared_query(window, (rank + ranks - 1) % ranks, &bytes, &unit, &left);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &first);
    for (int i = 0; i < ALL; i++)
        own[i] = i < 2 * WORDS ? mix((uint64_t) (me * WORDS + i)) : 0;
    MPI_Win_lock_all(0, window);
    MPI_Win_sync(window);
    MPI_Barrier(node);
    MPI_Win_sync(window);
    for (int k = 0; k < iterations; k++) {
        uint64_t *now = own + k % 2 * WORDS, *before = own + (k + 1) % 2 * WORDS;
        uint64_t *beside = left + (k + 1) % 2 * WORDS, out, in;
        wait_at(gate, k, &limit);
        pace();
        for (int i = 0; i < WORDS; i++)
            now[i] = mix(before[i] + 3 * beside[i] + (uint64_t) k);
        out = now[k % WORDS];
        MPI_Sendrecv(&out, 1, MPI_UINT64_T, (me + 1) % np, 1, &in, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        now[0] ^= in;
        if (k % 4 == 3) {
            MPI_Fetch_and_op(&one, &seen, MPI_UINT64_T, 0, COUNTER, MPI_SUM, window);
            MPI_Put(&out, 1, MPI_UINT64_T, (rank + 1) % ranks, BOX, 1, MPI_UINT64_T, window);
            MPI_Win_flush_all(window);
            wrong += seen >= (uint64_t) (added + 1) * (uint64_t) ranks;
            added++;
        }
        MPI_Win_sync(window);
        MPI_Barrier(node); /* all of this step is stored */
        MPI_Win_sync(window);
        if (k % 4 == 3) {
            now[1] ^= own[BOX];
            wrong += first[COUNTER] != (uint64_t) added * (uint64_t) ranks;
            MPI_Win_sync(window);
            MPI_Barrier(node);
            MPI_Win_sync(window);
        }
    }
    MPI_Win_unlock_all(window);
    for (int i = 0; i < 2 * WORDS; i++)
        hash = mix(hash ^ own[i]);
    int right = print_hash(hash, wrong);
    MPI_Win_free(&window);
    MPI_Comm_free(&node);
    MPI_Finalize();
    return !right;
}

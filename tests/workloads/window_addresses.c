/* Windows of MPI_Win_allocate that come and go; their addresses are sent to all, as ARMCI and
 * Global Arrays do. In each iteration one of some windows is freed and made again, of another size,
 * and ranks put into it and add to it.
 * usage: window_addresses ITERATIONS [GATE]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"

enum { WORDS = 100, WINDOWS = 3 };

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 200, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t *memory[WINDOWS] = {NULL}, data[WORDS], hash = 0;
    MPI_Win window[WINDOWS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Aint *addresses = malloc((size_t) np * sizeof *addresses);
    int next = (me + 1) % np;
    for (int i = 0; i < WORDS; i++)
        data[i] = mix((uint64_t) (me * WORDS + i));
    for (int k = 0; k < iterations; k++) {
        int w = k % WINDOWS;
        uint64_t one = (uint64_t) k;
        /* Now and then more than neighbours map (vprotocol_correlated_window_mapped_max). */
        size_t words = (size_t) WORDS * (size_t) (1 + k % 7) + (k % 32 == 31 ? 1200000 : 0);
        wait_at(gate, k, &limit);
        pace();
        if (memory[w])
            MPI_Win_free(&window[w]);
        MPI_Win_allocate((MPI_Aint) (words * sizeof *data), sizeof *data, MPI_INFO_NULL,
                         MPI_COMM_WORLD, &memory[w], &window[w]);
        MPI_Get_address(memory[w], &addresses[me]);
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, addresses, 1, MPI_AINT, MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, window[w]);
        for (int i = 0; i < WORDS; i++)
            memory[w][i] = 0;
        MPI_Win_unlock(me, window[w]);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window[w]);
        MPI_Put(data, WORDS, MPI_UINT64_T, next, 0, WORDS, MPI_UINT64_T, window[w]);
        MPI_Win_flush(next, window[w]);
        MPI_Accumulate(&one, 1, MPI_UINT64_T, next, k % WORDS, 1, MPI_UINT64_T, MPI_SUM,
                       window[w]);
        MPI_Win_unlock(next, window[w]);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < WORDS; i++)
            data[i] = mix(data[i] + 3 * memory[w][i]);
    }
    for (int i = 0; i < WORDS; i++)
        hash = mix(hash ^ data[i]);
    print_hash(hash, 0);
    for (int w = 0; w < WINDOWS; w++)
        if (memory[w])
            MPI_Win_free(&window[w]);
    free(addresses);
    MPI_Finalize();
    return 0;
}

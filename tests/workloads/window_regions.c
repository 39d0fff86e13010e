/* A dynamic window whose memory comes and goes: in each iteration ranks attach a region, tell the
 * neighbours by a message where it is, put, add and get there, and detach it; other regions stay
 * for some iterations. Every 16th iteration makes another window.
 * usage: window_regions ITERATIONS [GATE]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"
#include <string.h>

enum { WORDS = 300, REGIONS = 4 };

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t *region[REGIONS] = {NULL}, data[WORDS], got[WORDS], hash = 0;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    for (int i = 0; i < WORDS; i++)
        data[i] = mix((uint64_t) (me * WORDS + i));
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (int k = 0; k < iterations; k++) {
        MPI_Aint mine, theirs;
        uint64_t **now = &region[k % REGIONS], one = (uint64_t) k;
        wait_at(gate, k, &limit);
        pace();
        if (k % 16 == 15) {
            for (int r = 0; r < REGIONS; r++) { /* all are there: REGIONS divides 16 */
                MPI_Win_detach(window, region[r]);
                free(region[r]);
                region[r] = NULL;
            }
            MPI_Win_free(&window);
            MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
        }
        if (*now) {
            MPI_Win_detach(window, *now);
            free(*now);
        }
        *now = calloc((size_t) (WORDS + k % 7), sizeof **now);
        MPI_Win_attach(window, *now, WORDS * sizeof **now);
        MPI_Get_address(*now, &mine);
        MPI_Sendrecv(&mine, 1, MPI_AINT, previous, 1, &theirs, 1, MPI_AINT, next, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
        MPI_Put(data, WORDS, MPI_UINT64_T, next, theirs, WORDS, MPI_UINT64_T, window);
        MPI_Win_flush(next, window);
        MPI_Accumulate(&one, 1, MPI_UINT64_T, next, MPI_Aint_add(theirs, 8 * (k % WORDS)), 1,
                       MPI_UINT64_T, MPI_SUM, window);
        MPI_Get(got, WORDS / 2, MPI_UINT64_T, next, MPI_Aint_add(theirs, 8 * (WORDS / 2)),
                WORDS / 2, MPI_UINT64_T, window);
        MPI_Win_unlock(next, window);
        MPI_Barrier(MPI_COMM_WORLD); /* all have put; the memory may be read and go */
        for (int i = 0; i < WORDS; i++)
            data[i] = mix(data[i] + 3 * (*now)[i]);
        if (k % WORDS < WORDS / 2) /* else got may have it or not */
            for (int i = 0; i < WORDS / 2; i++)
                hash = mix(hash ^ got[i]);
    }
    for (int i = 0; i < WORDS; i++)
        hash = mix(hash ^ data[i]);
    print_hash(hash, 0);
    for (int r = 0; r < REGIONS; r++)
        if (region[r]) {
            MPI_Win_detach(window, region[r]);
            free(region[r]);
        }
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}

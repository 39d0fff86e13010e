/* A ring of cells, whose edges neighbours put into each other's windows between MPI_Win_post and
 * MPI_Win_wait (or MPI_Win_test); each third step they get them instead.
 * usage: window_halo ITERATIONS [GATE]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"

enum { CELLS = 500, EDGE = 40, WORDS = CELLS + 2 * EDGE };

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 500, limit = 0, both[2];
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t *cell, next[WORDS], hash = 0; /* edge of the left, own cells, edge of the right */
    MPI_Win window;
    MPI_Group world, group;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    int left = both[0] = (me + np - 1) % np, right = both[1] = (me + 1) % np;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, left == right ? 1 : 2, both, &group);
    MPI_Win_allocate(sizeof next, sizeof *next, MPI_INFO_NULL, MPI_COMM_WORLD, &cell, &window);
    for (int i = 0; i < WORDS; i++)
        cell[i] = mix((uint64_t) (me * WORDS + i));
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        pace();
        MPI_Win_post(group, 0, window);
        MPI_Win_start(group, 0, window);
        if (k % 3 < 2) {
            MPI_Put(cell + EDGE, EDGE, MPI_UINT64_T, left, EDGE + CELLS, EDGE, MPI_UINT64_T,
                    window);
            MPI_Put(cell + CELLS, EDGE, MPI_UINT64_T, right, 0, EDGE, MPI_UINT64_T, window);
        } else {
            MPI_Get(next, EDGE, MPI_UINT64_T, left, CELLS, EDGE, MPI_UINT64_T, window);
            MPI_Get(next + EDGE + CELLS, EDGE, MPI_UINT64_T, right, EDGE, EDGE, MPI_UINT64_T,
                    window);
        }
        MPI_Win_complete(window);
        if (k % 2) {
            MPI_Win_wait(window);
        } else {
            for (int over = 0; !over;)
                MPI_Win_test(window, &over);
        }
        for (int i = 0; i < EDGE && k % 3 == 2; i++) {
            cell[i] = next[i];
            cell[EDGE + CELLS + i] = next[EDGE + CELLS + i];
        }
        for (int i = EDGE; i < EDGE + CELLS; i++)
            next[i] = mix(cell[i - EDGE] + 3 * cell[i] + 5 * cell[i + EDGE] + (uint64_t) k);
        for (int i = EDGE; i < EDGE + CELLS; i++)
            cell[i] = next[i];
    }
    for (int i = EDGE; i < EDGE + CELLS; i++)
        hash = mix(hash ^ cell[i]);
    print_hash(hash, 0);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}

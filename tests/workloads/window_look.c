/* A neighbour writes into a rank's window, and the rank sees it by loads alone before it asks for
 * anything, after a quarter of all iterations: when it has seen it is recorded nowhere. The ranks
 * of a pair (0 and 1, 2 and 3, on one node) put into each other's windows between barriers.
 * ASKS: instead, it asks for messages in vain, from the beginning, while its neighbour writes.
 * usage: window_look ITERATIONS [GATE [ASKS]] ; an even number of ranks; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"

enum { SEEN, DATA, WORDS = DATA + 2 };

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 400, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    uint64_t *base, one = 1, x;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    int other = me ^ 1, asks = argc > 3, found;
    MPI_Win_allocate(WORDS * sizeof *base, sizeof *base, MPI_INFO_NULL, MPI_COMM_WORLD, &base,
                     &window);
    volatile uint64_t *mine = base;
    for (int i = 0; i < WORDS; i++)
        mine[i] = 0;
    x = mix((uint64_t) me + 1);
    MPI_Win_lock_all(0, window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        pace();
        MPI_Put(&x, 1, MPI_UINT64_T, other, DATA + k % 2, 1, MPI_UINT64_T, window);
        MPI_Win_flush(other, window);
        MPI_Barrier(MPI_COMM_WORLD);
        x = mix(x * 3 + mine[DATA + k % 2]);
        if (asks && me % 2) {
            usleep(500); /* its neighbour has written by then */
            MPI_Iprobe(MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        } else if (asks) {
            MPI_Put(&x, 1, MPI_UINT64_T, other, SEEN, 1, MPI_UINT64_T, window);
            MPI_Win_flush(other, window);
        } else if (iterations / 4 == k) {
            if (me % 2) {
                while (!mine[SEEN])
                    ;
                MPI_Win_sync(window);
            } else {
                usleep(20000); /* the other one only loads by then */
                MPI_Put(&one, 1, MPI_UINT64_T, other, SEEN, 1, MPI_UINT64_T, window);
                MPI_Win_flush(other, window);
            }
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_unlock_all(window);
    int right = print_hash(x, 0);
    MPI_Win_free(&window);
    MPI_Finalize();
    return !right;
}

/*
 * shared_large GO: fills a shared window of 8 MiB a rank, and when the file GO is there looks
 * whether everything is as it was. Restored, it must be.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WORDS = (8 << 20) / sizeof(unsigned) };

static unsigned wanted(int rank, int at)
{
    return (unsigned) at * 2654435761u + (unsigned) rank + 1;
}

int main(int argc, char **argv)
{
    unsigned *words;
    int rank, wrong = 0, all = 0;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) {
        fprintf(stderr, "usage: shared_large GO, on one node\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Win_allocate_shared(WORDS * sizeof *words, sizeof *words, MPI_INFO_NULL, MPI_COMM_WORLD,
                            &words, &window);
    for (int i = 0; i < WORDS; i++) {
        words[i] = wanted(rank, i);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    while (0 != access(argv[1], F_OK)) {
        usleep(1000);
    }
    for (int i = 0; i < WORDS; i++) {
        wrong += words[i] != wanted(rank, i);
    }
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("HASH %d words are wrong\n", all);
    }
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}

/*
 * shared_counters GO window|own: ranks of a node add to counters of their own in one page of memory
 * that they share (of a window, or made by themselves), and to copies elsewhere, in no call of MPI,
 * until the file GO is there. Then each counter, seen by each rank, must be its copy: in a snapshot
 * of two moments it is not, nor where one of them has another page.
 */
#include <mpi.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS_MAX = 8, STEPS = 100000, PAGE = 4096 };

static volatile long *of_window(MPI_Win *window, int rank)
{
    MPI_Aint bytes;
    int unit;
    long *first;
    MPI_Win_allocate_shared(0 == rank ? PAGE : 0, sizeof *first, MPI_INFO_NULL, MPI_COMM_WORLD,
                            &first, window);
    MPI_Win_shared_query(*window, 0, &bytes, &unit, &first);
    return first;
}

static volatile long *own(int rank)
{
    char name[64] = "";
    if (0 == rank) {
        snprintf(name, sizeof name, "/shared_counters-%d", (int) getpid());
        int file = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
        if (file < 0 || ftruncate(file, PAGE)) {
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        close(file);
    }
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, MPI_COMM_WORLD);
    int file = shm_open(name, O_RDWR, 0);
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || MAP_FAILED == page) {
        MPI_Abort(MPI_COMM_WORLD, 4);
    }
    close(file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        shm_unlink(name);
    }
    return page;
}

int main(int argc, char **argv)
{
    static volatile long copy;
    long all[RANKS_MAX] = {0};
    int rank, size, wrong = 0, sum = 0;
    MPI_Win window = MPI_WIN_NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3 || size > RANKS_MAX) {
        fprintf(stderr, "usage: shared_counters GO window|own, on one node\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int by_window = 0 == strcmp(argv[2], "window");
    volatile long *counters = by_window ? of_window(&window, rank) : own(rank);
    MPI_Barrier(MPI_COMM_WORLD);
    do {
        for (int i = 0; i < STEPS; i++) {
            counters[rank]++;
            copy++;
        }
    } while (0 != access(argv[1], F_OK));
    MPI_Barrier(MPI_COMM_WORLD);
    long mine = copy;
    MPI_Allgather(&mine, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int other = 0; other < size; other++) {
        wrong += counters[other] != all[other];
    }
    MPI_Reduce(&wrong, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("HASH %d counters are wrong\n", sum);
    }
    if (by_window) {
        MPI_Win_free(&window);
    }
    MPI_Finalize();
    return 0;
}

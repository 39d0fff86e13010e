/* Memory that one rank of a node makes under a name, and that the others open by that much later:
 * half-way, behind the gate. All add to a count in it, and for themselves. Who has another memory
 * than the rest adds in vain. usage: shared_by_name ITERATIONS GATE FOLDER (/dev/shm, or one that
 * looks as those of Open MPI's jobs). */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "gate.h"

enum { ADDED = 5000, PAGE = 4096 };

static uint64_t *map(const char *name, int flags)
{
    int file = open(name, O_RDWR | flags, 0600);
    if (file < 0 || (flags && ftruncate(file, PAGE))) {
        perror(name);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (page == MAP_FAILED)
        MPI_Abort(MPI_COMM_WORLD, 4);
    return page;
}

int main(int argc, char **argv)
{
    int me, local, limit = 0, iterations = argc > 1 ? atoi(argv[1]) : 400;
    const char *gate = argc > 2 ? argv[2] : NULL, *folder = argc > 3 ? argv[3] : "/dev/shm";
    char name[4096] = "";
    uint64_t *count = NULL, mine = 0;
    long long missing = 0, sum = 0;
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    if (local == 0) {
        snprintf(name, sizeof name, "%s/shared_by_name-%d", folder, (int) getpid());
        mkdir(folder, 0700);
        count = map(name, O_CREAT | O_EXCL);
    }
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, node);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        if (k >= iterations / 2 && !count)
            count = map(name, 0);
        for (int i = 0; count && i < ADDED; i++, mine++)
            __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (local == 0) {
        missing = -(long long) __atomic_load_n(count, __ATOMIC_RELAXED);
        unlink(name);
    }
    missing += (long long) mine;
    MPI_Reduce(&missing, &sum, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %lld are missing\n", sum);
    MPI_Comm_free(&node);
    MPI_Finalize();
    return 0;
}

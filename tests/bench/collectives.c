/* Collectives, for paired comparisons of components and PMLs.
 *
 * usage: collectives NAMES SIZES REPEATS
 *   NAMES  comma separated: barrier bcast (root in turn) rate (bcast from rank 0 in a loop)
 *          allreduce reduce alltoall allgather gather scatter (roots in turn) reduce_scatter scan
 *          ibarrier ibcast iallreduce
 *   SIZES  comma separated bytes (of a block); barriers have one line for size 0
 *   REPEATS measurements a size; the median is printed
 * Buffers are written before each call of 1 KiB and more: where nobody writes, data that is read
 * from another process's memory lies in both caches.
 * Prints NAME BYTES MEDIAN in microseconds, the mean of all ranks.
 */
#include "warm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS_MAX = 1001, BYTES_MAX = 1 << 20, WRITTEN = 1024 };

static int me, np;
static char *from, *into;

/* Does a rank give each of the others a block of its own? */
static int gives_all(const char *name)
{
    return !strcmp(name, "alltoall") || !strcmp(name, "scatter") || !strcmp(name, "reduce_scatter");
}

static void call(const char *name, int bytes, int i)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int root = i % np;
    if (bytes >= WRITTEN)
        memset(from, i & 63, (size_t)bytes * (size_t)(gives_all(name) ? np : 1));
    if (!strcmp(name, "barrier"))
        MPI_Barrier(MPI_COMM_WORLD);
    else if (!strcmp(name, "bcast"))
        MPI_Bcast(from, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    else if (!strcmp(name, "rate"))
        MPI_Bcast(from, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    else if (!strcmp(name, "allreduce"))
        MPI_Allreduce(from, into, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(name, "reduce"))
        MPI_Reduce(from, into, bytes / 8, MPI_DOUBLE, MPI_SUM, root, MPI_COMM_WORLD);
    else if (!strcmp(name, "alltoall"))
        MPI_Alltoall(from, bytes, MPI_BYTE, into, bytes, MPI_BYTE, MPI_COMM_WORLD);
    else if (!strcmp(name, "allgather"))
        MPI_Allgather(from, bytes, MPI_BYTE, into, bytes, MPI_BYTE, MPI_COMM_WORLD);
    else if (!strcmp(name, "gather"))
        MPI_Gather(from, bytes, MPI_BYTE, into, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    else if (!strcmp(name, "scatter"))
        MPI_Scatter(from, bytes, MPI_BYTE, into, bytes, MPI_BYTE, root, MPI_COMM_WORLD);
    else if (!strcmp(name, "reduce_scatter"))
        MPI_Reduce_scatter_block(from, into, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(name, "scan"))
        MPI_Scan(from, into, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    else if (!strcmp(name, "ibarrier"))
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
    else if (!strcmp(name, "ibcast"))
        MPI_Ibcast(from, bytes, MPI_BYTE, root, MPI_COMM_WORLD, &request);
    else if (!strcmp(name, "iallreduce"))
        MPI_Iallreduce(from, into, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
    else
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *name, int bytes, int repeats)
{
    static double found[REPEATS_MAX];
    const int rounds = bytes < 4096 ? 4000 : bytes < 1 << 17 ? 200 : 20;
    for (int i = 0; i < rounds; i++)
        call(name, bytes, i);
    for (int k = 0; k < repeats; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < rounds; i++)
            call(name, bytes, i);
        found[k] = (MPI_Wtime() - start) / rounds * 1e6;
    }
    qsort(found, (size_t)repeats, sizeof *found, ascending);
    double mine = found[repeats / 2], sum = 0;
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("%s %d %.4f\n", name, bytes, sum / np);
}

int main(int argc, char **argv)
{
    int repeats = argc > 3 ? atoi(argv[3]) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (repeats < 1 || repeats > REPEATS_MAX)
        MPI_Abort(MPI_COMM_WORLD, 2);
    from = calloc((size_t)np, BYTES_MAX);
    into = calloc((size_t)np, BYTES_MAX);
    wait_for_first_checkpoint();
    char *rest = NULL;
    for (char *name = strtok_r(argv[1], ",", &rest); name; name = strtok_r(NULL, ",", &rest)) {
        char *sizes = strdup(argv[2]), *more = NULL;
        for (char *word = strtok_r(sizes, ",", &more); word; word = strtok_r(NULL, ",", &more)) {
            int bytes = strstr(name, "barrier") ? 0 : atoi(word);
            measure(name, bytes > BYTES_MAX ? BYTES_MAX : bytes, repeats);
            if (bytes == 0)
                break;
        }
        free(sizes);
    }
    MPI_Finalize();
    return 0;
}

/* What a short job pays: the time of MPI_Init, of a loop of computing and small MPI_Allreduce that
 * takes SECONDS on an undisturbed processor, and of MPI_Finalize; beside it what the kernel has
 * counted for the loop: processor time of the whole process and page faults.
 *
 *   short SECONDS [MIB]
 *
 * MIB: memory that the loop reads and writes, 8 if it is not given. Rank 0 prints one line:
 *   init MS loop MS user MS system MS faults N finalize MS
 * The loop is calibrated to a number of rounds that is the same for stock and ours: 2 ms each on
 * the machine on which this was written. All values but those of rank 0 are dropped. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double ms_of(struct timeval t)
{
    return (double)t.tv_sec * 1e3 + (double)t.tv_usec * 1e-3;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    size_t count = (size_t)(argc > 2 ? atoi(argv[2]) : 8) << 17;
    struct rusage before, after;
    int rank;
    double start = now_ms();
    MPI_Init(&argc, &argv);
    double init = now_ms() - start;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double *memory = malloc(count * sizeof *memory);
    for (size_t i = 0; i < count; i++) {
        memory[i] = (double)(i % 1000);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    getrusage(RUSAGE_SELF, &before);
    start = now_ms();
    double sum = 0, all = 0;
    size_t at = 0;
    for (long round = 0, rounds = (long)(seconds * 500); round < rounds; round++) {
        for (int i = 0; i < 600000; i++) {
            at = at + 1 < count ? at + 1 : 0;
            memory[at] = memory[at] * 0.999 + sum * 1e-9;
            sum += memory[at];
        }
        MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        sum = all * 1e-9;
    }
    double loop = now_ms() - start;
    getrusage(RUSAGE_SELF, &after);
    start = now_ms();
    MPI_Finalize();
    if (rank == 0) {
        printf("init %.1f loop %.1f user %.1f system %.1f faults %ld finalize %.1f\n", init, loop,
               ms_of(after.ru_utime) - ms_of(before.ru_utime),
               ms_of(after.ru_stime) - ms_of(before.ru_stime), after.ru_minflt - before.ru_minflt,
               now_ms() - start);
    }
    return sum == 42;
}

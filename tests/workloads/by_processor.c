/* Reads the processor's counter and, if it has one, its generator of random numbers: what cannot be
 * recorded. usage: by_processor */
#include <mpi.h>
#include <stdio.h>
#include <x86intrin.h>

__attribute__((target("rdrnd"))) static unsigned draw(void)
{
    unsigned word = 0;
    if (__builtin_cpu_supports("rdrnd"))
        _rdrand32_step(&word);
    return word;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    unsigned long long got = __rdtsc() + draw(), all = 0;
    MPI_Allreduce(&got, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    int me;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (me == 0)
        printf("HASH %s\n", all ? "read" : "nothing");
    MPI_Finalize();
    return 0;
}

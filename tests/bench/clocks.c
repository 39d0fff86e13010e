/* What it costs that clocks are recorded (docs/adr/0029): the same with clock_gettime and with the
 * kernel's function in the vDSO, which nobody records, in turns, in one process.
 *
 * usage: clocks GATE PAIRS
 *
 * Measures when the file GATE (see gate.h of tests/workloads) has the number 1 in it: recording
 * begins with the first checkpoint. Prints, for each pair, the processor time of a call in a loop
 * of rank 0 that does nothing else, and how long a step takes in which each rank reads the clock a
 * thousand times in about a millisecond and passes 1 KiB on in a ring. */
#include <elf.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <time.h>
#include <unistd.h>

#include "../workloads/gate.h"

typedef int (*clock_function)(clockid_t, struct timespec *);

enum { CALLS = 2000000, STEPS = 100, READS = 1000, READ_NS = 1000, BYTES = 1024 };

/* System V ABI; the object has its symbols where it has its hash table's count. */
static clock_function in_vdso(const char *name)
{
    const char *base = (const char *) getauxval(AT_SYSINFO_EHDR);
    const Elf64_Ehdr *head = (const Elf64_Ehdr *) base;
    const Elf64_Phdr *part = (const Elf64_Phdr *) (base + head->e_phoff);
    const char *load = NULL, *names = NULL;
    const Elf64_Dyn *entry = NULL;
    for (int i = 0; i < head->e_phnum; i++) {
        if (part[i].p_type == PT_LOAD && !load)
            load = base + part[i].p_offset - part[i].p_vaddr;
        if (part[i].p_type == PT_DYNAMIC)
            entry = (const Elf64_Dyn *) (base + part[i].p_offset);
    }
    const Elf64_Sym *symbols = NULL;
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            names = load + entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB)
            symbols = (const Elf64_Sym *) (load + entry->d_un.d_ptr);
    }
    /* Names lie behind the symbols. */
    for (const Elf64_Sym *at = symbols; (const char *) at < names; at++)
        if (0 == strcmp(names + at->st_name, name))
            return (clock_function) (load + at->st_value);
    abort();
}

static clock_function stock;

static double ns(clockid_t id)
{
    struct timespec time;
    stock(id, &time);
    return (double) time.tv_sec * 1e9 + (double) time.tv_nsec;
}

static double now(void)
{
    return ns(CLOCK_MONOTONIC);
}

/* Of this thread: what others do on the machine does not count. */
static double processor(void)
{
    return ns(CLOCK_THREAD_CPUTIME_ID);
}

static double loop_of_ours(void)
{
    struct timespec time;
    double start = processor();
    for (int i = 0; i < CALLS; i++) {
        clock_gettime(CLOCK_MONOTONIC, &time);
        __asm__ volatile("" : : "r"(&time) : "memory");
    }
    return (processor() - start) / CALLS;
}

static double loop_of_the_kernels(void)
{
    struct timespec time;
    clock_function read = stock;
    double start = processor();
    for (int i = 0; i < CALLS; i++) {
        read(CLOCK_MONOTONIC, &time);
        __asm__ volatile("" : : "r"(&time) : "memory");
    }
    return (processor() - start) / CALLS;
}

/* As much work as the rest of READ_NS. */
static void work(long turns)
{
    for (long i = 0; i < turns; i++)
        __asm__ volatile("" : : : "memory");
}

static double steps(int me, int np, clock_function read, long turns)
{
    static char out[BYTES], in[BYTES];
    struct timespec time;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    for (int i = 0; i < STEPS; i++) {
        for (int k = 0; k < READS; k++) {
            read(CLOCK_MONOTONIC, &time);
            work(turns);
        }
        MPI_Sendrecv(out, BYTES, MPI_BYTE, (me + 1) % np, 0, in, BYTES, MPI_BYTE,
                     (me + np - 1) % np, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return (now() - start) / STEPS / 1000;
}

int main(int argc, char **argv)
{
    int me, np, pairs = argc > 2 ? atoi(argv[2]) : 10;
    const char *gate = argc > 1 ? argv[1] : NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    stock = in_vdso("__vdso_clock_gettime");
    while (gate && read_gate(gate) < 1)
        usleep(1000);
    double start = now();
    work(10000000);
    long turns = (long) (READ_NS / ((now() - start) / 1e7));
    MPI_Bcast(&turns, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    for (int i = 0; i < pairs; i++) {
        if (me == 0) {
            double ours = loop_of_ours(), kernels = loop_of_the_kernels();
            printf("loop: %.2f ns, the kernel's %.2f ns, %.3f\n", ours, kernels, ours / kernels);
        }
        int over = 1;
        /* Who waits leaves its processor. */
        if (me == 0)
            for (int to = 1; to < np; to++)
                MPI_Send(&over, 1, MPI_INT, to, 1, MPI_COMM_WORLD);
        else {
            int there = 0;
            while (!there) {
                MPI_Iprobe(0, 1, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
                usleep(5000);
            }
            MPI_Recv(&over, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        double ours = steps(me, np, clock_gettime, turns), kernels = steps(me, np, stock, turns);
        if (me == 0)
            printf("step: %.1f us, the kernel's %.1f us, %.3f\n", ours, kernels, ours / kernels);
    }
    MPI_Finalize();
    return 0;
}

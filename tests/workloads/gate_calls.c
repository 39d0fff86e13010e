/* ranks: 0 ; library: yes */
/* Holds a program that knows nothing of it in the middle of its work: a library for LD_PRELOAD. At
 * the GATE_CALLS-th message that rank 0 sends or receives itself it makes the file GATE.reached and
 * waits for the file GATE, outside MPI. With GATE_CALLS=0 it only reports how many there were.
 * With GATE_AT_END all ranks wait for it before MPI_Finalize.
 *     gcc -shared -fPIC -o gate_calls.so gate_calls.c -ldl */
#define _GNU_SOURCE
#include <mpi.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long calls;

static void *next(const char *name)
{
    void *there = dlsym(RTLD_NEXT, name);
    if (!there)
        abort();
    return there;
}

static void call(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *at = getenv("GATE_CALLS");
    const char *gate = getenv("GATE");
    if (!rank || atoi(rank) != 0 || ++calls != (at ? atol(at) : 0) || !gate)
        return;
    char reached[4096];
    snprintf(reached, sizeof reached, "%s.reached", gate);
    FILE *file = fopen(reached, "w");
    if (!file || fclose(file))
        abort();
    while (access(gate, F_OK))
        usleep(5000);
}

/* One function of MPI: the same, and counted. */
#define COUNTED(NAME, PARAMETERS, ARGUMENTS)               \
    int NAME PARAMETERS                                    \
    {                                                      \
        static int (*real) PARAMETERS;                     \
        call();                                            \
        if (!real)                                         \
            real = (int(*) PARAMETERS) next(#NAME);        \
        return real ARGUMENTS;                             \
    }

COUNTED(MPI_Send, (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c),
        (b, n, t, to, tag, c))
COUNTED(MPI_Isend,
        (const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r),
        (b, n, t, to, tag, c, r))
COUNTED(MPI_Recv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Status *s),
        (b, n, t, from, tag, c, s))
COUNTED(MPI_Irecv, (void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r),
        (b, n, t, from, tag, c, r))

static void wait_at_end(void)
{
    const char *gate = getenv("GATE");
    while (getenv("GATE_AT_END") && gate && access(gate, F_OK))
        usleep(5000);
}

void mpi_finalize_(int *code)
{
    wait_at_end();
    ((void (*)(int *)) next("mpi_finalize_"))(code);
}

int MPI_Finalize(void)
{
    wait_at_end();
    const char *at = getenv("GATE_CALLS");
    if (calls && at && atol(at) == 0)
        fprintf(stderr, "gate_calls: %ld\n", calls);
    return ((int (*)(void)) next("MPI_Finalize"))();
}

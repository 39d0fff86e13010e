/* How far a program may go: a file with a number of iterations, which a test changes while it runs.
 * So a program lasts as long as the test needs, on a machine of any speed. */
#include <mpi.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file's time of change is that number, too, in seconds: true where that is looked at alone. A
 * rank that has read what others than ranks change since cannot be rolled back alone. */
static int gate_is_not_read;

/* Iterations that may be gone through now. */
static int limit_in(const char *gate)
{
    int limit = 0;
    struct stat now;
    if (gate_is_not_read)
        return stat(gate, &now) ? 0 : (int)now.st_mtime;
    FILE *file = fopen(gate, "r");
    if (!file || fscanf(file, "%d", &limit) != 1)
        limit = 0;
    if (file)
        fclose(file);
    return limit;
}

/* The same: rank 0 reads the file, all know. */
static int read_gate(const char *gate)
{
    int me, limit = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (me == 0)
        limit = limit_in(gate);
    MPI_Bcast(&limit, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return limit;
}

/* Rank 0 says that it waits at the gate: GATE.reached is there, with the iteration before which it
 * waits. */
static void note_reached(const char *gate, int iteration)
{
    char reached[4096];
    int me;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (me != 0)
        return;
    snprintf(reached, sizeof reached, "%s.reached", gate);
    FILE *file = fopen(reached, "w");
    if (file) {
        fprintf(file, "%d", iteration);
        fclose(file);
    }
}

/* Whether the iteration that was gone through is the last one that may be; who is told so repeats
 * it, so that messages go on at the gate. */
__attribute__((unused)) static int is_to_repeat(const char *gate, long iteration, long *limit)
{
    return gate && iteration >= *limit && iteration >= (*limit = read_gate(gate));
}

/* Waits until this iteration may be gone through. */
__attribute__((unused)) static void wait_at(const char *gate, int iteration, int *limit)
{
    int waits = 0;
    while (gate && iteration >= *limit && iteration >= (*limit = read_gate(gate))) {
        if (!waits++)
            note_reached(gate, iteration);
        usleep(1000);
    }
}

/*
 * What recording determinants costs. Between two nodes: a stream of messages that rank 0 takes from
 * MPI_ANY_SOURCE, each answered (persist-before-send: the answer waits for the determinant), and a
 * window of them, answered together; MPI_Wtime in a loop, and beside each message.
 * Usage: outcomes SECONDS. Prints "NAME per second" lines.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* By a system call of its own, which is not recorded. */
static double now(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

/* Rounds of `window` messages and one answer, until rank 0 has had enough. */
static double rounds(int rank, double seconds, int window, int source, int clock)
{
    long count = 0;
    int go = 1, word = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now();
    while (go) {
        if (1 == rank) {
            for (int i = 0; i < window; i++) {
                MPI_Send(&i, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
            }
            MPI_Recv(&go, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            for (int i = 0; i < window; i++) {
                MPI_Recv(&word, 1, MPI_INT, source, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            count += window;
            if (clock) {
                (void) MPI_Wtime();
            }
            go = now() - begin < seconds;
            MPI_Send(&go, 1, MPI_INT, 1, 2, MPI_COMM_WORLD);
        }
    }
    return (double) count / (now() - begin);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double seconds = 1 < argc ? atof(argv[1]) : 2;
    if (2 != size) {
        fprintf(stderr, "outcomes: on two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    static const struct { const char *name; int window, source, clock; } rows[] = {
        { "named source, answered one by one", 1, 1, 0 },
        { "any source, answered one by one", 1, MPI_ANY_SOURCE, 0 },
        { "named source and MPI_Wtime, one by one", 1, 1, 1 },
        { "named source, answered by 100", 100, 1, 0 },
        { "any source, answered by 100", 100, MPI_ANY_SOURCE, 0 },
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double rate = rounds(rank, seconds, rows[i].window, rows[i].source, rows[i].clock);
        if (0 == rank) {
            printf("%-42s %12.0f messages per second\n", rows[i].name, rate);
        }
    }
    long calls = 0;
    double begin = now(), sum = 0;
    while (now() - begin < seconds) {
        for (int i = 0; i < 1000; i++) {
            sum += MPI_Wtime();
        }
        calls += 1000;
    }
    if (0 == rank) {
        double each = 1e9 * (now() - begin) / (double) calls;
        printf("%-42s %12.1f ns each%s\n", "MPI_Wtime in a loop", each, 0 > sum ? "!" : "");
    }
    MPI_Finalize();
    return 0;
}

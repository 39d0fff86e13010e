/*
 * computes_alone ROUNDS STRUCK DONE: two ranks exchange short and long messages. Then rank 0
 * computes, that is, it does not call MPI, until the file DONE is there. Rank 1 makes that file,
 * when the file STRUCK is there: it was killed meanwhile and has replayed its rounds, with what
 * rank 0 has sent, and rank 0 was in no call. Then both go on for some rounds, and print a hash of
 * all that they have received.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SHORT = 100, LONG = 100000 }; /* words; a long message is announced first */

static uint64_t hash = 14695981039346656037u;

static void take(const uint64_t *words, int count)
{
    for (int i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * 1099511628211u;
    }
}

static void exchange(int rank, long round, uint64_t *out, uint64_t *in)
{
    int other = 1 - rank, count = round % 8 == 7 ? LONG : SHORT;
    MPI_Request request;
    for (int i = 0; i < count; i++) {
        out[i] = hash + (uint64_t) (i * 2 + rank);
    }
    MPI_Isend(out, count, MPI_UINT64_T, other, 5, MPI_COMM_WORLD, &request);
    MPI_Recv(in, count, MPI_UINT64_T, other, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    take(in, count);
}

int main(int argc, char **argv)
{
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4 || size != 2) {
        fprintf(stderr, "usage: computes_alone ROUNDS STRUCK DONE, with two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long rounds = atol(argv[1]);
    uint64_t *out = malloc(LONG * sizeof(*out)), *in = malloc(LONG * sizeof(*in));
    for (long round = 0; round < rounds; round++) {
        exchange(rank, round, out, in);
    }
    const char *awaited = rank == 0 ? argv[3] : argv[2];
    if (rank == 0) {
        printf("exchanged\n");
        fflush(stdout);
    }
    while (access(awaited, F_OK) != 0) {
        usleep(1000);
    }
    if (rank == 1) {
        FILE *done = fopen(argv[3], "w");
        if (done == NULL) {
            perror(argv[3]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        fclose(done);
    }
    for (long round = 0; round < 20; round++) {
        exchange(rank, round, out, in);
    }
    printf("HASH %d %016llx\n", rank, (unsigned long long) hash);
    MPI_Finalize();
    return 0;
}

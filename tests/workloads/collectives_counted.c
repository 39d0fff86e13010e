/* Allreduces, bcasts and barriers on the job's communicator, on a duplicate and on halves, each
 * fifth step a message to the next rank, each twentieth a communicator that is made and freed.
 * Sums are of integers: they are the same whoever folds them. Before one step the second rank is
 * late: the others are in the next collective by then, while it waits until FOLDER/late is there.
 * With `cycle`, four ranks: the third is in a barrier with the second, which waits for a message of
 * the first, which comes to a barrier with the fourth when FOLDER/late is there, and sends then.
 * usage: collectives_counted ITERATIONS [GATE [FOLDER [cycle]]] */
#include "hash.h"
#include "gate.h"

enum { WORDS = 16, LATE_AT = 40 };

static uint64_t hash;

static void collectives(MPI_Comm comm, int step)
{
    int me, np;
    uint64_t from[WORDS], into[WORDS];
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &np);
    int count = 1 + step % WORDS;
    for (int i = 0; i < count; i++)
        from[i] = mix(hash + (uint64_t) (me * 1000 + i));
    MPI_Allreduce(from, into, count, MPI_UINT64_T, MPI_SUM, comm);
    for (int i = 0; i < count; i++)
        hash = mix(hash ^ into[i]);
    MPI_Bcast(into, count, MPI_UINT64_T, step % np, comm);
    MPI_Barrier(comm);
    MPI_Reduce(from, into, count, MPI_UINT64_T, MPI_BXOR, step % np, comm);
    if (me == step % np)
        hash = mix(hash ^ into[0]);
    MPI_Bcast(&hash, 1, MPI_UINT64_T, step % np, comm);
}

static void wait_for(const char *folder)
{
    char late[4096], reached[4096];
    snprintf(late, sizeof late, "%s/late", folder);
    snprintf(reached, sizeof reached, "%s/late.reached", folder);
    usleep(300000); /* the others go into what comes next */
    fclose(fopen(reached, "w"));
    while (access(late, F_OK) != 0)
        usleep(1000);
}

static void cycle(const char *folder, int me)
{
    MPI_Comm pair;
    MPI_Comm_split(MPI_COMM_WORLD, me == 0 || me == 3, me, &pair);
    if (me == 0 || me == 3)
        wait_for(folder);
    if (me == 1)
        MPI_Recv(&me, 1, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (me == 0 || me == 3)
        usleep(300000); /* the checkpoint begins */
    MPI_Barrier(pair);
    if (me == 0) {
        int one = 1;
        MPI_Send(&one, 1, MPI_INT, 1, 8, MPI_COMM_WORLD);
    }
    MPI_Comm_free(&pair);
}

static void be_late(const char *folder, int me, int np)
{
    if (me != 1) {
        MPI_Send(&me, 1, MPI_INT, 1, 9, MPI_COMM_WORLD);
        return;
    }
    for (int i = 1; i < np; i++) {
        int who;
        MPI_Recv(&who, 1, MPI_INT, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    wait_for(folder);
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 200, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL, *folder = argc > 3 ? argv[3] : NULL;
    MPI_Comm same, half;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Comm_dup(MPI_COMM_WORLD, &same);
    MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &half);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        pace();
        if (folder && k == LATE_AT) {
            if (argc > 4)
                cycle(folder, me);
            else
                be_late(folder, me, np);
        }
        collectives(MPI_COMM_WORLD, k);
        collectives(k % 2 ? same : half, k);
        if (k % 5 == 0) {
            uint64_t other = 0;
            MPI_Sendrecv(&hash, 1, MPI_UINT64_T, (me + 1) % np, 3, &other, 1, MPI_UINT64_T,
                         (me + np - 1) % np, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            hash = mix(hash ^ other);
        }
        if (k % 20 == 0) {
            MPI_Comm made;
            MPI_Comm_dup(MPI_COMM_WORLD, &made);
            collectives(made, k);
            MPI_Comm_free(&made);
        }
    }
    collectives(MPI_COMM_WORLD, iterations);
    if (me == 0)
        printf("HASH %d %d %016llx\n", np, iterations, (unsigned long long) hash);
    MPI_Finalize();
    return 0;
}

/* Communicators with and without the info key that takes our collectives away, others of one rank,
 * an intercommunicator, and a few dozen at a time: sums on all of them. Prints OK. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { SOME = 40, CALLS = 100 };

static void sum(MPI_Comm comm)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int i = 0; i < CALLS; i++) {
        long mine = rank + i, all = 0;
        MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, comm);
        if (all != (long) size * (size - 1) / 2 + (long) size * i) {
            fprintf(stderr, "%ld is wrong\n", all);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static void announce(int me, const char *what)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        fprintf(stderr, "CHOICE %s\n", what);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int me, np, remote;
    MPI_Comm without, half, between, some[SOME];
    MPI_Info info;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    sum(MPI_COMM_SELF);
    sum(MPI_COMM_WORLD);
    MPI_Info_create(&info);
    MPI_Info_set(info, "ompi_comm_coll_preference", "^correlated");
    announce(me, "key");
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &without);
    announce(me, "no key");
    sum(without);
    MPI_Info_free(&info);
    MPI_Comm_free(&without);
    MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &half);
    sum(half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, (me + 1) % 2, 7, &between);
    MPI_Comm_remote_size(between, &remote);
    for (int i = 0; i < CALLS; i++) {
        int one = 1, all = 0;
        MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, between);
        if (all != remote)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Comm_free(&between);
    MPI_Comm_free(&half);
    for (int i = 0; i < SOME; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &some[i]);
        sum(some[i]);
    }
    for (int i = 0; i < SOME; i++) {
        sum(some[i]);
        MPI_Comm_free(&some[i]);
    }
    if (me == 0)
        printf("OK\n");
    MPI_Finalize();
    return 0;
}

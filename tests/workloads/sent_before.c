/*
 * sent_before GATE DONE [LONG]: rank 0 sends a short message, and a long one if there is a third
 * argument, and calls MPI no more until the file DONE is there. Rank 1 does not call MPI before the
 * file GATE is there; then it receives all and makes DONE. In a job that was restarted in between,
 * what was sent may be in the log of rank 0 only, and its program is in no call.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LONG = 100000 };

static void await(const char *file)
{
    while (0 != access(file, F_OK)) {
        usleep(1000);
    }
}

int main(int argc, char **argv)
{
    static int numbers[LONG];
    int rank, size, first = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc < 3 || size != 2) {
        fprintf(stderr, "usage: sent_before GATE DONE [LONG], with two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    /* There is a connection. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank) {
        for (int i = 0; argc > 3 && i < LONG; i++) {
            numbers[i] = 3 * i;
        }
        first = 7;
        MPI_Send(&first, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
        if (argc > 3) MPI_Send(numbers, LONG, MPI_INT, 1, 2, MPI_COMM_WORLD);
        await(argv[2]);
    } else {
        await(argv[1]);
        MPI_Recv(&first, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (argc > 3) MPI_Recv(numbers, LONG, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        fclose(fopen(argv[2], "w"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    unsigned sum = (unsigned) first;
    for (int i = 0; i < LONG; i++) {
        sum = sum * 31 + (unsigned) numbers[i];
    }
    printf("HASH %d %x\n", rank, sum);
    MPI_Finalize();
    return 0;
}

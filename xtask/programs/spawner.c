/*
 * Starts as many processes as there are ranks, talks to them and parts from them, twice:
 * `spawner GATE`. It begins when the file GATE holds a number that is not 0. Prints OK.
 */
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

static int is_open(const char *gate)
{
    int number = 0;
    FILE *file = fopen(gate, "r");
    if (NULL != file) {
        if (1 != fscanf(file, "%d", &number)) {
            number = 0;
        }
        fclose(file);
    }
    return 0 != number;
}

static void child(MPI_Comm parents)
{
    int rank, number;
    MPI_Comm_rank(parents, &rank);
    MPI_Recv(&number, 1, MPI_INT, rank, 0, parents, MPI_STATUS_IGNORE);
    number++;
    MPI_Send(&number, 1, MPI_INT, rank, 0, parents);
    MPI_Comm_disconnect(&parents);
}

int main(int argc, char **argv)
{
    MPI_Comm parents, children;
    int rank, size, open = 0, good = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&parents);
    if (MPI_COMM_NULL != parents) {
        child(parents);
        MPI_Finalize();
        return 0;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    while (!open) {
        open = 0 == rank && is_open(argv[1]);
        MPI_Bcast(&open, 1, MPI_INT, 0, MPI_COMM_WORLD);
        usleep(10000);
    }
    for (int round = 0; round < 2; round++) {
        int number = 10 * round + rank;
        int told = number;
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, size, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children,
                       MPI_ERRCODES_IGNORE);
        MPI_Send(&number, 1, MPI_INT, rank, 0, children);
        MPI_Recv(&told, 1, MPI_INT, rank, 0, children, MPI_STATUS_IGNORE);
        good = good && number + 1 == told;
        MPI_Comm_disconnect(&children);
    }
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (0 == rank) {
        puts(good ? "OK" : "wrong");
    }
    MPI_Finalize();
    return good ? 0 : 1;
}

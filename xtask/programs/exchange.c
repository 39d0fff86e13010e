/* For the error tests of `cargo xtask test`: every rank exchanges with every other for a while.
 *   exchange [MS [RANK SIGNAL]]   after half of the time RANK sends itself SIGNAL. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) / 1000 : 0;
    int victim = argc > 2 ? atoi(argv[2]) : -1, number = argc > 3 ? atoi(argv[3]) : SIGKILL;
    int rank, on = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    static char out[64 << 10], in[64 << 10];
    for (double start = MPI_Wtime(); on;) {
        double now = MPI_Wtime() - start;
        if (rank == victim && now > seconds / 2)
            raise(number);
        int size;
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        for (int shift = 1; shift < size; shift++)
            MPI_Sendrecv(out, sizeof out, MPI_CHAR, (rank + shift) % size, 1, in, sizeof in,
                         MPI_CHAR, (rank - shift + size) % size, 1, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
        int mine = now < seconds;
        MPI_Allreduce(&mine, &on, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    if (rank == 0)
        puts("OK");
    MPI_Finalize();
    return 0;
}

/*
 * holds_file ROUNDS FILE RANK: RANK opens FILE, which it makes, and holds it open; all ranks
 * exchange messages. In the end RANK writes into the file. The job prints a hash of what rank 0 has
 * received.
 */
#include <mpi.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size, file = -1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 4) {
        fprintf(stderr, "usage: holds_file ROUNDS FILE RANK\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == atoi(argv[3])) {
        file = open(argv[2], O_RDWR | O_CREAT, 0600);
        if (file < 0) {
            perror(argv[2]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    uint64_t hash = 14695981039346656037u;
    for (long round = 0; round < atol(argv[1]); round++) {
        uint64_t mine = hash + (uint64_t) rank, all = 0;
        MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        hash = (hash ^ all) * 1099511628211u;
        usleep(1000);
    }
    if (file >= 0 && write(file, &hash, sizeof(hash)) != sizeof(hash)) {
        perror(argv[2]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0) {
        printf("HASH %016llx\n", (unsigned long long) hash);
    }
    MPI_Finalize();
    return 0;
}

/*
 * file_halves FOLDER: when FOLDER/go is there, rank 1 writes the second half of a file of both,
 * then rank 0 the first one (in any order, if FOLDER/end is there). When FOLDER/end is there, both
 * compare it with what it must be. Between the two nothing goes over MPI.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HALF = 100000 };

static int is_there(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return 0 == access(path, F_OK);
}

static void await(const char *folder, const char *name)
{
    while (!is_there(folder, name)) {
        usleep(1000);
    }
}

int main(int argc, char **argv)
{
    static char mine[HALF], all[2 * HALF + 1];
    char path[4096];
    struct stat now = {0};
    int rank, wrong = 0, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) {
        fprintf(stderr, "usage: file_halves FOLDER, with two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    snprintf(path, sizeof path, "%s/halves", argv[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    MPI_Barrier(MPI_COMM_WORLD);
    await(argv[1], "go");
    memset(mine, 'a' + rank, HALF);
    /* The first time. */
    while (0 == rank && now.st_size < 2 * HALF && !is_there(argv[1], "end")) {
        fstat(fd, &now);
        usleep(1000);
    }
    if (HALF != pwrite(fd, mine, HALF, rank * HALF)) {
        perror(path);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    await(argv[1], "end");
    MPI_Barrier(MPI_COMM_WORLD);
    if (2 * HALF != pread(fd, all, sizeof all, 0)) {
        wrong++;
    }
    for (int i = 0; i < 2 * HALF; i++) {
        wrong += all[i] != 'a' + i / HALF;
    }
    MPI_Reduce(&wrong, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == rank) {
        printf("HASH %d bytes are wrong\n", sum);
    }
    MPI_Finalize();
    return 0;
}

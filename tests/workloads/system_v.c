/* Two ranks of a node take turns by System V semaphores until the file GO is there; then these are
 * removed, and the ranks go on by messages until the file END is there.
 * usage: system_v GO END, two ranks on one node */
#include <mpi.h>
#include <stdio.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <unistd.h>

static void must(int is_good, const char *what)
{
    if (!is_good) {
        perror(what);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

static void change(int id, int which, int by)
{
    struct sembuf operation = { .sem_num = (unsigned short) which, .sem_op = (short) by };
    must(0 == semop(id, &operation, 1), "semop");
}

int main(int argc, char **argv)
{
    int rank, size, id = -1, turns = 0, is_over = 0, all[2];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    must(3 == argc && 2 == size, "usage: system_v GO END, two ranks");
    if (0 == rank) {
        id = semget(IPC_PRIVATE, 2, 0600);
        must(id >= 0, "semget");
        change(id, 0, 1);
    }
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    while (!is_over) {
        change(id, rank, -1);
        turns++;
        change(id, 1 - rank, 1);
        usleep(1000);
        is_over = 0 == rank && 0 == access(argv[1], F_OK);
        MPI_Bcast(&is_over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == rank)
        must(0 == semctl(id, 0, IPC_RMID), "semctl");
    for (is_over = 0; !is_over;) {
        usleep(1000);
        is_over = 0 == rank && 0 == access(argv[2], F_OK);
        MPI_Bcast(&is_over, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    MPI_Gather(&turns, 1, MPI_INT, all, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (0 == rank)
        printf("HASH %d turns more\n", all[0] - all[1]);
    MPI_Finalize();
    return 0;
}

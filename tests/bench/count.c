/* Messages whose instructions can be counted: nobody waits inside MPI, so nobody spins.
 *
 * usage: count MESSAGES BYTES FILE      (two ranks of one node, under
 *        valgrind --tool=callgrind --toggle-collect='measured_*')
 * Rank 0 sends a batch of messages that go out at once; when it says in FILE, which both map, that
 * they are all on their way, rank 1 receives them, in order. Callgrind counts inside measured_send
 * (rank 0) and measured_receive (rank 1) only. The difference between two runs with different
 * numbers of MESSAGES is the cost of a message; what is done once goes out of it.
 */
#include <fcntl.h>
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BATCH = 16, BYTES_MAX = 4096 };

static char buffer[BYTES_MAX];

__attribute__((noinline)) void measured_send(int bytes)
{
    MPI_Send(buffer, bytes, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
    __asm__ volatile("" ::: "memory"); /* no tail call: callgrind must see the return */
}

__attribute__((noinline)) void measured_receive(int bytes)
{
    MPI_Recv(buffer, bytes, MPI_CHAR, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    __asm__ volatile("" ::: "memory");
}

/* The file and its size are the same for both ranks; whoever comes first makes it. */
static atomic_int *map(const char *file)
{
    int descriptor = open(file, O_RDWR | O_CREAT, 0600);
    if (descriptor < 0 || ftruncate(descriptor, 4096) != 0) return NULL;
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    return MAP_FAILED == at ? NULL : at;
}

static void await(atomic_int *turn, int value)
{
    while (atomic_load(turn) != value) sched_yield();
}

int main(int argc, char **argv)
{
    int me, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int messages = argc > 1 ? atoi(argv[1]) : 0, bytes = argc > 2 ? atoi(argv[2]) : -1;
    atomic_int *turn = argc > 3 ? map(argv[3]) : NULL;
    if (NULL == turn || size != 2 || bytes < 0 || bytes > BYTES_MAX) {
        if (0 == me) fprintf(stderr, "usage: count MESSAGES BYTES FILE, with two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int batch = 0; batch * BATCH < messages; batch++) {
        if (0 == me) {
            await(turn, 2 * batch);
            for (int i = 0; i < BATCH; i++) measured_send(bytes);
            atomic_store(turn, 2 * batch + 1);
        } else {
            await(turn, 2 * batch + 1);
            for (int i = 0; i < BATCH; i++) measured_receive(bytes);
            atomic_store(turn, 2 * batch + 2);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (0 == me) (void) unlink(argv[3]);
    MPI_Finalize();
    return 0;
}

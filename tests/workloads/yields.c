/* How often calls that find nothing give the processor away, for each time may cost a slice of a
 * thread that never sleeps. The program's own sched_yield counts.
 * Prints for each call how often it was made and how often the processor was given away; exit code
 * 1 if that is too often or too seldom.
 * usage: yields CALLS LEAST MOST (in percent of the calls) ; linked with -rdynamic ; 2 ranks */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static long yields;

int sched_yield(void)
{
    __atomic_add_fetch(&yields, 1, __ATOMIC_RELAXED);
    return (int) syscall(SYS_sched_yield);
}

enum { TEST, TEST_ANY, TEST_ALL, TEST_SOME, GET_STATUS, IPROBE, IMPROBE, KINDS };
static const char *const names[KINDS] = { "MPI_Test", "MPI_Testany", "MPI_Testall", "MPI_Testsome",
                                          "MPI_Request_get_status", "MPI_Iprobe", "MPI_Improbe" };

static int ask(int kind, MPI_Request *request)
{
    int flag = 0, index;
    MPI_Message message;
    switch (kind) {
    case TEST:
        MPI_Test(request, &flag, MPI_STATUS_IGNORE);
        break;
    case TEST_ANY:
        MPI_Testany(1, request, &index, &flag, MPI_STATUS_IGNORE);
        break;
    case TEST_ALL:
        MPI_Testall(1, request, &flag, MPI_STATUSES_IGNORE);
        break;
    case TEST_SOME:
        MPI_Testsome(1, request, &flag, &index, MPI_STATUSES_IGNORE);
        break;
    case GET_STATUS:
        MPI_Request_get_status(*request, &flag, MPI_STATUS_IGNORE);
        break;
    case IPROBE:
        MPI_Iprobe(0, 2, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        break;
    default:
        MPI_Improbe(0, 2, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE);
    }
    return flag;
}

int main(int argc, char **argv)
{
    int me, wrong = 0, value = 0;
    if (4 != argc) {
        fprintf(stderr, "usage: yields CALLS LEAST MOST\n");
        return 2;
    }
    const long calls = atol(argv[1]), least = atol(argv[2]), most = atol(argv[3]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    if (1 == me) {
        MPI_Request request;
        MPI_Irecv(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, &request);
        for (int kind = 0; kind < KINDS; kind++) {
            long before = __atomic_load_n(&yields, __ATOMIC_RELAXED);
            for (long i = 0; i < calls; i++) {
                if (0 != ask(kind, &request)) {
                    printf("FAIL %s: a message that was not sent\n", names[kind]);
                    MPI_Abort(MPI_COMM_WORLD, 2);
                }
            }
            long here = __atomic_load_n(&yields, __ATOMIC_RELAXED) - before;
            printf("%s: %ld calls, %ld yields\n", names[kind], calls, here);
            wrong |= 100 * here > most * calls || 100 * here < least * calls;
        }
        MPI_Send(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    } else if (0 == me) {
        MPI_Recv(&value, 1, MPI_INT, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&value, 1, MPI_INT, 1, 1, MPI_COMM_WORLD);
    }
    fflush(stdout);
    MPI_Finalize();
    return wrong;
}

/* Checkpoints are taken while each rank is in the middle of polling for what came first, in its own
 * way. The first and the last rank answer later, in an order that is another one in the second
 * incarnation: what the ranks in between observe must be what they observed in the first.
 * usage: at_checkpoint FOLDER (FOLDER/go: the checkpoints are there; FOLDER/second: this is the
 * second incarnation; what a rank observes goes to FOLDER/observed.RANK) */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER = 1, WAYS = 8 };

static int me, np, got[2];
static MPI_Request wanted[2];
static char observed[256];

static int exists(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void observe(const char *what, long value)
{
    size_t length = strlen(observed);
    snprintf(observed + length, sizeof observed - length, " %s %ld", what, value);
}

static void answer(const char *folder)
{
    while (!exists(folder, "go"))
        usleep(1000);
    /* Only when, not what. */
    if ((me == 0) == exists(folder, "second"))
        usleep(300000);
    for (int rank = 1; rank < np - 1; rank++)
        MPI_Send(&me, 1, MPI_INT, rank, ANSWER, MPI_COMM_WORLD);
}

static void by_any(int wait)
{
    for (int left = 2; left > 0;) {
        long vain = 0;
        int place, flag = 1;
        do {
            if (wait)
                MPI_Waitany(2, wanted, &place, MPI_STATUS_IGNORE);
            else
                MPI_Testany(2, wanted, &place, &flag, MPI_STATUS_IGNORE);
        } while (!flag && ++vain);
        observe("in vain", vain);
        observe("place", place);
        left--;
    }
}

static void by_some(int wait)
{
    for (int left = 2; left > 0;) {
        long vain = 0;
        int places[2], count;
        do {
            if (wait)
                MPI_Waitsome(2, wanted, &count, places, MPI_STATUSES_IGNORE);
            else
                MPI_Testsome(2, wanted, &count, places, MPI_STATUSES_IGNORE);
        } while (count == 0 && ++vain);
        observe("in vain", vain);
        for (int i = 0; i < count; i++, left--)
            observe("place", places[i]);
    }
}

static void by_test(void)
{
    for (long left = 2, vain = 0; left > 0;) {
        for (int place = 0; place < 2; place++) {
            int flag;
            if (wanted[place] == MPI_REQUEST_NULL)
                continue;
            MPI_Test(&wanted[place], &flag, MPI_STATUS_IGNORE);
            if (flag) {
                observe("in vain", vain);
                observe("place", place);
                left--;
            } else {
                vain++;
            }
        }
    }
}

static void by_testall(void)
{
    long vain = 0;
    int flag = 0;
    while (!flag) {
        MPI_Testall(2, wanted, &flag, MPI_STATUSES_IGNORE);
        vain += !flag;
    }
    observe("in vain", vain);
}

static void by_probe(void)
{
    for (int i = 0; i < 2; i++) {
        long vain = 0;
        MPI_Status status;
        for (int flag = 0; !flag; vain += !flag)
            MPI_Iprobe(MPI_ANY_SOURCE, ANSWER, MPI_COMM_WORLD, &flag, &status);
        MPI_Recv(&got[0], 1, MPI_INT, status.MPI_SOURCE, ANSWER, MPI_COMM_WORLD, &status);
        observe("in vain", vain);
        observe("from", got[0]);
    }
}

static void by_receive(void)
{
    for (int i = 0; i < 2; i++) {
        MPI_Recv(&got[0], 1, MPI_INT, MPI_ANY_SOURCE, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        observe("from", got[0]);
    }
}

static void ask(const char *folder)
{
    int way = (me - 1) % WAYS;
    for (int place = 0; place < 2 && way < 6; place++)
        MPI_Irecv(&got[place], 1, MPI_INT, place * (np - 1), ANSWER, MPI_COMM_WORLD,
                  &wanted[place]);
    switch (way) {
    case 0: by_any(1); break;
    case 1: by_some(1); break;
    case 2: by_any(0); break;
    case 3: by_some(0); break;
    case 4: by_test(); break;
    case 5: by_testall(); break;
    case 6: by_probe(); break;
    default: by_receive(); break;
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/observed.%d", folder, me);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "way %d:%s\n", way, observed) < 0 || fclose(file) != 0)
        MPI_Abort(MPI_COMM_WORLD, 3);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "/tmp";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (me == 0 || me == np - 1)
        answer(folder);
    else
        ask(folder);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0 && !exists(folder, "second"))
        raise(SIGKILL);
    if (me == 0)
        printf("OK\n");
    MPI_Finalize();
    return 0;
}

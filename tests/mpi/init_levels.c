/* ranks: 1,2,4 ; nodes: 1,2,3 ; args: init | single | funneled | serialized | multiple */
/* MPI_Init and MPI_Init_thread at every level; queries before, between and after; messages from the
 * threads that the level allows. MPI 3.1 sections 8.7, 12.4. */
#include "check.h"
#include <pthread.h>

static int provided, turn;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void ring(int tag)
{
    int x = me + tag, y = -1;
    MPI_Sendrecv(&x, 1, MPI_INT, (me + 1) % np, tag, &y, 1, MPI_INT, (me + np - 1) % np, tag,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQ(y, (me + np - 1) % np + tag, "ring");
}

static void *from_thread(void *argument)
{
    int main_thread = 1, number = (int)(intptr_t)argument;
    MPI_Is_thread_main(&main_thread);
    CHECK(!main_thread, "a thread is taken for the main thread");
    for (int k = 0; k < 20; k++) {
        if (provided == MPI_THREAD_MULTIPLE) {
            ring(number * 100 + k);
        } else { /* serialized: one after the other, the same order on every rank */
            for (bool mine = false; !mine;) {
                pthread_mutex_lock(&lock);
                mine = turn % 2 == number;
                if (mine) {
                    ring(turn);
                    turn++;
                }
                pthread_mutex_unlock(&lock);
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"single", "funneled", "serialized", "multiple"};
    static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED,
                                 MPI_THREAD_MULTIPLE};
    const char *name = argc > 1 ? argv[1] : "init";
    int flag = -1, level = -1, main_thread = 0;
    signal(SIGALRM, check_alarm);
    alarm(60);
    MPI_Initialized(&flag);
    CHECK_EQ(flag, 0, "initialized before MPI_Init");
    MPI_Finalized(&flag);
    CHECK_EQ(flag, 0, "finalized before MPI_Init");
    if (!strcmp(name, "init")) {
        MPI_Init(&argc, &argv);
        MPI_Query_thread(&provided);
    } else {
        for (int k = 0; k < 4; k++)
            if (!strcmp(name, names[k]))
                MPI_Init_thread(&argc, &argv, level = levels[k], &provided);
        CHECK(level >= 0, "what is %s?", name);
        CHECK(provided >= level, "asked for %d, got %d", level, provided);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Initialized(&flag);
    CHECK_EQ(flag, 1, "initialized");
    MPI_Query_thread(&level);
    CHECK_EQ(level, provided, "MPI_Query_thread");
    MPI_Is_thread_main(&main_thread);
    CHECK_EQ(main_thread, 1, "main thread");
    for (int k = 0; k < 50; k++)
        ring(k);
    if (provided >= MPI_THREAD_SERIALIZED) {
        pthread_t t[2];
        for (int k = 0; k < 2; k++)
            pthread_create(&t[k], NULL, from_thread, (void *)(intptr_t)k);
        for (int k = 0; k < 2; k++)
            pthread_join(t[k], NULL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        printf("OK\n");
    fflush(stdout);
    MPI_Finalize();
    MPI_Finalized(&flag);
    CHECK_EQ(flag, 1, "finalized");
    return 0;
}

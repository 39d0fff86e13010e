/* ranks: 2,3,4 ; nodes: 1,2,3 ; thread: multiple */
/* MPI_THREAD_MULTIPLE: four threads a rank, each with its own communicator, or one communicator and
 * tags of their own; blocking, nonblocking, large; collectives on communicators of their own. */
#include "threads.h"

static void exchange(MPI_Comm comm, int tag, int rounds, uint64_t *seed)
{
    static const int sizes[] = {0, 4, 100, 4096, 5000, 66000, 200000};
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *out = buffer_new(200000), *in = buffer_new(200000);
    for (int k = 0; k < rounds; k++) {
        int n = sizes[mix64((uint64_t)(k * 4 + tag)) % LENGTH(sizes)],
            way = (int)random_below(seed, 4);
        MPI_Request r[2];
        MPI_Status st[2];
        fill(out, (size_t)n, key_of(me, tag, k, n));
        poison(in, (size_t)n);
        if (way == 0) {
            MPI_Irecv(in, n, MPI_BYTE, previous, tag, comm, &r[0]);
            MPI_Send(out, n, MPI_BYTE, next, tag, comm);
            MPI_Wait(&r[0], &st[0]);
        } else if (way == 1) {
            MPI_Isend(out, n, MPI_BYTE, next, tag, comm, &r[1]);
            MPI_Recv(in, n, MPI_BYTE, previous, tag, comm, &st[0]);
            MPI_Wait(&r[1], MPI_STATUS_IGNORE);
        } else if (way == 2) {
            MPI_Irecv(in, n, MPI_BYTE, previous, tag, comm, &r[0]);
            MPI_Issend(out, n, MPI_BYTE, next, tag, comm, &r[1]);
            MPI_Waitall(2, r, st);
        } else {
            int flag = 0;
            MPI_Irecv(in, n, MPI_BYTE, previous, tag, comm, &r[0]);
            MPI_Isend(out, n, MPI_BYTE, next, tag, comm, &r[1]);
            while (!flag)
                MPI_Testall(2, r, &flag, st);
        }
        STATUS(&st[0], previous, tag, n);
        VERIFY(in, n, key_of(previous, tag, k, n), "of a thread");
    }
    buffer_free(out);
    buffer_free(in);
}

static void *own_communicator(void *argument)
{
    struct thread *t = argument;
    exchange(t->comm, 7, 80, &t->seed);
    return NULL;
}

static void *own_tag(void *argument)
{
    struct thread *t = argument;
    exchange(MPI_COMM_WORLD, 100 + t->number, 80, &t->seed);
    return NULL;
}

static void *collectives(void *argument)
{
    struct thread *t = argument;
    for (int k = 0; k < 80; k++) {
        long x = me + k * t->number, y = -1, all[64];
        MPI_Request r;
        MPI_Allreduce(&x, &y, 1, MPI_LONG, MPI_SUM, t->comm);
        CHECK_EQ(y, (long)np * k * t->number + np * (np - 1) / 2, "allreduce of a thread");
        MPI_Iallgather(&x, 1, MPI_LONG, all, 1, MPI_LONG, t->comm, &r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        for (int p = 0; p < np; p++)
            CHECK_EQ(all[p], p + k * t->number, "iallgather of a thread");
        MPI_Barrier(t->comm);
    }
    return NULL;
}

/* Everybody isends; a thread completes the requests that another has started. */
static MPI_Request handed[THREADS];
static int handed_out[THREADS], handed_in[THREADS];
static pthread_barrier_t meeting;
static void *handed_over(void *argument)
{
    struct thread *t = argument;
    for (int k = 0; k < 40; k++) {
        int mine = t->number, other = (t->number + 1) % THREADS;
        MPI_Request s;
        handed_out[mine] = me * 1000 + k;
        handed_in[mine] = -1;
        MPI_Irecv(&handed_in[mine], 1, MPI_INT, (me + np - 1) % np, 200 + mine, MPI_COMM_WORLD,
                  &handed[mine]);
        MPI_Isend(&handed_out[mine], 1, MPI_INT, (me + 1) % np, 200 + mine, MPI_COMM_WORLD, &s);
        pthread_barrier_wait(&meeting);
        MPI_Wait(&handed[other], MPI_STATUS_IGNORE);
        CHECK_EQ(handed_in[other], (me + np - 1) % np * 1000 + k, "request of another thread");
        MPI_Wait(&s, MPI_STATUS_IGNORE);
        pthread_barrier_wait(&meeting);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    MPI_Comm comm[THREADS];
    check_begin_thread(&argc, &argv, MPI_THREAD_MULTIPLE);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[k]);
    pthread_barrier_init(&meeting, NULL, THREADS);
    for (int round = 0; round < 2; round++) {
        STEP("own communicators");
        threads_run(own_communicator, comm);
        STEP("own tags");
        threads_run(own_tag, NULL);
        STEP("collectives");
        threads_run(collectives, comm);
        STEP("handed over");
        threads_run(handed_over, NULL);
    }
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_free(&comm[k]);
    return check_end();
}

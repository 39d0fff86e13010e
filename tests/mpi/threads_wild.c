/* ranks: 2,3,4 ; nodes: 1,2,3 ; thread: multiple */
/* MPI_THREAD_MULTIPLE: threads that compete for messages with wildcards and with mprobe, threads
 * that wait in a blocking receive while others of the rank send, communicators made by threads. */
#include "threads.h"
#include <stdatomic.h>

enum { EACH = 120 };
static atomic_int received, taken[64 * EACH];

static const int sizes[] = {8, 60, 4000, 5000, 70000};
static int size_of(int k)
{
    return sizes[mix64((uint64_t)k) % LENGTH(sizes)];
}

/* Each thread sends its share to all others. */
static void send_share(int thread, int tag)
{
    unsigned char *out = buffer_new(70000);
    for (int k = thread; k < EACH; k += THREADS)
        for (int peer = 0; peer < np; peer++)
            if (peer != me) {
                int n = size_of(k);
                fill(out, (size_t)n, key_of(me, tag, k, peer));
                memcpy(out, &k, sizeof k);
                MPI_Send(out, n, MPI_BYTE, peer, tag, MPI_COMM_WORLD);
            }
    buffer_free(out);
}

static void account(unsigned char *in, MPI_Status *st, int tag)
{
    int k, n;
    MPI_Get_count(st, MPI_BYTE, &n);
    memcpy(&k, in, sizeof k);
    CHECK(k >= 0 && k < EACH && n == size_of(k) && st->MPI_TAG == tag, "message %d of %d bytes", k,
          n);
    unsigned char *expected = buffer_new((size_t)n);
    fill(expected, (size_t)n, key_of(st->MPI_SOURCE, tag, k, me));
    memcpy(expected, &k, sizeof k);
    CHECK(!memcmp(in, expected, (size_t)n), "bytes of message %d", k);
    buffer_free(expected);
    CHECK(atomic_fetch_add(&taken[st->MPI_SOURCE * EACH + k], 1) == 0, "message %d came twice", k);
    atomic_fetch_add(&received, 1);
}

static void all_came(void)
{
    CHECK_EQ(atomic_load(&received), EACH * (np - 1), "messages in all");
    for (int p = 0; p < np; p++)
        for (int k = 0; k < EACH; k++)
            CHECK_EQ(atomic_exchange(&taken[p * EACH + k], 0), p != me, "times a message came");
    atomic_store(&received, 0);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Half of the threads receive from anywhere in blocking calls, half send. */
static void *wildcards(void *argument)
{
    struct thread *t = argument;
    if (t->number % 2) {
        unsigned char *in = buffer_new(70000);
        int mine = EACH * (np - 1) / 2 + (t->number == 1 ? EACH * (np - 1) % 2 : 0);
        for (int k = 0; k < mine; k++) {
            MPI_Status st;
            MPI_Recv(in, 70000, MPI_BYTE, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, &st);
            account(in, &st, 5);
        }
        buffer_free(in);
    } else {
        send_share(t->number, 5);
        send_share(t->number + 1, 5);
    }
    return NULL;
}

/* All threads probe and receive with mprobe until everything has come; each sends as well. */
static void *mprobes(void *argument)
{
    struct thread *t = argument;
    MPI_Message m;
    MPI_Status st;
    unsigned char *in = buffer_new(70000);
    MPI_Request r[EACH * 4];
    unsigned char *out[EACH * 4];
    int open = 0;
    for (int k = t->number; k < EACH; k += THREADS)
        for (int peer = 0; peer < np; peer++)
            if (peer != me) {
                int n = size_of(k);
                out[open] = buffer_new((size_t)n);
                fill(out[open], (size_t)n, key_of(me, 6, k, peer));
                memcpy(out[open], &k, sizeof k);
                MPI_Isend(out[open], n, MPI_BYTE, peer, 6, MPI_COMM_WORLD, &r[open]);
                open++;
            }
    while (atomic_load(&received) < EACH * (np - 1)) {
        int flag, n;
        MPI_Improbe(MPI_ANY_SOURCE, t->number % 2 ? 6 : MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &m,
                    &st);
        if (!flag)
            continue;
        MPI_Get_count(&st, MPI_BYTE, &n);
        if (t->number % 2) {
            MPI_Mrecv(in, n, MPI_BYTE, &m, &st);
        } else {
            MPI_Request q;
            MPI_Imrecv(in, n, MPI_BYTE, &m, &q);
            MPI_Wait(&q, &st);
        }
        account(in, &st, 6);
    }
    MPI_Waitall(open, r, MPI_STATUSES_IGNORE);
    for (int k = 0; k < open; k++)
        buffer_free(out[k]);
    buffer_free(in);
    return NULL;
}

/* One thread sits in a receive that is answered only after the others have talked for a while. */
static void *one_waits(void *argument)
{
    struct thread *t = argument;
    int x = 1, next = (me + 1) % np, previous = (me + np - 1) % np;
    if (t->number == 0) {
        MPI_Recv(&x, 1, MPI_INT, previous, 300, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK_EQ(x, previous + 10, "late message");
    } else {
        for (int k = 0; k < 200; k++) {
            int y = -1;
            x = k;
            MPI_Sendrecv(&x, 1, MPI_INT, next, 300 + t->number, &y, 1, MPI_INT, previous,
                         300 + t->number, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK_EQ(y, k, "while another thread waits");
        }
        if (t->number == 1) {
            x = me + 10;
            MPI_Send(&x, 1, MPI_INT, next, 300, MPI_COMM_WORLD);
        }
    }
    return NULL;
}

/* Each thread makes and frees communicators out of its own. */
static void *churn(void *argument)
{
    struct thread *t = argument;
    for (int k = 0; k < 40; k++) {
        MPI_Comm comm;
        int y = -1;
        MPI_Comm_dup(t->comm, &comm);
        MPI_Sendrecv(&k, 1, MPI_INT, (me + 1) % np, 1, &y, 1, MPI_INT, (me + np - 1) % np, 1, comm,
                     MPI_STATUS_IGNORE);
        CHECK_EQ(y, k, "on a communicator of a thread");
        MPI_Comm_free(&comm);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    MPI_Comm comm[THREADS];
    check_begin_thread(&argc, &argv, MPI_THREAD_MULTIPLE);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[k]);
    for (int round = 0; round < 2; round++) {
        STEP("wildcards");
        threads_run(wildcards, NULL);
        all_came();
        STEP("mprobe");
        threads_run(mprobes, NULL);
        all_came();
        STEP("one waits");
        threads_run(one_waits, NULL);
        STEP("churn");
        threads_run(churn, comm);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_free(&comm[k]);
    return check_end();
}

/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Windows of other communicators than MPI_COMM_WORLD: oneself, halves, ranks in reverse order,
 * groups that overlap, a communicator that is freed while its window lives, and messages on it with
 * any tag from anybody, which must not see what the window does. MPI 3.1 section 11.2.1. */
#include "windows.h"

/* Everybody adds its number in the communicator to everybody, and puts it at its place. */
static void use(struct window *w, int number)
{
    long *mine = (long *)w->base, x = w->rank + 1;
    STEP("window of communicator %d", number);
    MPI_Win_lock_all(0, w->win);
    mine[0] = 0;
    meet(w);
    for (int k = 0; k < w->ranks; k++) {
        MPI_Accumulate(&x, 1, MPI_LONG, k, at(w, k, 0), 1, MPI_LONG, MPI_SUM, w->win);
        MPI_Put(&x, 1, MPI_LONG, k, at(w, k, 8 * (1 + w->rank)), 1, MPI_LONG, w->win);
    }
    meet(w);
    CHECK_EQ(mine[0], w->ranks * (w->ranks + 1) / 2, "sum");
    for (int k = 0; k < w->ranks; k++)
        CHECK_EQ(mine[1 + k], k + 1, "put");
    MPI_Win_unlock_all(w->win);
    MPI_Barrier(w->comm);
}

static void window_on(MPI_Comm comm, int number)
{
    for (int flavour = 0; flavour < FLAVOURS; flavour++) {
        struct window w;
        if (!window_open(&w, (enum flavour)flavour, comm, 8 * 65, 8))
            continue;
        use(&w, number);
        window_close(&w);
    }
}

/* Two windows of different groups at the same time; who is in both uses them in turn. */
static void overlapping(void)
{
    MPI_Comm low, high;
    struct window a, b;
    if (np < 3)
        return;
    MPI_Comm_split(MPI_COMM_WORLD, me < np - 1 ? 1 : MPI_UNDEFINED, me, &low);
    MPI_Comm_split(MPI_COMM_WORLD, me > 0 ? 1 : MPI_UNDEFINED, -me, &high);
    if (low != MPI_COMM_NULL)
        window_open(&a, ALLOCATE, low, 8 * 65, 8);
    if (high != MPI_COMM_NULL)
        window_open(&b, CREATE, high, 8 * 65, 8);
    for (int round = 0; round < 10; round++) {
        if (low != MPI_COMM_NULL)
            use(&a, 100 + round);
        if (high != MPI_COMM_NULL)
            use(&b, 200 + round);
    }
    if (high != MPI_COMM_NULL) {
        window_close(&b);
        MPI_Comm_free(&high);
    }
    if (low != MPI_COMM_NULL) {
        window_close(&a);
        MPI_Comm_free(&low);
    }
}

/* Receives from anybody with any tag, and probes, on the window's communicator meanwhile. */
static void beside_messages(void)
{
    MPI_Win win;
    MPI_Comm comm;
    long *base, one = 1, in[3], old;
    int next = (me + 1) % np, previous = (me + np - 1) % np, flag;
    MPI_Request r[3], collective;
    MPI_Status status;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Win_allocate(64, 8, MPI_INFO_NULL, comm, &base, &win);
    base[0] = 0;
    MPI_Barrier(comm);
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < 40; round++) {
        STEP("beside messages, round %d", round);
        for (int k = 0; k < 3; k++)
            MPI_Irecv(&in[k], 1, MPI_LONG, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &r[k]);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag, "a message that nobody has sent");
        for (int k = 0; k < np; k++)
            MPI_Fetch_and_op(&one, &old, MPI_LONG, k, 0, MPI_SUM, win);
        MPI_Ibarrier(comm, &collective);
        MPI_Win_flush_all(win);
        for (long k = 0; k < 3; k++) {
            long out = me * 1000 + round * 10 + k;
            MPI_Send(&out, 1, MPI_LONG, next, (int)k + 7, comm);
        }
        for (int k = 0; k < 3; k++) {
            MPI_Wait(&r[k], &status);
            STATUS(&status, previous, k + 7, 8);
            CHECK_EQ(in[k], previous * 1000 + round * 10 + k, "message");
        }
        MPI_Wait(&collective, MPI_STATUS_IGNORE);
        /* all have sent in this round; all that was added before the barrier is there */
        MPI_Fetch_and_op(NULL, &old, MPI_LONG, next, 0, MPI_NO_OP, win);
        MPI_Win_flush(next, win);
        CHECK(old >= (round + 1l) && old <= (round + 2l) * np, "counter %ld", old);
        MPI_Barrier(comm);
    }
    MPI_Win_unlock_all(win);
    MPI_Comm_free(&comm); /* the window lives on */
    MPI_Win_fence(0, win);
    CHECK_EQ(base[0], 40 * np, "counter");
    MPI_Win_fence(0, win);
    MPI_Put(&one, 1, MPI_LONG, next, 1, 1, MPI_LONG, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    CHECK_EQ(base[1], 1, "put when the communicator is gone");
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    MPI_Comm comm;
    check_begin(&argc, &argv);
    window_on(MPI_COMM_SELF, 1);
    MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &comm);
    window_on(comm, 2);
    MPI_Comm_free(&comm);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &comm);
    window_on(comm, 3);
    MPI_Comm_free(&comm);
    MPI_Comm_split(MPI_COMM_WORLD, me == 0 ? 0 : 1 + me / 2, me, &comm);
    window_on(comm, 4);
    MPI_Comm_free(&comm);
    overlapping();
    beside_messages();
    return check_end();
}

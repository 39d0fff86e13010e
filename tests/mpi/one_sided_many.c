/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; args: | left ; stock args: --mca osc pt2pt */
/* Windows made and freed again and again, so that context ids come back at once; many at the same
 * time, with traffic on all of them; freed in another order than made, while other ranks are still
 * in MPI_Win_free. MPI 3.1 section 11.2.5. */
#include "windows.h"

/* A rank that is still freeing must not take what is for the next window. */
static void one_after_the_other(void)
{
    for (int round = 0; round < 40; round++) {
        struct window w;
        int next = (me + 1) % np, previous = (me + np - 1) % np, x = me * 1000 + round;
        window_open(&w, (enum flavour)(round % 3), MPI_COMM_WORLD, 64, 4);
        STEP("window %d", round);
        if (round % 2) {
            MPI_Win_fence(MPI_MODE_NOPRECEDE, w.win);
            MPI_Put(&x, 1, MPI_INT, next, at(&w, next, 8), 1, MPI_INT, w.win);
            MPI_Win_fence(MPI_MODE_NOSUCCEED, w.win);
            CHECK_EQ(((int *)w.base)[2], previous * 1000 + round, "put");
        } else {
            MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w.win);
            MPI_Put(&x, 1, MPI_INT, next, at(&w, next, 8), 1, MPI_INT, w.win);
            MPI_Win_unlock(next, w.win);
            if (round % 4 == 0) {
                MPI_Barrier(MPI_COMM_WORLD);
                MPI_Win_lock(MPI_LOCK_SHARED, me, 0, w.win);
                CHECK_EQ(((int *)w.base)[2], previous * 1000 + round, "put");
                MPI_Win_unlock(me, w.win);
            } /* else the free itself has to wait for what others do */
        }
        if (round % 5 == me % 5)
            sleep_ms(1);
        window_close(&w);
    }
}

static void many_at_once(void)
{
    enum { WINDOWS = 24, EACH = 10 };
    struct window w[WINDOWS];
    int next = (me + 1) % np, order[WINDOWS];
    long one = 1;
    uint64_t random = 5; /* the same for all: windows are freed by all in the same order */
    for (int k = 0; k < WINDOWS; k++) {
        window_open(&w[k], (enum flavour)(k % 3), MPI_COMM_WORLD, 64, 8);
        order[k] = k;
    }
    STEP("many windows");
    for (int k = 0; k < WINDOWS; k++)
        MPI_Win_lock_all(0, w[k].win);
    for (int i = 0; i < EACH; i++)
        for (int k = 0; k < WINDOWS; k++)
            for (int r = 0; r < np; r++)
                MPI_Accumulate(&one, 1, MPI_LONG, r, at(&w[k], r, 8 * (k % 8)), 1, MPI_LONG,
                               MPI_SUM, w[k].win);
    for (int k = WINDOWS - 1; k >= 0; k--)
        MPI_Win_flush_all(w[k].win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < WINDOWS; k++) {
        long got = -1;
        MPI_Get(&got, 1, MPI_LONG, next, at(&w[k], next, 8 * (k % 8)), 1, MPI_LONG, w[k].win);
        MPI_Win_unlock_all(w[k].win);
        CHECK_EQ(got, EACH * np, "sum");
    }
    for (int left = WINDOWS; left > 0; left--) {
        int pick = (int)random_below(&random, left);
        window_close(&w[order[pick]]);
        order[pick] = order[left - 1];
    }
}

/* Windows that are left to MPI_Finalize. */
static void left_over(void)
{
    static struct window w[3];
    for (int k = 0; k < 3; k++) {
        window_open(&w[k], (enum flavour)k, MPI_COMM_WORLD, 64, 8);
        MPI_Win_fence(MPI_MODE_NOPRECEDE, w[k].win);
        MPI_Win_fence(MPI_MODE_NOSUCCEED, w[k].win);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    one_after_the_other();
    many_at_once();
    if (argc > 1)
        left_over();
    return check_end();
}

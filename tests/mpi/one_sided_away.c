/* ranks: 2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* A target that is in another call of MPI serves its window all the same: in receives, sends that
 * wait for their match, probes, tests, collectives, epochs of other windows; so does one that opens
 * its own exposure late. MPI 3.1 section 11.7.3. */
#include "windows.h"

enum call { RECEIVE, SYNCHRONOUS, PROBE, TEST, TESTSOME, BARRIER, IBARRIER, LOCK, FENCE, CALLS };

/* Rank 0 waits in `call` until the others have used its window. */
static void target_waits(struct window *w, struct window *other, enum call call)
{
    long x = call + 1, y = -1, one = 1, *mine = (long *)w->base;
    MPI_Request r;
    int done = 0, index;
    STEP("%s: target in call %d", flavour_name[w->flavour], call);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me > 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w->win);
        MPI_Put(&x, 1, MPI_LONG, 0, at(w, 0, 8 * me), 1, MPI_LONG, w->win);
        MPI_Accumulate(&one, 1, MPI_LONG, 0, at(w, 0, 0), 1, MPI_LONG, MPI_SUM, w->win);
        MPI_Win_flush(0, w->win);
        MPI_Get(&y, 1, MPI_LONG, 0, at(w, 0, 8 * me), 1, MPI_LONG, w->win);
        MPI_Win_unlock(0, w->win);
        CHECK_EQ(y, x, "put and got back");
    }
    MPI_Comm others;
    MPI_Request ready = MPI_REQUEST_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, me > 0, me, &others);
    if (me == 0 && call == RECEIVE)
        MPI_Recv(&y, 1, MPI_LONG, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (me == 0 && call == SYNCHRONOUS)
        MPI_Ssend(&y, 1, MPI_LONG, 1, 1, MPI_COMM_WORLD);
    if (me == 0 && (call == PROBE || call == TEST || call == TESTSOME)) {
        MPI_Irecv(&y, 1, MPI_LONG, 1, call == PROBE ? 2 : 1, MPI_COMM_WORLD, &r);
        while (!done) {
            if (call == PROBE)
                MPI_Iprobe(1, 1, MPI_COMM_WORLD, &done, MPI_STATUS_IGNORE);
            else if (call == TEST)
                MPI_Test(&r, &done, MPI_STATUS_IGNORE);
            else
                MPI_Testsome(1, &r, &done, &index, MPI_STATUSES_IGNORE);
        }
        if (call == PROBE) {
            MPI_Recv(&y, 1, MPI_LONG, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Wait(&r, MPI_STATUS_IGNORE);
        }
    }
    if (me == 0 && call == LOCK) { /* another window's lock, which rank 1 has until then */
        MPI_Recv(&y, 1, MPI_LONG, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, other->win);
        MPI_Win_unlock(1, other->win);
    }
    if (me == 1 && call == LOCK) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 1, 0, other->win);
        MPI_Send(&x, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD);
    }
    for (int round = 0; round < 5 && me > 0; round++) { /* while rank 0 waits */
        MPI_Win_lock(round % 2 ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, 0, 0, w->win);
        MPI_Accumulate(&one, 1, MPI_LONG, 0, at(w, 0, 0), 1, MPI_LONG, MPI_SUM, w->win);
        MPI_Win_unlock(0, w->win);
    }
    if (me > 0)
        MPI_Barrier(others);
    if (me == 1 && (call == RECEIVE || (call >= PROBE && call <= TESTSOME)))
        MPI_Send(&x, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD);
    if (me == 1 && call == PROBE)
        MPI_Send(&x, 1, MPI_LONG, 0, 2, MPI_COMM_WORLD);
    if (me == 1 && call == SYNCHRONOUS)
        MPI_Recv(&y, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (me == 1 && call == LOCK)
        MPI_Win_unlock(1, other->win);
    if (call == IBARRIER) {
        MPI_Ibarrier(MPI_COMM_WORLD, &ready);
        MPI_Wait(&ready, MPI_STATUS_IGNORE);
    } else if (call == FENCE) {
        MPI_Win_fence(0, other->win);
        MPI_Win_fence(MPI_MODE_NOSUCCEED, other->win);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (me == 0) {
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, w->win);
        for (int k = 1; k < np; k++)
            CHECK_EQ(mine[k], call + 1, "put");
        CHECK_EQ(mine[0], 6 * (np - 1), "additions");
        mine[0] = 0;
        MPI_Win_unlock(0, w->win);
    }
    MPI_Comm_free(&others);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void body(struct window *w)
{
    struct window other;
    window_open(&other, CREATE, MPI_COMM_WORLD, 64, 8);
    for (int call = 0; call < CALLS; call++)
        target_waits(w, &other, (enum call)call);
    window_close(&other);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(512, 8, body);
    return check_end();
}

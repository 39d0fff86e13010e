/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Operations with requests: complete means that the origin's buffer may be used, and that what was
 * fetched is there; with all calls that complete requests, beside requests of messages. MPI 3.1
 * section 11.3.5. */
#include "windows.h"

enum { N = 3000 };

static void in_turn(struct window *w, int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    int *x = malloc((size_t)n * sizeof *x), *old = malloc((size_t)n * sizeof *old);
    int *mine = (int *)w->base;
    MPI_Request r;
    MPI_Status status;
    STEP("%s: one after the other, %d ints", flavour_name[w->flavour], n);
    for (int k = 0; k < n; k++)
        x[k] = me * 10000 + k;
    MPI_Rput(x, n, MPI_INT, next, at(w, next, 0), n, MPI_INT, w->win, &r);
    MPI_Wait(&r, &status);
    CHECK(r == MPI_REQUEST_NULL, "a completed request is null");
    for (int k = 0; k < n; k++)
        x[k] = 3;
    MPI_Win_flush(next, w->win);
    MPI_Rget(old, n, MPI_INT, next, at(w, next, 0), n, MPI_INT, w->win, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    for (int k = 0; k < n; k++)
        CHECK_EQ(old[k], me * 10000 + k, "rget");
    MPI_Raccumulate(x, n, MPI_INT, next, at(w, next, 0), n, MPI_INT, MPI_SUM, w->win, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    for (int k = 0; k < n; k++)
        x[k] = 5;
    MPI_Rget_accumulate(x, n, MPI_INT, old, n, MPI_INT, next, at(w, next, 0), n, MPI_INT, MPI_SUM,
                        w->win, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    for (int k = 0; k < n; k++)
        CHECK_EQ(old[k], me * 10000 + k + 3, "rget_accumulate: before");
    meet(w);
    for (int k = 0; k < n; k++)
        CHECK_EQ(mine[k], previous * 10000 + k + 8, "after all");
    meet(w);
    free(x);
    free(old);
}

/* All at once, with messages among them. */
static void together(struct window *w, int way)
{
    enum { EACH = 8, ALL = 3 * EACH + 2 };
    int next = (me + 1) % np, previous = (me + np - 1) % np, n = N / EACH, done = 0, out = me, in;
    int *x = malloc(N * sizeof *x), *got = malloc(N * sizeof *got), *mine = (int *)w->base;
    long one = 1, sum[EACH];
    long *counter = (long *)(w->base + 4 * N);
    MPI_Request r[ALL];
    STEP("%s: together, way %d", flavour_name[w->flavour], way);
    for (int k = 0; k < N; k++)
        mine[k] = me * 7 + k;
    *counter = 0;
    meet(w);
    for (int k = 0; k < EACH; k++)
        MPI_Rget(got + k * n, n, MPI_INT, next, at(w, next, 4 * k * n), n, MPI_INT, w->win, &r[k]);
    for (int k = 0; k < EACH; k++)
        MPI_Rget_accumulate(&one, 1, MPI_LONG, &sum[k], 1, MPI_LONG, next, at(w, next, 4 * N), 1,
                            MPI_LONG, MPI_SUM, w->win, &r[EACH + k]);
    for (int k = 0; k < EACH; k++) { /* to a place of its own */
        x[k] = me * 100 + k;
        MPI_Rput(&x[k], 1, MPI_INT, next, at(w, next, 4 * N + 8 + 4 * k), 1, MPI_INT, w->win,
                 &r[2 * EACH + k]);
    }
    MPI_Irecv(&in, 1, MPI_INT, previous, 5, MPI_COMM_WORLD, &r[3 * EACH]);
    MPI_Isend(&out, 1, MPI_INT, next, 5, MPI_COMM_WORLD, &r[3 * EACH + 1]);
    while (done < ALL) {
        int index, count = 0, flag = 0, indices[ALL];
        if (way == 0) {
            MPI_Waitall(ALL, r, MPI_STATUSES_IGNORE);
            done = ALL;
        } else if (way == 1) {
            MPI_Waitany(ALL, r, &index, MPI_STATUS_IGNORE);
            CHECK(index >= 0 && index < ALL, "index %d", index);
            done++;
        } else if (way == 2) {
            MPI_Testany(ALL, r, &index, &flag, MPI_STATUS_IGNORE);
            done += flag && index != MPI_UNDEFINED;
        } else if (way == 3) {
            MPI_Waitsome(ALL, r, &count, indices, MPI_STATUSES_IGNORE);
            done += count;
        } else if (way == 4) {
            MPI_Testall(ALL, r, &flag, MPI_STATUSES_IGNORE);
            done = flag ? ALL : 0;
        } else {
            for (int k = 0; k < ALL; k++) {
                if (r[k] == MPI_REQUEST_NULL)
                    continue;
                MPI_Request_get_status(r[k], &flag, MPI_STATUS_IGNORE);
                if (flag) {
                    MPI_Test(&r[k], &flag, MPI_STATUS_IGNORE);
                    CHECK(flag && r[k] == MPI_REQUEST_NULL, "its status said that it is complete");
                    done++;
                }
            }
        }
    }
    for (int k = 0; k < EACH * n; k++)
        CHECK_EQ(got[k], next * 7 + k, "rget");
    CHECK_EQ(in, previous, "message");
    for (int k = 0; k < EACH; k++)
        if (!stock_fails("osc/pt2pt: the order of MPI_Rget_accumulate"))
            CHECK_EQ(sum[k], k, "rget_accumulate in order");
    meet(w);
    CHECK_EQ(*counter, EACH, "sum");
    for (int k = 0; k < EACH; k++)
        CHECK_EQ(mine[N + 2 + k], previous * 100 + k, "rput");
    meet(w);
    free(x);
    free(got);
}

/* The epoch ends first: a flush completes what has requests, too. */
static void after_the_flush(struct window *w)
{
    int next = (me + 1) % np, x = me, got = -1, done = 0;
    MPI_Request r[2];
    STEP("%s: after the flush", flavour_name[w->flavour]);
    *(int *)w->base = me + 50;
    meet(w);
    MPI_Rget(&got, 1, MPI_INT, next, at(w, next, 0), 1, MPI_INT, w->win, &r[0]);
    MPI_Rput(&x, 1, MPI_INT, next, at(w, next, 4), 1, MPI_INT, w->win, &r[1]);
    MPI_Win_flush(next, w->win);
    CHECK_EQ(got, next + 50, "a get is complete after the flush");
    while (!done)
        MPI_Testall(2, r, &done, MPI_STATUSES_IGNORE);
    meet(w);
    CHECK_EQ(((int *)w->base)[1], (me + np - 1) % np, "rput");
}

static void body(struct window *w)
{
    MPI_Win_lock_all(0, w->win);
    in_turn(w, 1);
    in_turn(w, 70);
    in_turn(w, N);
    for (int way = 0; way < 6; way++)
        together(w, way);
    after_the_flush(w);
    MPI_Win_unlock_all(w->win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(4 * N + 200, 4, body);
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Nothing: counts of zero, types without bytes, windows without memory, MPI_PROC_NULL as the
 * target of every operation, in every kind of epoch. MPI 3.1 sections 11.2, 11.3. */
#include "windows.h"

static long x = 1, y = 2;

/* Every operation, towards a rank, of `n` elements of this type; nothing may change. */
static void all_operations(struct window *w, int target, int n, MPI_Datatype type, bool passive)
{
    MPI_Aint there = target >= 0 ? at(w, target, 0) : 0;
    bool is_basic = type == MPI_LONG;
    MPI_Request r[4];
    MPI_Put(&x, n, type, target, there, n, type, w->win);
    MPI_Get(&y, n, type, target, there, n, type, w->win);
    if (is_basic) {
        MPI_Accumulate(&x, n, type, target, there, n, type, MPI_SUM, w->win);
        MPI_Get_accumulate(&x, n, type, &y, n, type, target, there, n, type, MPI_SUM, w->win);
        MPI_Get_accumulate(NULL, 0, MPI_LONG, &y, n, type, target, there, n, type, MPI_NO_OP,
                           w->win);
    }
    if (target == MPI_PROC_NULL) {
        MPI_Fetch_and_op(&x, &y, MPI_LONG, target, there, MPI_SUM, w->win);
        MPI_Compare_and_swap(&x, &x, &y, MPI_LONG, target, there, w->win);
    }
    if (passive) {
        int k = 0;
        MPI_Rput(&x, n, type, target, there, n, type, w->win, &r[k++]);
        MPI_Rget(&y, n, type, target, there, n, type, w->win, &r[k++]);
        if (is_basic) {
            MPI_Raccumulate(&x, n, type, target, there, n, type, MPI_SUM, w->win, &r[k++]);
            MPI_Rget_accumulate(&x, n, type, &y, n, type, target, there, n, type, MPI_SUM, w->win,
                                &r[k++]);
        }
        MPI_Waitall(k, r, MPI_STATUSES_IGNORE);
        for (int i = 0; i < k; i++)
            CHECK(r[i] == MPI_REQUEST_NULL, "request %d is complete", i);
    }
    CHECK(x == 1 && y == 2, "x %ld, y %ld", x, y);
}

static void in_all_epochs(struct window *w, int target, int n, MPI_Datatype type)
{
    MPI_Group all;
    MPI_Win_get_group(w->win, &all);
    MPI_Win_fence(0, w->win);
    all_operations(w, target, n, type, false);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
    MPI_Win_post(all, 0, w->win);
    MPI_Win_start(all, 0, w->win);
    all_operations(w, target, n, type, false);
    MPI_Win_complete(w->win);
    MPI_Win_wait(w->win);
    MPI_Win_lock(MPI_LOCK_SHARED, target >= 0 ? target : 0, 0, w->win);
    all_operations(w, target, n, type, true);
    MPI_Win_unlock(target >= 0 ? target : 0, w->win);
    MPI_Win_lock_all(0, w->win);
    all_operations(w, target, n, type, true);
    MPI_Win_flush_all(w->win);
    MPI_Win_unlock_all(w->win);
    MPI_Group_free(&all);
}

static void body(struct window *w)
{
    MPI_Datatype none;
    MPI_Type_contiguous(0, MPI_LONG, &none);
    MPI_Type_commit(&none);
    long *mine = (long *)w->base;
    for (MPI_Aint k = 0; k < w->bytes / 8; k++)
        mine[k] = 3;
    MPI_Barrier(MPI_COMM_WORLD);
    STEP("%s: count 0", flavour_name[w->flavour]);
    in_all_epochs(w, (me + 1) % np, 0, MPI_LONG);
    STEP("%s: a type without bytes", flavour_name[w->flavour]);
    in_all_epochs(w, (me + 1) % np, 7, none);
    STEP("%s: MPI_PROC_NULL", flavour_name[w->flavour]);
    in_all_epochs(w, MPI_PROC_NULL, 1, MPI_LONG);
    MPI_Barrier(MPI_COMM_WORLD);
    for (MPI_Aint k = 0; k < w->bytes / 8; k++)
        CHECK_EQ(mine[k], 3, "nothing was written");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Type_free(&none);
}

/* Only the last rank has memory; with MPI_BOTTOM and with an address. */
static void uneven(bool bottom)
{
    long *memory = NULL, value = me + 1;
    MPI_Win win;
    STEP("a window of the last rank");
    if (me == np - 1)
        memory = calloc(64, sizeof *memory);
    MPI_Win_create(me == np - 1 ? (void *)memory : bottom ? MPI_BOTTOM : (void *)&value,
                   me == np - 1 ? 64 * 8 : 0, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    MPI_Win_fence(0, win);
    MPI_Put(&value, 1, MPI_LONG, np - 1, me, 1, MPI_LONG, win);
    MPI_Put(&value, 0, MPI_LONG, 0, 0, 0, MPI_LONG, win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    for (int k = 0; k < np && me == np - 1; k++)
        CHECK_EQ(memory[k], k + 1, "put");
    MPI_Win_free(&win);
    free(memory);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(64, 8, body);
    on_all_flavours(0, 8, body);
    uneven(true);
    uneven(false);
    return check_end();
}

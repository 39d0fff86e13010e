/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Post, start, complete, wait, test: neighbours, groups of different sizes, exposure and access at
 * the same time, epochs that follow each other at once, NOCHECK, empty groups, and who is late.
 * MPI 3.1 section 11.5.2. */
#include "windows.h"

static MPI_Group world;

static MPI_Group group_of(int count, const int *ranks)
{
    MPI_Group group;
    MPI_Group_incl(world, count, ranks, &group);
    return group;
}

/* Waits for the end of the exposure, by either call. */
static void end_exposure(struct window *w, bool by_test)
{
    int flag = 0;
    if (by_test)
        while (!flag)
            MPI_Win_test(w->win, &flag);
    else
        MPI_Win_wait(w->win);
}

/* Each rank has a value and a place for that of each neighbour; all post and start at once. */
static void neighbours(struct window *w)
{
    int left = (me + np - 1) % np, right = (me + 1) % np, both[2] = {left, right}, x, y;
    int *mine = (int *)w->base;
    MPI_Group group = group_of(left == right ? 1 : 2, both);
    for (int round = 0; round < 60; round++) {
        STEP("%s: neighbours, round %d", flavour_name[w->flavour], round);
        x = me * 1000 + round;
        MPI_Win_post(group, round % 3 ? 0 : MPI_MODE_NOSTORE, w->win);
        MPI_Win_start(group, 0, w->win);
        MPI_Put(&x, 1, MPI_INT, left, at(w, left, 4), 1, MPI_INT, w->win);
        MPI_Put(&x, 1, MPI_INT, right, at(w, right, 0), 1, MPI_INT, w->win);
        MPI_Win_complete(w->win);
        end_exposure(w, (round + me) % 2);
        CHECK_EQ(mine[0], left * 1000 + round, "from the left");
        CHECK_EQ(mine[1], right * 1000 + round, "from the right");
        /* what they have, without an epoch of mine that others need: the other direction */
        MPI_Win_post(group, MPI_MODE_NOPUT, w->win);
        MPI_Win_start(group, 0, w->win);
        MPI_Get(&y, 1, MPI_INT, right, at(w, right, 0), 1, MPI_INT, w->win);
        MPI_Win_complete(w->win);
        end_exposure(w, (round + me) % 3 == 0);
        CHECK_EQ(y, x, "mine, read there");
    }
    MPI_Group_free(&group);
}

/* One target after the other; the origins of each are those of higher rank. */
static void stairs(struct window *w)
{
    long *mine = (long *)w->base, x[500];
    for (int target = 0; target < np - 1; target++) {
        STEP("%s: stairs, target %d", flavour_name[w->flavour], target);
        int ranks[64], count = 0;
        for (int k = target + 1; k < np; k++)
            ranks[count++] = k;
        MPI_Group all = group_of(count, ranks), one = group_of(1, &target);
        if (me == target) {
            memset(mine, 0, 500 * sizeof *mine);
            MPI_Win_post(all, 0, w->win);
            end_exposure(w, target % 2);
            for (int k = 0; k < 500; k++)
                CHECK_EQ(mine[k], (long)count * k, "sums of all origins");
        } else if (me > target) {
            for (int k = 0; k < 500; k++)
                x[k] = k;
            MPI_Win_start(one, 0, w->win);
            MPI_Accumulate(x, 500, MPI_LONG, target, at(w, target, 0), 500, MPI_LONG, MPI_SUM,
                           w->win);
            MPI_Win_complete(w->win);
        }
        MPI_Group_free(&all);
        MPI_Group_free(&one);
    }
}

/* Origin and target are late in turn; the target posts with NOCHECK when both know that it has. */
static void late(struct window *w)
{
    int zero = 0, one = 1, x;
    if (np < 2 || me > 1)
        return;
    MPI_Group first = group_of(1, &zero), second = group_of(1, &one);
    for (int round = 0; round < 20; round++) {
        STEP("%s: late, round %d", flavour_name[w->flavour], round);
        /* Stock's osc/sm returns from MPI_Win_wait too early. */
        bool no_check = round % 4 == 3 && !stock_fails("MPI_MODE_NOCHECK of osc/sm");
        if (me == 0) {
            if (round % 2)
                sleep_ms(2);
            MPI_Win_post(second, no_check ? MPI_MODE_NOCHECK : 0, w->win);
            if (no_check)
                MPI_Send(NULL, 0, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
            end_exposure(w, round % 3 == 0);
            CHECK_EQ(*(int *)w->base, 7 * round, "put");
        } else {
            if (no_check)
                MPI_Recv(NULL, 0, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            else if (round % 2 == 0)
                sleep_ms(2);
            x = 7 * round;
            MPI_Win_start(first, no_check ? MPI_MODE_NOCHECK : 0, w->win);
            MPI_Put(&x, 1, MPI_INT, 0, at(w, 0, 0), 1, MPI_INT, w->win);
            MPI_Win_complete(w->win);
        }
    }
    MPI_Group_free(&first);
    MPI_Group_free(&second);
}

/* A test that comes too early says no, as often as one asks. */
static void not_yet(struct window *w)
{
    int zero = 0, one = 1, flag = 1;
    if (np < 2)
        return;
    MPI_Group first = group_of(1, &zero), second = group_of(1, &one);
    STEP("%s: not yet", flavour_name[w->flavour]);
    if (me == 0) {
        MPI_Win_post(second, 0, w->win);
        for (int k = 0; k < 100; k++) {
            MPI_Win_test(w->win, &flag);
            CHECK(!flag, "the origin waits for my message");
        }
        MPI_Send(NULL, 0, MPI_BYTE, 1, 8, MPI_COMM_WORLD);
        end_exposure(w, true);
    } else if (me == 1) {
        MPI_Win_start(first, 0, w->win);
        MPI_Recv(NULL, 0, MPI_BYTE, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Win_complete(w->win);
    }
    MPI_Group_free(&first);
    MPI_Group_free(&second);
}

static void nobody(struct window *w)
{
    STEP("%s: empty groups", flavour_name[w->flavour]);
    for (int k = 0; k < 10; k++) {
        int flag = 0;
        MPI_Win_post(MPI_GROUP_EMPTY, 0, w->win);
        MPI_Win_start(MPI_GROUP_EMPTY, 0, w->win);
        MPI_Win_complete(w->win);
        while (!flag)
            MPI_Win_test(w->win, &flag);
    }
}

static void body(struct window *w)
{
    neighbours(w);
    MPI_Barrier(MPI_COMM_WORLD);
    stairs(w);
    late(w);
    not_yet(w);
    nobody(w);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    on_all_flavours(4096, 4, body);
    MPI_Group_free(&world);
    return check_end();
}

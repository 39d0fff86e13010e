/* ranks: 2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* One-sided, active target: fence and post/start/complete/wait with put, get, accumulate and
 * operations that fetch, small and large, derived types at both ends; windows by create and
 * allocate. MPI 3.1 sections 11.2-11.5. */
#include "check.h"

enum { MAX = 400000 };

static void fence_put_get(MPI_Win win, unsigned char *base, int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *out = buffer_new((size_t)n), *in = buffer_new((size_t)n);
    STEP("fence, %d bytes", n);
    fill(out, (size_t)n, key_of(me, 1, n, 0));
    poison(base, (size_t)(2 * n));
    MPI_Win_fence(MPI_MODE_NOPRECEDE, win);
    MPI_Put(out, n, MPI_BYTE, next, 0, n, MPI_BYTE, win);
    MPI_Win_fence(0, win);
    VERIFY(base, n, key_of(previous, 1, n, 0), "put");
    UNTOUCHED(base + n, n, "beside");
    MPI_Win_fence(0, win);
    MPI_Get(in, n, MPI_BYTE, next, 0, n, MPI_BYTE, win); /* what I have put there */
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    VERIFY(in, n, key_of(me, 1, n, 0), "get");
    buffer_free(out);
    buffer_free(in);
}

/* All ranks add into all windows. */
static void fence_accumulate(MPI_Win win, int *base, int n)
{
    int *x = malloc((size_t)n * sizeof *x);
    STEP("accumulate, %d ints", n);
    for (int k = 0; k < n; k++) {
        x[k] = me + k;
        base[k] = 5;
    }
    MPI_Win_fence(0, win);
    for (int target = 0; target < np; target++)
        for (int part = 0; part < 4; part++)
            MPI_Accumulate(x + part * (n / 4), n / 4, MPI_INT, target, part * (n / 4) * 4, n / 4,
                           MPI_INT, MPI_SUM, win);
    MPI_Win_fence(0, win);
    for (int k = 0; k < n / 4 * 4; k++)
        CHECK_EQ(base[k], 5 + np * (np - 1) / 2 + np * k, "sum");
    MPI_Win_fence(0, win);
    MPI_Accumulate(x, n, MPI_INT, (me + 1) % np, 0, n, MPI_INT, MPI_REPLACE, win);
    MPI_Win_fence(0, win);
    for (int k = 0; k < n; k++)
        CHECK_EQ(base[k], (me + np - 1) % np + k, "replace");
    free(x);
}

/* A column here into a row there. */
static void derived(MPI_Win win, int *base, int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    int *x = malloc((size_t)(3 * n) * sizeof *x);
    MPI_Datatype third, second;
    STEP("derived, %d", n);
    MPI_Type_vector(n, 1, 3, MPI_INT, &third);
    MPI_Type_vector(n, 1, 2, MPI_INT, &second);
    MPI_Type_commit(&third);
    MPI_Type_commit(&second);
    for (int k = 0; k < 3 * n; k++)
        x[k] = me * 1000000 + k;
    for (int k = 0; k < 2 * n; k++)
        base[k] = -1;
    MPI_Win_fence(0, win);
    MPI_Put(x, 1, third, next, 0, 1, second, win);
    MPI_Win_fence(0, win);
    for (int k = 0; k < 2 * n; k++)
        CHECK_EQ(base[k], k % 2 || k == 2 * n - 1 ? -1 : previous * 1000000 + k / 2 * 3,
                 "put derived");
    for (int k = 0; k < 3 * n; k++)
        x[k] = -2;
    MPI_Win_fence(0, win);
    MPI_Get(x, 1, third, next, 0, 1, second, win);
    MPI_Win_fence(0, win);
    for (int k = 0; k < 3 * n - 2; k++)
        CHECK_EQ(x[k], k % 3 ? -2 : me * 1000000 + k, "get derived");
    MPI_Type_free(&third);
    MPI_Type_free(&second);
    free(x);
}

/* Even ranks expose, odd ranks access, then the other way; repeated without barriers. */
static void post_start(MPI_Win win, int *base, int n)
{
    MPI_Group world, others;
    int ranks[64], count = 0, *x = malloc((size_t)n * sizeof *x);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    for (int k = 0; k < np; k++)
        if (k % 2 != me % 2)
            ranks[count++] = k;
    MPI_Group_incl(world, count, ranks, &others);
    for (int round = 0; round < 20; round++) {
        STEP("post/start, round %d, %d ints", round, n);
        if ((round + me) % 2) {
            MPI_Win_start(others, 0, win);
            for (int k = 0; k < n; k++)
                x[k] = me * 1000 + round + k;
            for (int k = 0; k < count; k++)
                MPI_Put(x, n, MPI_INT, ranks[k], me * n * 4, n, MPI_INT, win);
            MPI_Win_complete(win);
        } else {
            int flag = 0;
            MPI_Win_post(others, 0, win);
            if (round % 4 < 2)
                MPI_Win_wait(win);
            else
                while (!flag)
                    MPI_Win_test(win, &flag);
            for (int p = 0; p < count; p++)
                for (int k = 0; k < n; k++)
                    CHECK_EQ(base[ranks[p] * n + k], ranks[p] * 1000 + round + k, "post/start");
        }
    }
    MPI_Group_free(&others);
    MPI_Group_free(&world);
    free(x);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Operations that answer: all at once, ended by a fence. */
static void fence_fetch(MPI_Win win, int *base, int n)
{
    int *x = malloc((size_t)n * sizeof *x), *old = malloc((size_t)n * sizeof *old);
    int next = (me + 1) % np, one = 1, mine = -1, sum = 0, swapped = -1, other = me + 100;
    STEP("fetch, %d ints", n);
    for (int k = 0; k < n; k++) {
        x[k] = me + k;
        base[k] = 7 * me + k;
    }
    base[n] = 0;
    base[n + 1] = me;
    MPI_Win_fence(0, win);
    MPI_Fetch_and_op(&one, &mine, MPI_INT, 0, 4 * n, MPI_SUM, win);
    MPI_Get_accumulate(x, n, MPI_INT, old, n, MPI_INT, next, 0, n, MPI_INT, MPI_SUM, win);
    MPI_Compare_and_swap(&other, &next, &swapped, MPI_INT, next, 4 * n + 4, win);
    MPI_Win_fence(0, win);
    for (int k = 0; k < n; k++) {
        CHECK_EQ(old[k], 7 * next + k, "what was there");
        CHECK_EQ(base[k], 7 * me + (me + np - 1) % np + 2 * k, "sum");
    }
    CHECK_EQ(swapped, next, "compare and swap, before");
    CHECK_EQ(base[n + 1], (me + np - 1) % np + 100, "compare and swap, after");
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQ(sum, np * (np - 1) / 2, "each number once");
    if (me == 0)
        CHECK_EQ(base[n], np, "counter");
    free(x);
    free(old);
}

/* The same between post and wait: rank 0 is the target of all others. */
static void post_start_fetch(MPI_Win win, int *base, int n)
{
    MPI_Group all, group;
    int *x = malloc((size_t)n * sizeof *x), *old = malloc((size_t)n * sizeof *old);
    int zero = 0, one = 1, mine = -1;
    STEP("post and start, fetch, %d ints", n);
    for (int k = 0; k < n; k++) {
        x[k] = k;
        base[k] = k;
    }
    base[n] = 0;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    if (me == 0) {
        MPI_Group_excl(all, 1, &zero, &group);
        MPI_Win_post(group, 0, win);
        MPI_Win_wait(win);
        for (int k = 0; k < n; k++)
            CHECK_EQ(base[k], np * k, "sum");
        CHECK_EQ(base[n], np - 1, "counter");
    } else {
        MPI_Group_incl(all, 1, &zero, &group);
        MPI_Win_start(group, 0, win);
        MPI_Get_accumulate(x, n, MPI_INT, old, n, MPI_INT, 0, 0, n, MPI_INT, MPI_SUM, win);
        MPI_Fetch_and_op(&one, &mine, MPI_INT, 0, 4 * n, MPI_SUM, win);
        MPI_Win_complete(win);
        for (int k = 1; k < n; k++)
            CHECK(old[k] % k == 0 && old[k] / k >= 1 && old[k] / k < np, "what was there");
        CHECK(mine >= 0 && mine < np - 1, "number");
    }
    MPI_Group_free(&group);
    MPI_Group_free(&all);
    free(x);
    free(old);
}

static void tests(MPI_Win win, void *base)
{
    static const int sizes[] = {1, 8, 100, 4096, 5000, 70000, 200000};
    for (int i = 0; i < LENGTH(sizes); i++)
        fence_put_get(win, base, sizes[i]);
    fence_accumulate(win, base, 8);
    fence_accumulate(win, base, 1000);
    fence_accumulate(win, base, 50000);
    derived(win, base, 3);
    derived(win, base, 500);
    derived(win, base, 20000);
    post_start(win, base, 10);
    post_start(win, base, 9000);
    fence_fetch(win, base, 1);
    fence_fetch(win, base, 500);
    fence_fetch(win, base, 30000);
    post_start_fetch(win, base, 3);
    post_start_fetch(win, base, 9000);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Win win;
    void *base;
    for (int round = 0; round < 3; round++) {
        STEP("allocate");
        MPI_Win_allocate(MAX, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
        tests(win, base);
        MPI_Win_free(&win);
        STEP("create");
        base = malloc(MAX);
        MPI_Win_create(base, MAX, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        tests(win, base);
        MPI_Win_free(&win);
        free(base);
    }
    return check_end();
}

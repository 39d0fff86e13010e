/* ranks: 2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Dynamic windows (attach, detach), windows of different sizes and displacement units, several
 * windows at once, window attributes and names. MPI 3.1 section 11.2. */
#include "check.h"

static void dynamic(void)
{
    MPI_Win win;
    enum { PIECES = 4, N = 3000 };
    int *piece[PIECES], next = (me + 1) % np, previous = (me + np - 1) % np, x[N], y[N];
    MPI_Aint at[PIECES], there[PIECES];
    STEP("dynamic");
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    for (int round = 0; round < 4; round++) {
        for (int k = 0; k < PIECES; k++) {
            piece[k] = calloc(N, sizeof(int));
            MPI_Win_attach(win, piece[k], N * sizeof(int));
            MPI_Get_address(piece[k], &at[k]);
        }
        MPI_Sendrecv(at, PIECES, MPI_AINT, previous, 1, there, PIECES, MPI_AINT, next, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int k = 0; k < N; k++)
            x[k] = me * 10000 + k;
        MPI_Win_fence(0, win);
        for (int p = 0; p < PIECES; p++)
            MPI_Put(x + p, N - p, MPI_INT, next, MPI_Aint_add(there[p], 4 * p), N - p, MPI_INT,
                    win);
        MPI_Win_fence(0, win);
        for (int p = 0; p < PIECES; p++)
            for (int k = 0; k < N; k++)
                CHECK_EQ(piece[p][k], k < p ? 0 : previous * 10000 + k,
                         "put into an attached piece");
        MPI_Win_fence(0, win);
        MPI_Get(y, N - 3, MPI_INT, next, there[3] + 12, N - 3, MPI_INT, win);
        MPI_Win_fence(0, win);
        for (int k = 0; k < N - 3; k++)
            CHECK_EQ(y[k], me * 10000 + k + 3, "get");
        MPI_Barrier(MPI_COMM_WORLD);
        for (int k = 0; k < PIECES; k++) {
            MPI_Win_detach(win, piece[k]);
            free(piece[k]);
        }
    }
    MPI_Win_free(&win);
}

/* Rank k exposes (k + 1) * 100 elements of k + 1 bytes; rank 0 of another kind: nothing. */
static void uneven(void)
{
    enum { WINDOWS = 5 };
    MPI_Win win[WINDOWS];
    unsigned char *base[WINDOWS];
    int next = (me + 1) % np, previous = (me + np - 1) % np, unit = me + 1;
    STEP("uneven windows");
    for (int w = 0; w < WINDOWS; w++) {
        base[w] = malloc((size_t)(100 * unit) + 1);
        MPI_Win_create(base[w], w == 4 && me == 0 ? 0 : 100 * unit, unit, MPI_INFO_NULL,
                       MPI_COMM_WORLD, &win[w]);
        memset(base[w], POISON, (size_t)(100 * unit) + 1);
        MPI_Win_fence(0, win[w]);
    }
    unsigned char value[WINDOWS];
    for (int w = WINDOWS - 1; w >= 0; w--) {
        value[w] = (unsigned char)(me * 10 + w);
        if (!(w == 4 && next == 0)) /* byte at element 7 + w of the target, in its unit */
            MPI_Put(&value[w], 1, MPI_BYTE, next, 7 + w, 1, MPI_BYTE, win[w]);
    }
    for (int w = 0; w < WINDOWS; w++) {
        MPI_Win_fence(0, win[w]);
        if (!(w == 4 && me == 0))
            CHECK_EQ(base[w][(7 + w) * unit], previous * 10 + w, "put in units of the target");
        base[w][(7 + w) * unit] = POISON;
        UNTOUCHED(base[w], 100 * unit + 1, "elsewhere");
    }
    for (int w = 0; w < WINDOWS; w++) {
        MPI_Win_free(&win[w]);
        free(base[w]);
    }
}

static void attributes(void)
{
    MPI_Win win;
    void *base, *got;
    int flag, n, *model, *unit;
    MPI_Aint *size;
    char name[MPI_MAX_OBJECT_NAME];
    STEP("attributes");
    MPI_Win_allocate(640, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
    MPI_Win_get_attr(win, MPI_WIN_BASE, &got, &flag);
    CHECK(flag && got == base, "MPI_WIN_BASE");
    MPI_Win_get_attr(win, MPI_WIN_SIZE, &size, &flag);
    CHECK(flag && *size == 640, "MPI_WIN_SIZE");
    MPI_Win_get_attr(win, MPI_WIN_DISP_UNIT, &unit, &flag);
    CHECK(flag && *unit == 8, "MPI_WIN_DISP_UNIT");
    MPI_Win_get_attr(win, MPI_WIN_MODEL, &model, &flag);
    CHECK(flag && (*model == MPI_WIN_UNIFIED || *model == MPI_WIN_SEPARATE), "MPI_WIN_MODEL");
    MPI_Win_set_name(win, "window of a test");
    MPI_Win_get_name(win, name, &n);
    CHECK(!strcmp(name, "window of a test"), "name %s", name);
    MPI_Group group;
    MPI_Win_get_group(win, &group);
    MPI_Group_size(group, &n);
    CHECK_EQ(n, np, "group");
    MPI_Group_free(&group);
    MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN);
    int x = 0;
    MPI_Win_fence(0, win);
    CHECK(MPI_Put(&x, 1, MPI_INT, np, 0, 1, MPI_INT, win) != MPI_SUCCESS, "put to a wrong rank");
    MPI_Win_fence(0, win);
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int k = 0; k < 3; k++) {
        dynamic();
        uneven();
        attributes();
    }
    return check_end();
}

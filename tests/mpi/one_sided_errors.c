/* ranks: 2,3,4 ; nodes: 1,2,3 ; stock: fails */
/* What MPI calls an error is one, of its class, and the window can be used after it: ranks, counts,
 * displacements, types, operations; calls without an epoch or within a wrong one; places outside of
 * the window, which only the target knows, are told by the call that ends the epoch at the latest.
 * MPI 3.1 section 11.6. (Stock finds only some of them.) */
#include "windows.h"

enum { BYTES = 256 };

static int x[16], y[16];

/* A call out of its epoch; MPI has two classes that fit a second lock. */
static void expect_sync(int line, const char *call, int rc)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(rc, &class);
    if (class != MPI_ERR_RMA_CONFLICT)
        check_class(__FILE__, line, call, rc, MPI_ERR_RMA_SYNC);
}
#define EXPECT_SYNC(call) expect_sync(__LINE__, #call, (call))

/* The window works. */
static void works(struct window *w)
{
    int next = (me + 1) % np, value = me + 77, got = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT_OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, w->win));
    EXPECT_OK(MPI_Put(&value, 1, MPI_INT, next, at(w, next, 4 * me), 1, MPI_INT, w->win));
    EXPECT_OK(MPI_Win_flush(next, w->win));
    EXPECT_OK(MPI_Get(&got, 1, MPI_INT, next, at(w, next, 4 * me), 1, MPI_INT, w->win));
    EXPECT_OK(MPI_Win_unlock(next, w->win));
    CHECK_EQ(got, value, "the window works after an error");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Wrong arguments, in an epoch. */
static void arguments(struct window *w)
{
    int next = (me + 1) % np;
    MPI_Aint there = at(w, next, 0);
    MPI_Datatype open;
    MPI_Request r;
    STEP("%s: arguments", flavour_name[w->flavour]);
    MPI_Type_contiguous(2, MPI_INT, &open); /* not committed */
    MPI_Win_lock_all(0, w->win);
    EXPECT_CLASS(MPI_Put(x, 1, MPI_INT, np, there, 1, MPI_INT, w->win), MPI_ERR_RANK);
    EXPECT_CLASS(MPI_Get(x, 1, MPI_INT, -5, there, 1, MPI_INT, w->win), MPI_ERR_RANK);
    EXPECT_CLASS(MPI_Put(x, -1, MPI_INT, next, there, 1, MPI_INT, w->win), MPI_ERR_COUNT);
    EXPECT_CLASS(MPI_Get(x, 1, MPI_INT, next, there, -1, MPI_INT, w->win), MPI_ERR_COUNT);
    EXPECT_CLASS(MPI_Put(x, 1, open, next, there, 1, open, w->win), MPI_ERR_TYPE);
    EXPECT_CLASS(MPI_Put(x, 1, MPI_DATATYPE_NULL, next, there, 1, MPI_INT, w->win), MPI_ERR_TYPE);
    EXPECT_CLASS(MPI_Accumulate(x, 1, MPI_INT, next, there, 1, MPI_INT, MPI_OP_NULL, w->win),
                 MPI_ERR_OP);
    EXPECT_CLASS(MPI_Accumulate(x, 1, MPI_INT, next, there, 1, MPI_INT, MPI_MINLOC, w->win),
                 MPI_ERR_OP);
    EXPECT_CLASS(MPI_Accumulate(x, 1, MPI_FLOAT, next, there, 1, MPI_FLOAT, MPI_BAND, w->win),
                 MPI_ERR_OP);
    EXPECT_CLASS(MPI_Fetch_and_op(x, y, MPI_INT, np + 1, there, MPI_SUM, w->win), MPI_ERR_RANK);
    EXPECT_CLASS(MPI_Compare_and_swap(x, x, y, MPI_INT, np + 1, there, w->win), MPI_ERR_RANK);
    EXPECT_CLASS(MPI_Rput(x, 1, MPI_INT, np, there, 1, MPI_INT, w->win, &r), MPI_ERR_RANK);
    if (w->flavour != DYNAMIC)
        EXPECT_CLASS(MPI_Put(x, 1, MPI_INT, next, -4, 1, MPI_INT, w->win), MPI_ERR_DISP);
    EXPECT_CLASS(MPI_Win_flush(np, w->win), MPI_ERR_RANK);
    MPI_Win_unlock_all(w->win);
    EXPECT_CLASS(MPI_Win_lock(MPI_LOCK_SHARED, np, 0, w->win), MPI_ERR_RANK);
    EXPECT_CLASS(MPI_Win_lock(12345, next, 0, w->win), MPI_ERR_LOCKTYPE);
    EXPECT_CLASS(MPI_Win_lock(MPI_LOCK_SHARED, next, 0x4000000, w->win), MPI_ERR_ASSERT);
    EXPECT_CLASS(MPI_Win_post(MPI_GROUP_NULL, 0, w->win), MPI_ERR_GROUP);
    EXPECT_CLASS(MPI_Win_start(MPI_GROUP_NULL, 0, w->win), MPI_ERR_GROUP);
    MPI_Type_free(&open);
    works(w);
}

/* Calls out of their epoch. */
static void epochs(struct window *w)
{
    int next = (me + 1) % np, flag;
    MPI_Aint there = at(w, next, 0);
    MPI_Group all;
    STEP("%s: no epoch", flavour_name[w->flavour]);
    EXPECT_SYNC(MPI_Put(x, 1, MPI_INT, next, there, 1, MPI_INT, w->win));
    EXPECT_SYNC(MPI_Get(x, 1, MPI_INT, next, there, 1, MPI_INT, w->win));
    EXPECT_SYNC(MPI_Accumulate(x, 1, MPI_INT, next, there, 1, MPI_INT, MPI_SUM, w->win));
    EXPECT_SYNC(MPI_Fetch_and_op(x, y, MPI_INT, next, there, MPI_SUM, w->win));
    EXPECT_SYNC(MPI_Compare_and_swap(x, x, y, MPI_INT, next, there, w->win));
    EXPECT_SYNC(MPI_Win_unlock(next, w->win));
    EXPECT_SYNC(MPI_Win_unlock_all(w->win));
    EXPECT_SYNC(MPI_Win_flush(next, w->win));
    EXPECT_SYNC(MPI_Win_flush_all(w->win));
    EXPECT_SYNC(MPI_Win_flush_local(next, w->win));
    EXPECT_SYNC(MPI_Win_complete(w->win));
    EXPECT_SYNC(MPI_Win_wait(w->win));
    EXPECT_SYNC(MPI_Win_test(w->win, &flag));
    works(w);
    STEP("%s: within a lock", flavour_name[w->flavour]);
    MPI_Win_get_group(w->win, &all);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win);
    EXPECT_SYNC(MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win));
    EXPECT_SYNC(MPI_Win_lock_all(0, w->win));
    EXPECT_SYNC(MPI_Win_fence(0, w->win));
    EXPECT_SYNC(MPI_Win_start(all, 0, w->win));
    EXPECT_SYNC(MPI_Put(x, 1, MPI_INT, me, at(w, me, 0), 1, MPI_INT, w->win));
    EXPECT_SYNC(MPI_Win_flush(me, w->win));
    EXPECT_SYNC(MPI_Win_unlock(me, w->win));
    MPI_Win_unlock(next, w->win);
    works(w);
    STEP("%s: within lock_all", flavour_name[w->flavour]);
    MPI_Win_lock_all(0, w->win);
    EXPECT_SYNC(MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win));
    EXPECT_SYNC(MPI_Win_unlock(next, w->win));
    EXPECT_SYNC(MPI_Win_lock_all(0, w->win));
    MPI_Win_unlock_all(w->win);
    works(w);
    STEP("%s: within start, and post", flavour_name[w->flavour]);
    MPI_Win_post(all, 0, w->win);
    EXPECT_SYNC(MPI_Win_post(all, 0, w->win));
    MPI_Win_start(all, 0, w->win);
    EXPECT_SYNC(MPI_Win_start(all, 0, w->win));
    EXPECT_SYNC(MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win));
    MPI_Win_complete(w->win);
    MPI_Win_wait(w->win);
    MPI_Group_free(&all);
    works(w);
}

/* An error that the operation or the end of its epoch must tell; which of them is free. */
static void found_by(int first, int second, const char *what, bool is_range)
{
    int class = MPI_SUCCESS;
    MPI_Error_class(first != MPI_SUCCESS ? first : second, &class);
    CHECK(class != MPI_SUCCESS, "%s: nobody says that it is outside", what);
    if (is_range)
        CHECK(class == MPI_ERR_RMA_RANGE || class == MPI_ERR_DISP || class == MPI_ERR_RMA_ATTACH,
              "%s: class %d", what, class);
}

/* Outside of the window: nothing of it is written, beside neither. */
static void places(struct window *w)
{
    int next = (me + 1) % np, r;
    MPI_Aint last = at(w, next, BYTES - 4);
    unsigned char *before = malloc(BYTES);
    STEP("%s: outside of the window", flavour_name[w->flavour]);
    memset(w->base, 0x5c, BYTES);
    memset(before, 0x5c, BYTES);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, w->win);
    r = MPI_Put(x, 2, MPI_INT, next, last, 2, MPI_INT, w->win);
    found_by(r, MPI_Win_unlock(next, w->win), "put over the end", true);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, w->win);
    r = MPI_Get(y, 2, MPI_INT, next, last, 2, MPI_INT, w->win);
    found_by(r, MPI_Win_flush(next, w->win), "get over the end", true);
    r = MPI_Accumulate(x, 1, MPI_INT, next, at(w, next, BYTES), 1, MPI_INT, MPI_SUM, w->win);
    found_by(r, MPI_Win_flush(next, w->win), "accumulate behind the end", true);
    r = MPI_Fetch_and_op(x, y, MPI_INT, next, at(w, next, BYTES + 4000), MPI_SUM, w->win);
    found_by(r, MPI_Win_flush(next, w->win), "fetch far behind the end", true);
    r = MPI_Compare_and_swap(x, x, y, MPI_INT, next, at(w, next, BYTES), w->win);
    found_by(r, MPI_Win_flush(next, w->win), "swap behind the end", true);
    EXPECT_OK(MPI_Win_unlock(next, w->win));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, w->win);
    CHECK(!memcmp(w->base, before, BYTES), "nothing was written");
    MPI_Win_unlock(me, w->win);
    free(before);
    works(w);
    MPI_Win_fence(0, w->win);
    r = MPI_Put(x, 2, MPI_INT, next, last, 2, MPI_INT, w->win);
    found_by(r, MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win), "fence: put over the end", true);
    works(w);
}

/* Memory that is not attached, or not any more. */
static void not_attached(struct window *w)
{
    static int other[8];
    int next = (me + 1) % np, r;
    MPI_Aint mine, theirs;
    if (w->flavour != DYNAMIC) {
        EXPECT_CLASS(MPI_Win_attach(w->win, other, sizeof other), MPI_ERR_RMA_FLAVOR);
        return;
    }
    STEP("not attached");
    MPI_Get_address(other, &mine);
    MPI_Sendrecv(&mine, 1, MPI_AINT, (me + np - 1) % np, 1, &theirs, 1, MPI_AINT, next, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win);
    r = MPI_Put(x, 1, MPI_INT, next, theirs, 1, MPI_INT, w->win);
    found_by(r, MPI_Win_unlock(next, w->win), "put into what is not attached", true);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_attach(w->win, other, sizeof other);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win);
    EXPECT_OK(MPI_Put(x, 1, MPI_INT, next, theirs, 1, MPI_INT, w->win));
    EXPECT_OK(MPI_Win_unlock(next, w->win));
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_detach(w->win, other);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win);
    r = MPI_Get(x, 1, MPI_INT, next, theirs, 1, MPI_INT, w->win);
    found_by(r, MPI_Win_unlock(next, w->win), "get from what was detached", true);
    works(w);
}

static void shared_query(struct window *w)
{
    MPI_Aint size;
    int unit;
    void *base;
    STEP("%s: shared_query", flavour_name[w->flavour]);
    if (w->flavour != SHARED)
        EXPECT_CLASS(MPI_Win_shared_query(w->win, 0, &size, &unit, &base), MPI_ERR_RMA_FLAVOR);
    works(w);
}

static void body(struct window *w)
{
    MPI_Win_set_errhandler(w->win, MPI_ERRORS_RETURN);
    works(w);
    arguments(w);
    shared_query(w);
    epochs(w);
    places(w);
    not_attached(w);
    works(w);
}

/* Errors in making a window: of the communicator's handler, and nothing is left over. */
static void making(void)
{
    MPI_Win win;
    char memory[16];
    STEP("arguments of the constructors");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    EXPECT_CLASS(MPI_Win_create(memory, -1, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_SIZE);
    EXPECT_CLASS(MPI_Win_create(memory, 16, 0, MPI_INFO_NULL, MPI_COMM_WORLD, &win), MPI_ERR_DISP);
    EXPECT_CLASS(MPI_Win_create(memory, 16, 1, MPI_INFO_NULL, MPI_COMM_NULL, &win), MPI_ERR_COMM);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* Groups with ranks that are not in the window: nothing is exposed or begun. (Stock goes astray.) */
static void groups(void)
{
    MPI_Comm some;
    MPI_Group world;
    MPI_Win win;
    int *base;
    STEP("ranks that are not in the window");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Comm_split(MPI_COMM_WORLD, me == np - 1, 0, &some);
    MPI_Win_allocate(64, 4, MPI_INFO_NULL, some, &base, &win);
    MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN);
    for (int time = 0; time < 2; time++) {
        MPI_Group own;
        EXPECT_CLASS(MPI_Win_post(world, 0, win), MPI_ERR_RANK);
        EXPECT_SYNC(MPI_Win_wait(win));
        EXPECT_CLASS(MPI_Win_start(world, 0, win), MPI_ERR_RANK);
        EXPECT_SYNC(MPI_Win_complete(win));
        MPI_Win_get_group(win, &own);
        EXPECT_OK(MPI_Win_post(own, 0, win));
        EXPECT_OK(MPI_Win_start(own, 0, win));
        EXPECT_OK(MPI_Win_complete(win));
        EXPECT_OK(MPI_Win_wait(win));
        MPI_Group_free(&own);
    }
    MPI_Win_free(&win);
    MPI_Group_free(&world);
    MPI_Comm_free(&some);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    making();
    groups();
    on_all_flavours(BYTES, 4, body);
    return check_end();
}

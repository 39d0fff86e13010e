/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt,sm */
/* What a window says of itself: predefined attributes of each flavour, attributes of the program
 * with their callbacks, names, groups, info keys, error handlers. MPI 3.1 sections 6.7.3, 6.8,
 * 8.3.2, 11.2.6, 11.2.7. */
#include "windows.h"

static void predefined(struct window *w)
{
    static const int flavours[] = {MPI_WIN_FLAVOR_CREATE, MPI_WIN_FLAVOR_ALLOCATE,
                                   MPI_WIN_FLAVOR_DYNAMIC, MPI_WIN_FLAVOR_SHARED};
    void *base;
    MPI_Aint *size;
    int *unit, *flavour, *model, found;
    STEP("%s: predefined attributes", flavour_name[w->flavour]);
    MPI_Win_get_attr(w->win, MPI_WIN_BASE, &base, &found);
    CHECK(found && base == (w->flavour == DYNAMIC ? MPI_BOTTOM : (void *)w->base), "base");
    MPI_Win_get_attr(w->win, MPI_WIN_SIZE, &size, &found);
    CHECK(found && *size == (w->flavour == DYNAMIC ? 0 : w->bytes), "size %ld", (long)*size);
    MPI_Win_get_attr(w->win, MPI_WIN_DISP_UNIT, &unit, &found);
    CHECK(found && *unit == w->unit, "unit %d", *unit);
    MPI_Win_get_attr(w->win, MPI_WIN_CREATE_FLAVOR, &flavour, &found);
    CHECK(found && *flavour == flavours[w->flavour], "flavour %d", *flavour);
    MPI_Win_get_attr(w->win, MPI_WIN_MODEL, &model, &found);
    CHECK(found && (*model == MPI_WIN_UNIFIED || *model == MPI_WIN_SEPARATE), "model %d", *model);
}

static int deleted, delete_code;

static int on_delete(MPI_Win win, int key, void *value, void *extra)
{
    (void)win, (void)key;
    CHECK(value == (void *)&deleted && extra == (void *)&delete_code, "what the callback gets");
    deleted++;
    return delete_code;
}

static void of_the_program(struct window *w, int key)
{
    int found, *value;
    STEP("%s: attributes", flavour_name[w->flavour]);
    MPI_Win_get_attr(w->win, key, &value, &found);
    CHECK(!found, "no attribute yet");
    MPI_Win_set_attr(w->win, key, &deleted);
    MPI_Win_get_attr(w->win, key, &value, &found);
    CHECK(found && value == &deleted, "attribute");
    deleted = 0;
    MPI_Win_delete_attr(w->win, key);
    CHECK_EQ(deleted, 1, "deleted");
    MPI_Win_get_attr(w->win, key, &value, &found);
    CHECK(!found, "no attribute any more");
    MPI_Win_set_attr(w->win, key, &deleted); /* until the window is freed */
}

static void names(struct window *w)
{
    char name[MPI_MAX_OBJECT_NAME], longest[MPI_MAX_OBJECT_NAME];
    int n = -1;
    STEP("%s: names", flavour_name[w->flavour]);
    MPI_Win_set_name(w->win, "a window");
    MPI_Win_get_name(w->win, name, &n);
    CHECK(n == 8 && !strcmp(name, "a window"), "name %s", name);
    memset(longest, 'x', sizeof longest);
    longest[MPI_MAX_OBJECT_NAME - 1] = 0;
    MPI_Win_set_name(w->win, longest);
    MPI_Win_get_name(w->win, name, &n);
    CHECK(n == MPI_MAX_OBJECT_NAME - 1 && !strcmp(name, longest), "the longest name");
    MPI_Win_set_name(w->win, "");
    MPI_Win_get_name(w->win, name, &n);
    CHECK(n == 0 && !*name, "no name");
}

static void groups(struct window *w)
{
    MPI_Group mine, theirs;
    int same;
    STEP("%s: groups", flavour_name[w->flavour]);
    MPI_Win_get_group(w->win, &mine);
    MPI_Comm_group(w->comm, &theirs);
    MPI_Group_compare(mine, theirs, &same);
    CHECK_EQ(same, MPI_IDENT, "group of the window");
    MPI_Group_free(&mine);
    MPI_Group_free(&theirs);
}

static int handled;

static void handler(MPI_Win *win, int *code, ...)
{
    int class;
    (void)win;
    MPI_Error_class(*code, &class);
    CHECK_EQ(class, MPI_ERR_RANK, "class of the error");
    handled++;
}

static void handlers(struct window *w)
{
    MPI_Errhandler mine, got;
    int x = 0;
    STEP("%s: error handlers", flavour_name[w->flavour]);
    MPI_Win_get_errhandler(w->win, &got);
    CHECK(got == MPI_ERRORS_ARE_FATAL, "the handler of a new window");
    MPI_Errhandler_free(&got);
    MPI_Win_create_errhandler(handler, &mine);
    MPI_Win_set_errhandler(w->win, mine);
    MPI_Win_fence(0, w->win);
    handled = 0;
    MPI_Put(&x, 1, MPI_INT, np, 0, 1, MPI_INT, w->win);
    CHECK_EQ(handled, 1, "calls of the handler");
    MPI_Win_call_errhandler(w->win, MPI_ERR_RANK);
    CHECK_EQ(handled, 2, "calls of the handler");
    MPI_Win_fence(0, w->win);
    MPI_Errhandler_free(&mine);
    MPI_Win_set_errhandler(w->win, MPI_ERRORS_RETURN);
    EXPECT_CLASS(MPI_Put(&x, 1, MPI_INT, -7, 0, 1, MPI_INT, w->win), MPI_ERR_RANK);
    MPI_Win_get_errhandler(w->win, &got);
    CHECK(got == MPI_ERRORS_RETURN, "the handler that was set");
    MPI_Win_set_errhandler(w->win, MPI_ERRORS_ARE_FATAL);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
}

/* Hints: who knows them heeds them, whoever does not works all the same. */
static void hints(void)
{
    static const char *const keys[][2] = {
        {"accumulate_ordering", "none"}, {"accumulate_ordering", "rar,war"},
        {"accumulate_ops", "same_op"},   {"same_size", "true"},
        {"same_disp_unit", "true"},      {"alloc_shared_noncontig", "true"},
        {"rustbtl_unknown", "x"},
    };
    for (int k = 0; k < LENGTH(keys); k++) {
        MPI_Info info, got;
        MPI_Win win;
        int *base, x = me;
        STEP("info %s = %s", keys[k][0], keys[k][1]);
        MPI_Info_create(&info);
        MPI_Info_set(info, keys[k][0], keys[k][1]);
        MPI_Win_allocate(64, 4, info, MPI_COMM_WORLD, &base, &win);
        MPI_Win_set_info(win, info);
        MPI_Info_free(&info);
        MPI_Win_get_info(win, &got);
        CHECK(got != MPI_INFO_NULL, "info of a window");
        MPI_Info_free(&got);
        MPI_Win_fence(0, win);
        MPI_Put(&x, 1, MPI_INT, (me + 1) % np, 1, 1, MPI_INT, win);
        MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
        CHECK_EQ(base[1], (me + np - 1) % np, "put");
        MPI_Win_free(&win);
    }
}

/* A window that nobody locks: fence and post work, locks need not. */
static void no_locks(void)
{
    MPI_Info info;
    MPI_Win win;
    int *base, x = me;
    STEP("no_locks");
    MPI_Info_create(&info);
    MPI_Info_set(info, "no_locks", "true");
    MPI_Win_allocate(64, 4, info, MPI_COMM_WORLD, &base, &win);
    MPI_Info_free(&info);
    for (int k = 0; k < 20; k++) {
        MPI_Win_fence(0, win);
        MPI_Accumulate(&x, 1, MPI_INT, (me + 1) % np, k % 8, 1, MPI_INT, MPI_REPLACE, win);
        MPI_Win_fence(0, win);
        CHECK_EQ(base[k % 8], (me + np - 1) % np, "put");
    }
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
    MPI_Win_free(&win);
}

static int key;

static void body(struct window *w)
{
    predefined(w);
    of_the_program(w, key);
    names(w);
    groups(w);
    handlers(w);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Win_create_keyval(MPI_WIN_NULL_COPY_FN, on_delete, &key, &delete_code);
    for (int unit = 1; unit <= 8; unit *= 8)
        for (int flavour = 0; flavour < FLAVOURS; flavour++) {
            struct window w;
            if (!window_open(&w, (enum flavour)flavour, MPI_COMM_WORLD, 640, unit))
                continue;
            body(&w);
            deleted = 0;
            window_close(&w);
            CHECK_EQ(deleted, 1, "freed with the window");
        }
    MPI_Win_free_keyval(&key);
    hints();
    no_locks();
    return check_end();
}

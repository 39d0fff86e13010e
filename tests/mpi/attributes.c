/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Attributes and their callbacks on communicators, types; error handlers of one's own, called from
 * point-to-point, wait and collectives; names, info, groups. MPI 3.1 chapters 6 and 8. */
#include "check.h"

static int copied, deleted, handled, last_class;

static int copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag)
{
    (void)comm, (void)key;
    CHECK(extra == &copied, "extra state");
    copied++;
    *(void **)out = (char *)in + 1;
    *flag = 1;
    return MPI_SUCCESS;
}
static int delete (MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)value, (void)extra;
    deleted++;
    return MPI_SUCCESS;
}
static void handler(MPI_Comm *comm, int *code, ...)
{
    (void)comm;
    handled++;
    MPI_Error_class(*code, &last_class);
}

static void attributes(void)
{
    int key, flag;
    MPI_Comm a, b;
    char *value;
    STEP("attributes");
    copied = deleted = 0;
    MPI_Comm_create_keyval(copy, delete, &key, &copied);
    MPI_Comm_dup(MPI_COMM_WORLD, &a);
    MPI_Comm_set_attr(a, key, (void *)100);
    MPI_Comm_dup(a, &b);
    MPI_Comm_get_attr(b, key, &value, &flag);
    CHECK(flag && value == (char *)101 && copied == 1, "copied attribute %ld", (long)value);
    MPI_Comm_set_attr(b, key, (void *)7); /* deletes the old one */
    CHECK_EQ(deleted, 1, "deleted by set");
    MPI_Comm_delete_attr(a, key);
    CHECK_EQ(deleted, 2, "deleted");
    MPI_Comm_get_attr(a, key, &value, &flag);
    CHECK(!flag, "a deleted attribute is still there");
    MPI_Comm_free(&a);
    MPI_Comm_free(&b);
    CHECK_EQ(deleted, 3, "deleted with its communicator");
    MPI_Comm_free_keyval(&key);
    int *n;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_UNIVERSE_SIZE, &n, &flag);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_WTIME_IS_GLOBAL, &n, &flag);
    CHECK(flag, "MPI_WTIME_IS_GLOBAL");
}

static void error_handlers(void)
{
    MPI_Errhandler own, got;
    MPI_Comm comm, other;
    MPI_Request r;
    int x[4] = {1, 2, 3, 4}, y[4] = {0};
    STEP("error handlers");
    handled = 0;
    MPI_Comm_create_errhandler(handler, &own);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, own);
    MPI_Comm_dup(comm, &other); /* inherits it */
    MPI_Comm_get_errhandler(other, &got);
    CHECK(got == own, "inherited handler");
    MPI_Errhandler_free(&got);
    MPI_Errhandler_free(&own); /* stays while in use */
    MPI_Send(x, 1, MPI_INT, np + 3, 0, comm);
    CHECK(handled == 1 && last_class == MPI_ERR_RANK, "handled %d, class %d", handled, last_class);
    MPI_Isend(x, 4, MPI_INT, me, 1, other, &r);
    MPI_Recv(y, 1, MPI_INT, me, 1, other, MPI_STATUS_IGNORE);
    CHECK(handled == 2 && last_class == MPI_ERR_TRUNCATE, "handled %d, class %d", handled,
          last_class);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    MPI_Irecv(y, 1, MPI_INT, me, 2, other, &r);
    MPI_Ssend(x, 4, MPI_INT, me, 2, other); /* MPI_Send: truncate_overrun.c */
    MPI_Wait(&r, MPI_STATUS_IGNORE);        /* the handler of the request's communicator */
    CHECK(handled == 3 && last_class == MPI_ERR_TRUNCATE, "handled %d, class %d", handled,
          last_class);
    MPI_Comm_call_errhandler(comm, MPI_ERR_OTHER);
    CHECK(handled == 4 && last_class == MPI_ERR_OTHER, "handled %d, class %d", handled, last_class);
    MPI_Comm_free(&comm);
    MPI_Comm_free(&other);
}

static void groups(void)
{
    MPI_Group world, some, rest, both;
    int n, result, there[2], here[2] = {0, np - 1};
    STEP("groups");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, (int[]){np - 1}, &some);
    MPI_Group_difference(world, some, &rest);
    MPI_Group_union(some, rest, &both);
    MPI_Group_size(rest, &n);
    CHECK_EQ(n, np - 1, "difference");
    MPI_Group_compare(both, world, &result);
    CHECK_EQ(result, np > 1 ? MPI_SIMILAR : MPI_IDENT, "compare");
    MPI_Group_translate_ranks(world, 2, here, both, there);
    CHECK(there[1] == 0 && (np == 1 || there[0] == 1), "translated to %d %d", there[0], there[1]);
    MPI_Group_free(&world), MPI_Group_free(&some), MPI_Group_free(&rest), MPI_Group_free(&both);
}

static void names_and_info(void)
{
    char text[MPI_MAX_OBJECT_NAME + MPI_MAX_PROCESSOR_NAME + MPI_MAX_LIBRARY_VERSION_STRING];
    int n, flag, version, sub;
    MPI_Comm comm;
    MPI_Info info, used;
    STEP("names and info");
    MPI_Comm_get_name(MPI_COMM_WORLD, text, &n);
    CHECK(!strcmp(text, "MPI_COMM_WORLD"), "name %s", text);
    MPI_Info_create(&info);
    MPI_Info_set(info, "some_key", "some value");
    MPI_Comm_dup_with_info(MPI_COMM_WORLD, info, &comm);
    MPI_Comm_set_name(comm, "mine");
    MPI_Comm_get_name(comm, text, &n);
    CHECK(!strcmp(text, "mine"), "name %s", text);
    MPI_Comm_get_info(comm, &used);
    MPI_Info_free(&used);
    MPI_Info_get(info, "some_key", 100, text, &flag);
    CHECK(flag && !strcmp(text, "some value"), "info %s", text);
    MPI_Info_free(&info);
    MPI_Comm_free(&comm);
    MPI_Get_processor_name(text, &n);
    CHECK(n > 0, "processor name");
    MPI_Get_version(&version, &sub);
    CHECK_EQ(version * 10 + sub, 31, "MPI version");
    double before = MPI_Wtime();
    sleep_ms(20);
    double took = MPI_Wtime() - before;
    CHECK(took > 0.015 && took < 10, "20 ms took %g s", took);
}

/* Callbacks on MPI_COMM_SELF run at the beginning of MPI_Finalize, when messages still work. */
static int at_finalize(MPI_Comm comm, int key, void *value, void *extra)
{
    int x = 5, y = 0;
    (void)comm, (void)key, (void)value, (void)extra;
    MPI_Sendrecv(&x, 1, MPI_INT, (me + 1) % np, 9, &y, 1, MPI_INT, (me + np - 1) % np, 9,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (y != 5)
        FAIL("message inside MPI_Finalize: expected 5, got %d", y);
    return MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    int key;
    check_begin(&argc, &argv);
    for (int k = 0; k < 50; k++) {
        attributes();
        error_handlers();
        groups();
    }
    names_and_info();
    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    return check_end();
}

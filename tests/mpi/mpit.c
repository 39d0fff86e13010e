/* ranks: 1,2,4 ; nodes: 1,2 */
/* The tools interface: every control and performance variable can be listed and read, before and
 * after traffic, without harm; prints those of the component if it is there. MPI 3.1 section 14.3.
 */
#include "check.h"

static int read_all(bool print)
{
    int n = 0, readable = 0;
    MPI_T_pvar_session session;
    MPI_T_pvar_get_num(&n);
    MPI_T_pvar_session_create(&session);
    for (int i = 0; i < n; i++) {
        char name[256], text[2048];
        int name_n = sizeof name, text_n = sizeof text, verbosity, class, bind, readonly,
            continuous, atomic;
        int count = 0;
        MPI_Datatype type;
        MPI_T_enum enumeration;
        MPI_T_pvar_handle handle;
        if (MPI_T_pvar_get_info(i, name, &name_n, &verbosity, &class, &type, &enumeration, text,
                                &text_n, &bind, &readonly, &continuous, &atomic) != MPI_SUCCESS)
            continue;
        CHECK(name_n > 0 && strlen(name) < sizeof name, "pvar %d has no name", i);
        if (strstr(name, "psm")) /* stock: a handle of mtl psm2 crashes without the hardware */
            continue;
        MPI_Comm comm = MPI_COMM_WORLD;
        if (bind != MPI_T_BIND_NO_OBJECT && bind != MPI_T_BIND_MPI_COMM)
            continue;
        if (MPI_T_pvar_handle_alloc(session, i, bind == MPI_T_BIND_MPI_COMM ? &comm : NULL, &handle,
                                    &count) != MPI_SUCCESS)
            continue;
        if (!continuous)
            MPI_T_pvar_start(session, handle);
        int size = 8;
        if (type != MPI_DATATYPE_NULL)
            MPI_Type_size(type, &size);
        char *value = calloc((size_t)(count > 0 ? count : 1), (size_t)size + 64);
        if (MPI_T_pvar_read(session, handle, value) == MPI_SUCCESS) {
            readable++;
            if (print && strstr(name, "correlated") && type == MPI_UNSIGNED_LONG_LONG)
                printf("%s = %llu (%s)\n", name, *(unsigned long long *)(void *)value, text);
        }
        free(value);
        MPI_T_pvar_handle_free(session, &handle);
    }
    MPI_T_pvar_session_free(&session);
    return readable;
}

static int read_cvars(void)
{
    int n = 0, readable = 0, listed = 0;
    MPI_T_cvar_get_num(&n);
    for (int i = 0; i < n; i++) {
        char name[256], text[4096];
        int name_n = sizeof name, text_n = sizeof text, verbosity, bind, scope, count = 0;
        MPI_Datatype type;
        MPI_T_enum enumeration;
        MPI_T_cvar_handle handle;
        if (MPI_T_cvar_get_info(i, name, &name_n, &verbosity, &type, &enumeration, text, &text_n,
                                &bind, &scope) != MPI_SUCCESS)
            continue;
        /* Not those of other components: stock leaves variables of components that it has closed.
         */
        listed++;
        if (strncmp(name, "mpi_", 4) && !strstr(name, "correlated"))
            continue;
        if (bind != MPI_T_BIND_NO_OBJECT ||
            MPI_T_cvar_handle_alloc(i, NULL, &handle, &count) != MPI_SUCCESS)
            continue;
        char *value = calloc((size_t)(count > 0 ? count : 1), 64);
        if (MPI_T_cvar_read(handle, value) == MPI_SUCCESS)
            readable++;
        free(value);
        MPI_T_cvar_handle_free(&handle);
    }
    CHECK(listed > 300, "%d cvars", listed);
    return readable;
}

int main(int argc, char **argv)
{
    int provided, x = 0;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    check_begin(&argc, &argv);
    STEP("before");
    int before = read_all(false);
    for (int k = 0; k < 100; k++)
        MPI_Sendrecv(&k, 1, MPI_INT, (me + 1) % np, 1, &x, 1, MPI_INT, (me + np - 1) % np, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    STEP("after");
    int after = read_all(me == 0);
    CHECK(after >= before, "pvars: %d readable before, %d after", before, after);
    STEP("cvars");
    int cvars = read_cvars();
    CHECK(cvars > 10, "%d readable cvars", cvars);
    if (me == 0)
        printf("%d pvars, %d cvars\n", after, cvars);
    MPI_T_finalize();
    return check_end();
}

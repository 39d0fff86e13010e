/* ranks: 1,2 ; nodes: 1 */
/* MPI_Comm_spawn: two children, traffic between parents and children of all sizes, merge, a
 * collective over all, disconnect; and MPI_Comm_connect/accept between halves of the job. (May be
 * documented as unsupported by a PML.) MPI 3.1 chapter 10. */
#include "check.h"

enum { CHILDREN = 2 };

static void talk(MPI_Comm inter, int my_rank, int remote, int side)
{
    static const int sizes[] = {0, 4, 1000, 5000, 70000, LARGE_BYTES};
    for (int i = 0; i < LENGTH(sizes); i++) {
        int n = sizes[i];
        unsigned char *out = buffer_new((size_t)n), *in = buffer_new((size_t)n);
        MPI_Request *r = malloc((size_t)remote * sizeof *r);
        STEP("side %d, %d bytes", side, n);
        fill(out, (size_t)n, key_of(side * 100 + my_rank, i, n, 0));
        for (int k = 0; k < remote; k++)
            MPI_Isend(out, n, MPI_BYTE, k, i, inter, &r[k]);
        for (int k = 0; k < remote; k++) {
            MPI_Status st;
            poison(in, (size_t)n);
            MPI_Recv(in, n, MPI_BYTE, i % 2 ? MPI_ANY_SOURCE : k, i, inter, &st);
            STATUS(&st, st.MPI_SOURCE, i, n);
            VERIFY(in, n, key_of((1 - side) * 100 + st.MPI_SOURCE, i, n, 0), "from the other side");
        }
        MPI_Waitall(remote, r, MPI_STATUSES_IGNORE);
        MPI_Barrier(inter);
        free(r);
        buffer_free(out);
        buffer_free(in);
    }
}

static void together(MPI_Comm inter, int side)
{
    MPI_Comm all;
    int rank, size, sum = 0, got = -1;
    STEP("merge, side %d", side);
    MPI_Intercomm_merge(inter, side, &all);
    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all);
    CHECK_EQ(sum, size * (size - 1) / 2, "sum over parents and children");
    MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 1, &got, 1, MPI_INT,
                 (rank + size - 1) % size, 1, all, MPI_STATUS_IGNORE);
    CHECK_EQ(got, (rank + size - 1) % size, "ring over parents and children");
    MPI_Comm_free(&all);
}

int main(int argc, char **argv)
{
    MPI_Comm parent, children;
    int errors[CHILDREN], remote;
    check_begin(&argc, &argv);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) { /* a child: its world are the children */
        MPI_Comm_remote_size(parent, &remote);
        CHECK(argc == 2 && !strcmp(argv[1], "child"), "arguments of a child");
        talk(parent, me, remote, 1);
        together(parent, 1);
        MPI_Comm_disconnect(&parent);
        MPI_Finalize();
        return 0;
    }
    for (int round = 0; round < 2; round++) {
        char *arguments[] = {"child", NULL};
        STEP("spawn %d", round);
        MPI_Comm_spawn(argv[0], arguments, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children,
                       errors);
        for (int k = 0; k < CHILDREN; k++)
            CHECK_EQ(errors[k], MPI_SUCCESS, "error code of a child");
        MPI_Comm_remote_size(children, &remote);
        CHECK_EQ(remote, CHILDREN, "number of children");
        talk(children, me, remote, 0);
        together(children, 0);
        STEP("disconnect");
        MPI_Comm_disconnect(&children);
    }
    if (np > 1) {
        char port[MPI_MAX_PORT_NAME];
        MPI_Comm half, inter;
        STEP("connect and accept");
        MPI_Comm_split(MPI_COMM_WORLD, me % 2, 0, &half);
        if (me == 0)
            MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Bcast(port, MPI_MAX_PORT_NAME, MPI_CHAR, 0, MPI_COMM_WORLD);
        if (me % 2 == 0)
            MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &inter);
        else
            MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &inter);
        int half_rank;
        MPI_Comm_rank(half, &half_rank);
        MPI_Comm_remote_size(inter, &remote);
        talk(inter, half_rank, remote, me % 2);
        MPI_Comm_disconnect(&inter);
        if (me == 0)
            MPI_Close_port(port);
        MPI_Comm_free(&half);
    }
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* MPI_PROC_NULL everywhere a rank may stand; a line of ranks with open ends. MPI 3.1 section 3.11.
 */
#include "check.h"

static void null_status(const MPI_Status *st)
{
    int count = -1;
    MPI_Get_count(st, MPI_INT, &count);
    CHECK(st->MPI_SOURCE == MPI_PROC_NULL && st->MPI_TAG == MPI_ANY_TAG && count == 0,
          "status of PROC_NULL: source %d tag %d count %d", st->MPI_SOURCE, st->MPI_TAG, count);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int x = 42, y = 43, size = 1000;
    MPI_Request r[6];
    MPI_Status st[6];
    char attached[1000];
    void *detached;
    STEP("blocking");
    MPI_Buffer_attach(attached, size);
    MPI_Send(&x, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    MPI_Ssend(&x, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    MPI_Bsend(&x, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    MPI_Rsend(&x, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD);
    MPI_Recv(&y, 1, MPI_INT, MPI_PROC_NULL, MPI_ANY_TAG, MPI_COMM_WORLD, &st[0]);
    null_status(&st[0]);
    MPI_Sendrecv(&x, 1, MPI_INT, MPI_PROC_NULL, 1, &y, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD,
                 &st[0]);
    null_status(&st[0]);
    MPI_Sendrecv_replace(&y, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_PROC_NULL, 1, MPI_COMM_WORLD,
                         &st[0]);
    null_status(&st[0]);
    STEP("nonblocking");
    MPI_Isend(&x, 1, MPI_INT, MPI_PROC_NULL, 2, MPI_COMM_WORLD, &r[0]);
    MPI_Issend(&x, 1, MPI_INT, MPI_PROC_NULL, 2, MPI_COMM_WORLD, &r[1]);
    MPI_Ibsend(&x, 1, MPI_INT, MPI_PROC_NULL, 2, MPI_COMM_WORLD, &r[2]);
    MPI_Irsend(&x, 1, MPI_INT, MPI_PROC_NULL, 2, MPI_COMM_WORLD, &r[3]);
    MPI_Irecv(&y, 1, MPI_INT, MPI_PROC_NULL, 2, MPI_COMM_WORLD, &r[4]);
    MPI_Irecv(&y, 1, MPI_INT, MPI_PROC_NULL, MPI_ANY_TAG, MPI_COMM_WORLD, &r[5]);
    MPI_Waitall(6, r, st);
    null_status(&st[4]);
    null_status(&st[5]);
    CHECK_EQ(y, 43, "buffer of a receive from PROC_NULL");
    MPI_Buffer_detach(&detached, &size);

    STEP("line");
    int left = me > 0 ? me - 1 : MPI_PROC_NULL, right = me < np - 1 ? me + 1 : MPI_PROC_NULL;
    for (int round = 0; round < 200; round++) {
        int from_left = -1, from_right = -1, mine = me * 1000 + round;
        MPI_Sendrecv(&mine, 1, MPI_INT, right, 3, &from_left, 1, MPI_INT, left, 3, MPI_COMM_WORLD,
                     &st[0]);
        MPI_Irecv(&from_right, 1, MPI_INT, right, 4, MPI_COMM_WORLD, &r[0]);
        MPI_Isend(&mine, 1, MPI_INT, left, 4, MPI_COMM_WORLD, &r[1]);
        MPI_Waitall(2, r, st + 1);
        CHECK_EQ(from_left, me > 0 ? mine - 1000 : -1, "from left");
        CHECK_EQ(from_right, me < np - 1 ? mine + 1000 : -1, "from right");
        if (me == 0)
            null_status(&st[0]);
        if (me == np - 1)
            null_status(&st[1]);
    }
    STEP("shift of a large array with replace");
    unsigned char *big = buffer_new(LARGE_BYTES);
    fill(big, LARGE_BYTES, key_of(me, 0, 0, 0));
    MPI_Sendrecv_replace(big, LARGE_BYTES, MPI_BYTE, right, 5, left, 5, MPI_COMM_WORLD, &st[0]);
    VERIFY(big, LARGE_BYTES, key_of(me > 0 ? me - 1 : 0, 0, 0, 0), "shifted");
    for (int round = 0; round < np; round++) /* and around */
        MPI_Sendrecv_replace(big, LARGE_BYTES, MPI_BYTE, (me + 1) % np, 6, (me + np - 1) % np, 6,
                             MPI_COMM_WORLD, &st[0]);
    VERIFY(big, LARGE_BYTES, key_of(me > 0 ? me - 1 : 0, 0, 0, 0), "all around");
    buffer_free(big);
    return check_end();
}

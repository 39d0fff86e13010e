/* ranks: 1,2,3,4 ; nodes: 1,2 */
/* Wrong arguments give the right error class, and communication goes on afterwards. */
#include "check.h"

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int x = 1, y = 0, *bound, flag, next = (me + 1) % np, previous = (me + np - 1) % np;
    MPI_Request r;
    MPI_Status st;
    MPI_Comm comm;
    MPI_Datatype open;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag);
    for (int round = 0; round < 20; round++) {
        STEP("ranks");
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, np, 0, comm), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, -7, 0, comm), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, MPI_ANY_SOURCE, 0, comm), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Isend(&x, 1, MPI_INT, np + 1, 0, comm, &r), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Ssend(&x, 1, MPI_INT, np, 0, comm), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Recv(&y, 1, MPI_INT, np, 0, comm, &st), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Irecv(&y, 1, MPI_INT, -9, 0, comm, &r), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Probe(np, 0, comm, &st), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Iprobe(np, 0, comm, &flag, &st), MPI_ERR_RANK);
        EXPECT_CLASS(MPI_Send_init(&x, 1, MPI_INT, np, 0, comm, &r), MPI_ERR_RANK);
        STEP("tags");
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, me, -1, comm), MPI_ERR_TAG);
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, me, -100, comm), MPI_ERR_TAG);
        if (*bound < INT_MAX)
            EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, me, *bound + 1, comm), MPI_ERR_TAG);
        EXPECT_CLASS(MPI_Recv(&y, 1, MPI_INT, me, -5, comm, &st), MPI_ERR_TAG);
        EXPECT_CLASS(MPI_Irecv(&y, 1, MPI_INT, me, -30, comm, &r), MPI_ERR_TAG);
        STEP("counts");
        EXPECT_CLASS(MPI_Send(&x, -1, MPI_INT, me, 0, comm), MPI_ERR_COUNT);
        EXPECT_CLASS(MPI_Recv(&y, -1, MPI_INT, me, 0, comm, &st), MPI_ERR_COUNT);
        STEP("types");
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_DATATYPE_NULL, me, 0, comm), MPI_ERR_TYPE);
        MPI_Type_contiguous(1, MPI_INT, &open); /* not committed */
        EXPECT_CLASS(MPI_Send(&x, 1, open, me, 0, comm), MPI_ERR_TYPE);
        MPI_Type_free(&open);
        STEP("communicator");
        EXPECT_CLASS(MPI_Send(&x, 1, MPI_INT, me, 0, MPI_COMM_NULL), MPI_ERR_COMM);
        STEP("requests");
        r = MPI_REQUEST_NULL;
        EXPECT_CLASS(MPI_Start(&r), MPI_ERR_REQUEST);
        EXPECT_CLASS(MPI_Cancel(&r), MPI_ERR_REQUEST);
        EXPECT_CLASS(MPI_Request_free(&r), MPI_ERR_REQUEST);
        EXPECT_CLASS(MPI_Bcast(&x, 1, MPI_INT, np, comm), MPI_ERR_ROOT);
        STEP("still usable");
        x = me * 10 + round;
        EXPECT_OK(MPI_Sendrecv(&x, 1, MPI_INT, next, 0, &y, 1, MPI_INT, previous, 0, comm, &st));
        CHECK_EQ(y, previous * 10 + round, "value after errors");
    }
    /* The three ways an error can reach the program. */
    STEP("error codes");
    char text[MPI_MAX_ERROR_STRING];
    int n = 0, class, code, mine;
    MPI_Error_string(MPI_ERR_TRUNCATE, text, &n);
    CHECK(n > 0, "no text for MPI_ERR_TRUNCATE");
    MPI_Add_error_class(&class);
    MPI_Add_error_code(class, &code);
    MPI_Add_error_string(code, "mine");
    MPI_Error_class(code, &mine);
    CHECK_EQ(mine, class, "class of an added code");
    MPI_Error_string(code, text, &n);
    CHECK(strcmp(text, "mine") == 0, "text of an added code: %s", text);
    MPI_Comm_free(&comm);
    return check_end();
}

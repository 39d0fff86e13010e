/* ranks: 2,4 ; nodes: 1,2,3 ; stock: fails */
/* A message that is longer than the receive must not write behind the buffer, contiguous or with
 * gaps, at any size. (Stock ob1 over vader writes the whole message.) And a message to oneself into
 * a posted receive that is too short is an error as well. (Stock does not tell.) */
#include "check.h"

static const int sizes[] = {100, 4097, 20000, 66000, LARGE_BYTES, 3000000};

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int peer = me ^ 1;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < LENGTH(sizes); i++)
        for (int way = 0; way < 8; way++) {
            int n = sizes[i], room = way & 4 ? 0 : n / 2;
            unsigned char *buffer = buffer_new((size_t)n);
            STEP("%d bytes into %d, way %d", n, room, way);
            if (me % 2 == 0) {
                fill(buffer, (size_t)n, key_of(me, 4, n, 0));
                if (way & 1)
                    MPI_Recv(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Ssend(buffer, n, MPI_BYTE, peer, 4, MPI_COMM_WORLD);
            } else {
                MPI_Request r;
                MPI_Datatype gaps;
                MPI_Type_vector(room / 8, 4, 8, MPI_BYTE, &gaps);
                MPI_Type_commit(&gaps);
                if (!(way & 1))
                    MPI_Probe(peer, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                if (way & 2)
                    MPI_Irecv(buffer, 1, gaps, peer, 4, MPI_COMM_WORLD, &r);
                else
                    MPI_Irecv(buffer, room, MPI_BYTE, peer, 4, MPI_COMM_WORLD, &r);
                if (way & 1)
                    MPI_Send(NULL, 0, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
                EXPECT_CLASS(MPI_Wait(&r, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
                for (int k = 0; (way & 2) && k < room / 8; k++)
                    UNTOUCHED(buffer + 8 * k + 4, 4, "gap");
                UNTOUCHED(buffer + room, n - room, "behind");
                MPI_Type_free(&gaps);
            }
            buffer_free(buffer);
        }
    int x[4] = {1, 2, 3, 4}, y[4] = {0};
    MPI_Request r;
    STEP("to oneself");
    MPI_Irecv(y, 1, MPI_INT, me, 2, MPI_COMM_WORLD, &r);
    EXPECT_OK(MPI_Send(x, 4, MPI_INT, me, 2, MPI_COMM_WORLD));
    EXPECT_CLASS(MPI_Wait(&r, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE);
    CHECK_EQ(y[1], 0, "behind");
    return check_end();
}

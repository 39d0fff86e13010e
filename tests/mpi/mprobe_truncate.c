/* ranks: 2,4 ; nodes: 1,2,3 ; stock: fails */
/* Mrecv and Imrecv into a buffer that is too short, at eager and rendezvous sizes: the error comes
 * and nothing is written behind the buffer (stock ob1 writes there). MPI 3.1 section 3.8.3. */
#include "check.h"

static const int sizes[] = {200, 4097, 65537, LARGE_BYTES};

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int peer = me ^ 1, flag;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < LENGTH(sizes); i++)
        for (int k = 0; k < 2; k++) {
            int n = sizes[i], room = i % 2 ? 100 : 0;
            unsigned char *buffer = buffer_new((size_t)n);
            STEP("%d bytes, %s", n, k ? "imrecv" : "mrecv");
            if (me % 2 == 0) {
                fill(buffer, (size_t)n, key_of(me, 4, n, k));
                MPI_Send(buffer, n, MPI_BYTE, peer, 4, MPI_COMM_WORLD);
                MPI_Send(buffer, n, MPI_BYTE, peer, 4, MPI_COMM_WORLD);
            } else {
                MPI_Message m;
                MPI_Status st;
                MPI_Request r;
                MPI_Mprobe(peer, 4, MPI_COMM_WORLD, &m, &st);
                STATUS(&st, peer, 4, n);
                if (k == 0) {
                    EXPECT_CLASS(MPI_Mrecv(buffer, room, MPI_BYTE, &m, &st), MPI_ERR_TRUNCATE);
                } else {
                    EXPECT_OK(MPI_Imrecv(buffer, room, MPI_BYTE, &m, &r));
                    EXPECT_CLASS(MPI_Wait(&r, &st), MPI_ERR_TRUNCATE);
                }
                UNTOUCHED(buffer + room, n - room, "behind a truncated message");
                /* The next one is whole. */
                MPI_Mprobe(MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &m, &st);
                EXPECT_OK(MPI_Mrecv(buffer, n, MPI_BYTE, &m, &st));
                VERIFY(buffer, n, key_of(peer, 4, n, k), "message after a truncated one");
                MPI_Iprobe(peer, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
                CHECK(!flag, "something is left");
            }
            buffer_free(buffer);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* The profiling interface: this program's own MPI_Send, MPI_Recv and MPI_Isend count and call PMPI;
 * the library's collectives do not come by; MPI_Pcontrol is harmless. MPI 3.1 section 14.2. */
#include "check.h"

static long sends, receives, bytes;

int MPI_Send(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm comm)
{
    int size;
    PMPI_Type_size(t, &size);
    sends++;
    bytes += (long)n * size;
    return PMPI_Send(b, n, t, to, tag, comm);
}

int MPI_Recv(void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm comm, MPI_Status *st)
{
    receives++;
    return PMPI_Recv(b, n, t, from, tag, comm, st);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int x[100] = {0}, next = (me + 1) % np, previous = (me + np - 1) % np;
    MPI_Pcontrol(1);
    MPI_Pcontrol(0, "text", 3.5);
    for (int k = 0; k < 50; k++) {
        MPI_Request r;
        MPI_Irecv(x, 100, MPI_INT, previous, 1, MPI_COMM_WORLD, &r);
        MPI_Send(x, 100, MPI_INT, next, 1, MPI_COMM_WORLD);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        MPI_Isend(x, 50, MPI_INT, next, 2, MPI_COMM_WORLD, &r);
        MPI_Recv(x, 100, MPI_INT, previous, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
        MPI_Bcast(x, 100, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Alltoall(MPI_IN_PLACE, 0, MPI_INT, x, 10, MPI_INT, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_EQ(sends, 50, "sends seen");
    CHECK_EQ(receives, 50, "receives seen");
    CHECK_EQ(bytes, 50 * 400, "bytes seen");
    return check_end();
}

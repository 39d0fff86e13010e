/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Point-to-point calls only, all modes, persistent, to oneself too, with
 * numbers that differ for each pair: what pmpi_count.c counts must be what the engine counts. No
 * collective and no new communicator, for those send messages that a profiling library cannot see.
 */
#include "check.h"

static void one_pair(int a, int b)
{
    typedef int send_function(const void *, int, MPI_Datatype, int, int, MPI_Comm);
    static send_function *const modes[] = {MPI_Send, MPI_Ssend, MPI_Bsend};
    int rounds = 3 + a * 5 + b * 7;
    unsigned char *buffer = buffer_new(400000);
    MPI_Datatype gaps;
    MPI_Type_vector(10, 3, 5, MPI_DOUBLE, &gaps);
    MPI_Type_commit(&gaps);
    for (int k = 0; k < rounds; k++) {
        int n = (int)(mix64((uint64_t)(a * 1000 + b * 100 + k)) % (k % 5 ? 5000 : 300000));
        STEP("%d -> %d, round %d", a, b, k);
        if (me == a) {
            fill(buffer, (size_t)n, key_of(a, b, k, 0));
            modes[k % 3](buffer, n, MPI_BYTE, b, 1, MPI_COMM_WORLD);
            MPI_Request r;
            MPI_Isend(buffer, 0, MPI_BYTE, b, 2, MPI_COMM_WORLD, &r);
            MPI_Wait(&r, MPI_STATUS_IGNORE);
            MPI_Send(buffer, 2, gaps, b, 3, MPI_COMM_WORLD); /* 480 bytes */
        } else {
            MPI_Recv(buffer, n, MPI_BYTE, a, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            VERIFY(buffer, n, key_of(a, b, k, 0), "counted");
            MPI_Recv(buffer, 0, MPI_BYTE, a, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Recv(buffer, 2, gaps, a, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    MPI_Request r;
    STEP("%d -> %d, persistent", a, b);
    if (me == a)
        MPI_Send_init(buffer, 777, MPI_BYTE, b, 4, MPI_COMM_WORLD, &r);
    else
        MPI_Recv_init(buffer, 777, MPI_BYTE, a, 4, MPI_COMM_WORLD, &r);
    for (int k = 0; k < 10; k++) {
        MPI_Start(&r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&r);
    MPI_Type_free(&gaps);
    buffer_free(buffer);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int size = 2000000, x = 1, y = 0;
    void *attached = malloc((size_t)size), *detached;
    MPI_Request r;
    MPI_Buffer_attach(attached, size);
    for (int a = 0; a < np; a++)
        for (int b = 0; b < np; b++)
            if (a != b && (me == a || me == b))
                one_pair(a, b);
    MPI_Buffer_detach(&detached, &size);
    free(attached);
    STEP("ring");
    for (int k = 0; k < 20; k++) /* and to oneself */
        MPI_Sendrecv(&x, 1, MPI_INT, (me + k) % np, k, &y, 1, MPI_INT, (me + np * k - k) % np, k,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv_replace(&x, 1, MPI_INT, (me + 1) % np, 99, (me + np - 1) % np, 99, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
    MPI_Isend(&x, 1, MPI_INT, 0, 5, MPI_COMM_SELF, &r);
    MPI_Recv(&y, 1, MPI_INT, 0, 5, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    STEP("token around, twice: nobody leaves before all are done");
    for (int k = 0; k < 2; k++) {
        if (me)
            MPI_Recv(&x, 1, MPI_INT, me - 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(&x, 1, MPI_INT, (me + 1) % np, 6, MPI_COMM_WORLD);
        if (me == 0)
            MPI_Recv(&x, 1, MPI_INT, np - 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (me == 0)
        printf("OK\n");
    MPI_Finalize();
    return 0;
}

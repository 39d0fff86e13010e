/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; stock: fails */
/* Persistent buffered sends, started many times with other contents. Stock ob1 sends from the
 * copy of the first start, whose space is free by then. MPI 3.1 section 3.9. */
#include "check.h"

static const long sizes[] = {0, 1, 64, 4097, 65537, LARGE_BYTES};
enum { N = LENGTH(sizes) };

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int next = (me + 1) % np, previous = (me + np - 1) % np, size = 20 * 400000;
    void *attached = malloc((size_t)size), *detached;
    unsigned char *in[N], *out[N];
    MPI_Request r[2 * N];
    MPI_Status st[2 * N];
    MPI_Buffer_attach(attached, size);
    for (int i = 0; i < N; i++) {
        in[i] = buffer_new((size_t)sizes[i]);
        out[i] = buffer_new((size_t)sizes[i]);
        MPI_Recv_init(in[i], (int)sizes[i], MPI_BYTE, previous, i, MPI_COMM_WORLD, &r[i]);
        MPI_Bsend_init(out[i], (int)sizes[i], MPI_BYTE, next, i, MPI_COMM_WORLD, &r[N + i]);
    }
    for (int round = 0; round < 40; round++) {
        STEP("round %d", round);
        for (int i = 0; i < N; i++) {
            poison(in[i], (size_t)sizes[i]);
            fill(out[i], (size_t)sizes[i], key_of(me, i, 0, round));
        }
        if (round % 2) { /* local completion, nobody receives yet */
            MPI_Startall(N, r + N);
            MPI_Waitall(N, r + N, MPI_STATUSES_IGNORE);
            for (int i = 0; i < N; i++)
                poison(out[i], (size_t)sizes[i]);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Startall(N, r);
            MPI_Waitall(N, r, st);
        } else {
            MPI_Startall(2 * N, r);
            MPI_Waitall(2 * N, r, st);
        }
        for (int i = 0; i < N; i++) {
            STATUS(&st[i], previous, i, sizes[i]);
            VERIFY(in[i], sizes[i], key_of(previous, i, 0, round), "persistent bsend");
        }
    }
    for (int i = 0; i < N; i++) {
        MPI_Request_free(&r[i]);
        MPI_Request_free(&r[N + i]);
        buffer_free(in[i]);
        buffer_free(out[i]);
    }
    MPI_Buffer_detach(&detached, &size);
    free(attached);
    return check_end();
}

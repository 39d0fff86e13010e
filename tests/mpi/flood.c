/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* 20,000 unexpected messages received in reverse order of their tags; 10,000 posted receives that
 * complete in reverse order; unexpected messages of all sizes under one wildcard receive after the
 * other; and the memory for them comes back. */
#include "check.h"

static void unexpected_reverse(int count, int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    size_t size = (size_t)n;
    unsigned char *out = buffer_new(size * (size_t)count), *in = buffer_new(size);
    MPI_Request *r = malloc((size_t)count * sizeof *r);
    MPI_Status st;
    STEP("%d unexpected of %d bytes", count, n);
    for (int k = 0; k < count; k++) {
        fill(out + size * (size_t)k, size, key_of(me, k, n, 0));
        MPI_Isend(out + size * (size_t)k, n, MPI_BYTE, next, k, MPI_COMM_WORLD, &r[k]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = count - 1; k >= 0; k--) {
        MPI_Recv(in, n, MPI_BYTE, previous, k, MPI_COMM_WORLD, &st);
        STATUS(&st, previous, k, n);
        VERIFY(in, n, key_of(previous, k, n, 0), "unexpected");
    }
    MPI_Waitall(count, r, MPI_STATUSES_IGNORE);
    free(r);
    buffer_free(out);
    buffer_free(in);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void posted_reverse(int count)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    int *in = malloc((size_t)count * sizeof *in);
    MPI_Request *r = malloc((size_t)count * sizeof *r);
    STEP("%d posted", count);
    for (int k = 0; k < count; k++) {
        in[k] = -1;
        MPI_Irecv(&in[k], 1, MPI_INT, k % 7 ? previous : MPI_ANY_SOURCE, k, MPI_COMM_WORLD, &r[k]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = count - 1; k >= 0; k--) {
        int x = k * 3 + me;
        MPI_Send(&x, 1, MPI_INT, next, k, MPI_COMM_WORLD);
    }
    MPI_Waitall(count, r, MPI_STATUSES_IGNORE);
    for (int k = 0; k < count; k++)
        CHECK_EQ(in[k], k * 3 + previous, "posted");
    free(in), free(r);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Many to one: every rank floods rank 0, which reads in the order of its own choice. */
static void many_to_one(int count)
{
    STEP("many to one");
    if (me) {
        MPI_Request *r = malloc((size_t)count * sizeof *r);
        int *x = malloc((size_t)count * sizeof *x);
        for (int k = 0; k < count; k++) {
            x[k] = me * 100000 + k;
            MPI_Isend(&x[k], 1, MPI_INT, 0, k % 100, MPI_COMM_WORLD, &r[k]);
        }
        MPI_Waitall(count, r, MPI_STATUSES_IGNORE);
        free(r), free(x);
    } else {
        sleep_ms(100);
        for (int tag = 99; tag >= 0; tag--)
            for (int source = np - 1; source > 0; source--)
                for (int k = tag; k < count; k += 100) {
                    int x;
                    MPI_Recv(&x, 1, MPI_INT, source, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    CHECK_EQ(x, source * 100000 + k, "flooded");
                }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    long before = 0;
    for (int round = 0; round < 4; round++) {
        unexpected_reverse((int)scaled(round ? 3000 : 20000), 32);
        unexpected_reverse((int)scaled(1000), 1000);
        posted_reverse((int)scaled(round ? 2000 : 10000));
        many_to_one((int)scaled(5000));
        if (round == 0)
            before = resident_kib();
    }
    long grown = resident_kib() - before;
    CHECK(grown < 20000, "memory grew by %ld KiB after the largest round", grown);
    return check_end();
}

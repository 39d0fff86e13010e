/* ranks: 2,3,4 ; nodes: 1,2,3 ; stock: fails between nodes, where it takes no buffer for short ones */
/* Buffered mode: a Bsend ends without any receiver, an attached buffer that is too small is an
 * error, detach waits until everything has left. MPI 3.1 sections 3.4, 3.6. */
#include "check.h"

static int packed_bytes(int n)
{
    int size;
    MPI_Pack_size(n, MPI_BYTE, MPI_COMM_WORLD, &size);
    return size + MPI_BSEND_OVERHEAD;
}

/* N messages leave although nobody receives; then detach, which waits; then they all arrive. */
static void local_completion(int n, int count, bool nonblocking)
{
    int size = count * packed_bytes(n);
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *attached = malloc((size_t)size), *out = buffer_new((size_t)n);
    STEP("%d bsends of %d bytes", count, n);
    EXPECT_OK(MPI_Buffer_attach(attached, size));
    for (int i = 0; i < count; i++) {
        fill(out, (size_t)n, key_of(me, 7, i, n));
        if (nonblocking) {
            MPI_Request r;
            MPI_Ibsend(out, n, MPI_BYTE, next, 7, MPI_COMM_WORLD, &r);
            MPI_Wait(&r, MPI_STATUS_IGNORE); /* local: must end without a receiver */
        } else {
            MPI_Bsend(out, n, MPI_BYTE, next, 7, MPI_COMM_WORLD);
        }
        poison(out, (size_t)n);
    }
    buffer_free(out);
    MPI_Barrier(MPI_COMM_WORLD); /* everybody got here: nobody has received */
    MPI_Request *r = malloc((size_t)count * sizeof *r);
    unsigned char **in = malloc((size_t)count * sizeof *in);
    for (int i = 0; i < count; i++) {
        in[i] = buffer_new((size_t)n);
        MPI_Irecv(in[i], n, MPI_BYTE, previous, 7, MPI_COMM_WORLD, &r[i]);
    }
    void *detached = NULL;
    int detached_size = -1;
    EXPECT_OK(MPI_Buffer_detach(&detached, &detached_size));
    CHECK(detached == attached, "detach gave another address");
    CHECK_EQ(detached_size, size, "size given by detach");
    poison(attached, (size_t)size); /* nothing may still be sent from it */
    MPI_Waitall(count, r, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++) {
        VERIFY(in[i], n, key_of(previous, 7, i, n), "bsend");
        buffer_free(in[i]);
    }
    free(in), free(r), free(attached);
}

/* Space comes back when messages have left: far more traffic than the buffer holds. */
static void buffer_is_reused(void)
{
    enum { N = 1000, ROUNDS = 300 };
    int size = 4 * packed_bytes(N), next = (me + 1) % np, previous = (me + np - 1) % np;
    void *attached = malloc((size_t)size), *detached;
    unsigned char *out = buffer_new(N), *in = buffer_new(N);
    STEP("buffer reused");
    MPI_Buffer_attach(attached, size);
    for (int i = 0; i < ROUNDS; i++) {
        fill(out, N, key_of(me, 8, i, 0));
        MPI_Bsend(out, N, MPI_BYTE, next, 8, MPI_COMM_WORLD);
        MPI_Recv(in, N, MPI_BYTE, previous, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        VERIFY(in, N, key_of(previous, 8, i, 0), "reused");
    }
    MPI_Buffer_detach(&detached, &size);
    free(attached);
    buffer_free(out);
    buffer_free(in);
}

static void too_small(void)
{
    enum { N = 10000 };
    int size = packed_bytes(N) / 2, next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *attached = malloc((size_t)size), *data = buffer_new(N);
    void *detached;
    MPI_Request r = MPI_REQUEST_NULL;
    /* Its own communicator: in stock ob1 a refused Bsend takes a sequence number with it, and the
     * receiver waits for it for ever. */
    MPI_Comm comm;
    STEP("buffer too small");
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    fill(data, N, key_of(me, 1, 1, 1));
    EXPECT_CLASS(MPI_Bsend(data, N, MPI_BYTE, next, 1, comm), MPI_ERR_BUFFER);
    EXPECT_OK(MPI_Buffer_attach(attached, size));
    CHECK(MPI_Buffer_attach(data, N) != MPI_SUCCESS, "a second attach"); /* stock: not a real code
                                                                          */
    EXPECT_CLASS(MPI_Bsend(data, N, MPI_BYTE, next, 1, comm), MPI_ERR_BUFFER);
    EXPECT_CLASS(MPI_Ibsend(data, N, MPI_BYTE, next, 1, comm, &r), MPI_ERR_BUFFER);
    /* The smaller one still fits. */
    EXPECT_OK(MPI_Bsend(data, 100, MPI_BYTE, next, 2, MPI_COMM_WORLD));
    poison(data, N);
    EXPECT_OK(MPI_Recv(data, N, MPI_BYTE, previous, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    VERIFY(data, 100, key_of(previous, 1, 1, 1), "the one that fits");
    EXPECT_OK(MPI_Buffer_detach(&detached, &size));
    CHECK(detached == attached, "detach gave another address");
    /* The refused ones must not arrive. */
    int flag = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < 10; k++) {
        MPI_Iprobe(MPI_ANY_SOURCE, 1, comm, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag, "a refused message arrived");
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Comm_free(&comm);
    free(attached);
    buffer_free(data);
}

/* Detach must not return while a message is not yet received (it may only have left the buffer). */
static void detach_keeps_data(void)
{
    int n = 2000000, size = packed_bytes(n);
    STEP("detach keeps data");
    if (me == 0) {
        void *attached = malloc((size_t)size), *detached;
        unsigned char *out = buffer_new((size_t)n);
        fill(out, (size_t)n, key_of(0, 4, 4, 4));
        MPI_Buffer_attach(attached, size);
        MPI_Bsend(out, n, MPI_BYTE, 1, 4, MPI_COMM_WORLD);
        buffer_free(out);
        MPI_Buffer_detach(&detached, &size);
        memset(detached, 0, (size_t)size);
        free(detached);
    } else if (me == 1) {
        unsigned char *in = buffer_new((size_t)n);
        sleep_ms(50);
        MPI_Recv(in, n, MPI_BYTE, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        VERIFY(in, n, key_of(0, 4, 4, 4), "after detach");
        buffer_free(in);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    local_completion(0, 10, false);
    local_completion(100, 50, false);
    local_completion(100, 50, true);
    local_completion(70000, 8, false);
    local_completion(1000000, 3, true);
    buffer_is_reused();
    detach_keeps_data();
    too_small();
    local_completion(5000, 4, false);
    return check_end();
}

/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* The four send modes, blocking: standard, synchronous (must not end before the match), ready and
 * buffered. MPI 3.1 section 3.4. */
#include "check.h"

static const long sizes[] = {0, 1, 64, 4096, 4097, 65536, LARGE_BYTES, 2000000};

typedef int send_function(const void *, int, MPI_Datatype, int, int, MPI_Comm);

static void each_mode(int from, int to)
{
    static send_function *const mode[] = {MPI_Send, MPI_Ssend, MPI_Bsend, MPI_Rsend};
    for (int m = 0; m < LENGTH(mode); m++)
        for (int i = 0; i < LENGTH(sizes); i++) {
            int n = (int)sizes[i], tag = 10 * m + i;
            STEP("mode %d, %d bytes, %d -> %d", m, n, from, to);
            if (me == from) {
                unsigned char *out = buffer_new((size_t)n);
                fill(out, (size_t)n, key_of(me, tag, to, n));
                if (mode[m] == MPI_Rsend) /* only after the receive is posted */
                    MPI_Recv(NULL, 0, MPI_BYTE, to, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                mode[m](out, n, MPI_BYTE, to, tag, MPI_COMM_WORLD);
                poison(out, (size_t)n); /* the buffer is ours again in every mode */
                buffer_free(out);
            } else if (me == to) {
                unsigned char *in = buffer_new((size_t)n);
                MPI_Request r;
                MPI_Status st;
                if (i % 2 && mode[m] != MPI_Rsend)
                    sleep_ms(2); /* unexpected */
                MPI_Irecv(in, n, MPI_BYTE, from, tag, MPI_COMM_WORLD, &r);
                if (mode[m] == MPI_Rsend)
                    MPI_Send(NULL, 0, MPI_BYTE, from, 99, MPI_COMM_WORLD);
                MPI_Wait(&r, &st);
                STATUS(&st, from, tag, n);
                VERIFY(in, n, key_of(from, tag, to, n), "mode");
                buffer_free(in);
            }
        }
}

/* MPI_Ssend must not return before the receive is posted: the message behind it must not come. */
static void sync_waits_for_match(int from, int to, int n)
{
    unsigned char *buffer = buffer_new((size_t)n);
    STEP("ssend waits for the match, %d bytes", n);
    if (me == from) {
        fill(buffer, (size_t)n, key_of(me, 1, to, 5));
        MPI_Ssend(buffer, n, MPI_BYTE, to, 1, MPI_COMM_WORLD);
        MPI_Send(NULL, 0, MPI_BYTE, to, 2, MPI_COMM_WORLD);
    } else if (me == to) {
        int flag = 0;
        for (int k = 0; k < 40; k++) {
            MPI_Iprobe(from, 2, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            CHECK(!flag, "a synchronous send of %d bytes ended without a matching receive", n);
            sleep_ms(1);
        }
        MPI_Recv(buffer, n, MPI_BYTE, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        VERIFY(buffer, n, key_of(from, 1, to, 5), "ssend");
        MPI_Recv(NULL, 0, MPI_BYTE, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    buffer_free(buffer);
}

/* A receive for another tag, or a probe, is no match. */
static void probe_is_no_match(int from, int to)
{
    int x = 4711, flag;
    STEP("a probe must not complete a synchronous send");
    if (me == from) {
        MPI_Request r;
        MPI_Issend(&x, 1, MPI_INT, to, 3, MPI_COMM_WORLD, &r);
        for (int k = 0; k < 30; k++) {
            MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
            CHECK(!flag, "Issend complete although only probed");
            sleep_ms(1);
        }
        MPI_Send(&x, 1, MPI_INT, to, 4, MPI_COMM_WORLD);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
    } else if (me == to) {
        MPI_Request other;
        MPI_Status st;
        int y = 0, z = 0;
        MPI_Irecv(&y, 1, MPI_INT, from, 4, MPI_COMM_WORLD, &other);
        MPI_Probe(from, 3, MPI_COMM_WORLD, &st);
        STATUS(&st, from, 3, 4);
        MPI_Wait(&other, MPI_STATUS_IGNORE);
        MPI_Recv(&z, 1, MPI_INT, from, 3, MPI_COMM_WORLD, &st);
        CHECK_EQ(y, x, "other");
        CHECK_EQ(z, x, "probed");
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int size = 3000000 + 64 * MPI_BSEND_OVERHEAD;
    void *attached = malloc((size_t)size), *detached;
    MPI_Buffer_attach(attached, size);
    for (int a = 0; a < np; a++) {
        int b = (a + 1) % np;
        each_mode(a, b);
        sync_waits_for_match(a, b, 0);
        sync_waits_for_match(a, b, SMALL_BYTES);
        sync_waits_for_match(a, b, LARGE_BYTES);
        probe_is_no_match(a, b);
    }
    MPI_Buffer_detach(&detached, &size);
    CHECK(detached == attached, "detached another buffer");
    free(attached);
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* MPI_Request_free on active sends and receives: the operation goes on and ends by itself; many of
 * them; the memory of the engine's requests comes back. MPI 3.1 section 3.7.3. */
#include "check.h"
#include <sys/mman.h>

enum { N = 64 };

static void sends(int n, bool synchronous, int iteration)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *out[N], *in = buffer_new((size_t)n);
    STEP("freed sends of %d bytes, synchronous %d", n, synchronous);
    for (int k = 0; k < N; k++) {
        MPI_Request r;
        out[k] = buffer_new((size_t)n);
        fill(out[k], (size_t)n, key_of(me, k, n, iteration));
        if (synchronous)
            MPI_Issend(out[k], n, MPI_BYTE, next, k, MPI_COMM_WORLD, &r);
        else
            MPI_Isend(out[k], n, MPI_BYTE, next, k, MPI_COMM_WORLD, &r);
        MPI_Request_free(&r);
        CHECK(r == MPI_REQUEST_NULL, "freed request not null");
    }
    for (int k = N - 1; k >= 0; k--) {
        MPI_Status st;
        poison(in, (size_t)n);
        MPI_Recv(in, n, MPI_BYTE, previous, k, MPI_COMM_WORLD, &st);
        STATUS(&st, previous, k, n);
        VERIFY(in, n, key_of(previous, k, n, iteration), "from a freed send");
    }
    /* Everybody has everything of mine when everybody has told that. */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < N; k++)
        buffer_free(out[k]);
    buffer_free(in);
}

/* A freed receive is complete when a later message of the same pair has come (they are in order)
 * and its bytes are there; the program polls its last byte. */
static void receives(int n, bool wildcard, int iteration)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np, go = -1;
    unsigned char *in[N], *out = buffer_new((size_t)n);
    STEP("freed receives of %d bytes", n);
    for (int k = 0; k < N; k++) {
        MPI_Request r;
        in[k] = buffer_new((size_t)n);
        MPI_Irecv(in[k], n, MPI_BYTE, wildcard ? MPI_ANY_SOURCE : previous, k, MPI_COMM_WORLD, &r);
        MPI_Request_free(&r);
        CHECK(r == MPI_REQUEST_NULL, "freed request not null");
    }
    for (int k = 0; k < N; k++) {
        fill(out, (size_t)n, key_of(me, k, n, iteration));
        MPI_Ssend(out, n, MPI_BYTE, next, k, MPI_COMM_WORLD);
    }
    MPI_Sendrecv(&me, 1, MPI_INT, next, 999, &go, 1, MPI_INT, previous, 999, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    CHECK_EQ(go, previous, "the message behind them");
    /* The engine may still copy rendezvous payload: let it go on, bounded. */
    for (int tries = 0; tries < 5000; tries++) {
        int flag, left = 0;
        for (int k = 0; k < N; k++)
            left += differs(in[k], (size_t)n, key_of(previous, k, n, iteration)) != (size_t)n;
        if (!left)
            break;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
        sleep_ms(1);
    }
    for (int k = 0; k < N; k++) {
        VERIFY(in[k], n, key_of(previous, k, n, iteration), "into a freed receive");
        buffer_free(in[k]);
    }
    buffer_free(out);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Who is told by the receiver that it has everything knows that a freed send is complete, and may
 * take the buffer away (MPI 3.1 section 3.7.3, example 3.14): nothing may read it any more. */
static void told_by_the_receiver(int n)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    size_t bytes = (size_t)n * N;
    unsigned char *in = buffer_new((size_t)n);
    unsigned char *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                              0);
    STEP("freed sends of %d bytes, gone when their receiver says so", n);
    CHECK(out != MAP_FAILED, "no memory");
    for (int k = 0; k < N; k++) {
        MPI_Request r;
        fill(out + (size_t)k * n, (size_t)n, key_of(me, k, n, 0));
        MPI_Isend(out + (size_t)k * n, n, MPI_BYTE, next, k, MPI_COMM_WORLD, &r);
        MPI_Request_free(&r);
    }
    for (int k = 0; k < N; k++) {
        poison(in, (size_t)n);
        MPI_Recv(in, n, MPI_BYTE, previous, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        VERIFY(in, n, key_of(previous, k, n, 0), "from a freed send");
    }
    MPI_Sendrecv(&me, 1, MPI_INT, previous, 998, &next, 1, MPI_INT, next, 998, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    munmap(out, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    buffer_free(in);
}

static void memory_comes_back(void)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np, x = 3, y;
    long before = 0, rounds = scaled(24000);
    STEP("memory");
    for (long k = 0; k < rounds; k++) {
        MPI_Request r;
        MPI_Isend(&x, 1, MPI_INT, next, 7, MPI_COMM_WORLD, &r);
        MPI_Request_free(&r);
        y = 0;
        MPI_Recv(&y, 1, MPI_INT, previous, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK_EQ(y, 3, "value");
        if (k == rounds / 2)
            before = resident_kib();
    }
    long grown = resident_kib() - before;
    CHECK(grown < 2000, "memory grew by %ld KiB in %ld freed sends", grown, rounds / 2);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int k = 0; k < 8; k++) {
        sends(0, k & 1, k);
        sends(SMALL_BYTES, k & 1, k);
        sends(5000, k & 1, k);
        sends(LARGE_BYTES / 4, k & 1, k);
        if (np > 1) {
            receives(0, k & 1, k);
            receives(SMALL_BYTES, k & 1, k);
            receives(5000, k & 1, k);
            receives(LARGE_BYTES / 4, k & 1, k);
        }
    }
    for (int k = 0; k < 4; k++)
        told_by_the_receiver(k % 2 ? LARGE_BYTES : LARGE_BYTES / 4);
    memory_comes_back();
    return check_end();
}

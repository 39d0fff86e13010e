/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Non-overtaking: messages of one pair and communicator match in the order they were sent, whatever
 * mix of sizes, modes and tags; posted receives match in the order they were posted, whatever mix
 * of named and wildcard. MPI 3.1 section 3.5. */
#include "check.h"

enum { N = 200 };

static int size_of(uint64_t seed, int k)
{
    static const int sizes[] = {4, 8, 60, 4000, 4097, 20000, 65536, 70000, 150000};
    return sizes[mix64(seed * 1000 + (uint64_t)k) % LENGTH(sizes)];
}

/* Same tag: the k-th receive gets the k-th message. Receives posted early, late or in the middle.
 */
static void same_tag(int from, int to, int seed)
{
    static unsigned char *buffer[N];
    static MPI_Request r[N];
    static MPI_Status st[N];
    STEP("same tag %d -> %d seed %d", from, to, seed);
    if (me == from) {
        for (int k = 0; k < N; k++) {
            int n = size_of((uint64_t)seed, k);
            buffer[k] = buffer_new((size_t)n);
            fill(buffer[k], (size_t)n, key_of(me, 1, k, seed));
            if (k % 5 == 3)
                MPI_Issend(buffer[k], n, MPI_BYTE, to, 1, MPI_COMM_WORLD, &r[k]);
            else
                MPI_Isend(buffer[k], n, MPI_BYTE, to, 1, MPI_COMM_WORLD, &r[k]);
        }
        MPI_Waitall(N, r, MPI_STATUSES_IGNORE);
    } else if (me == to) {
        for (int k = 0; k < N; k++) {
            if (k == N / 2 && seed % 3 == 1)
                sleep_ms(3);
            int source = mix64((uint64_t)(k + seed)) % 2 ? MPI_ANY_SOURCE : from;
            int tag = mix64((uint64_t)(k - seed)) % 2 ? MPI_ANY_TAG : 1;
            buffer[k] = buffer_new(150000);
            MPI_Irecv(buffer[k], 150000, MPI_BYTE, source, tag, MPI_COMM_WORLD, &r[k]);
            if (seed % 3 == 2)
                MPI_Wait(&r[k], &st[k]);
        }
        if (seed % 3 != 2)
            MPI_Waitall(N, r, st);
        for (int k = 0; k < N; k++) {
            STATUS(&st[k], from, 1, size_of((uint64_t)seed, k));
            VERIFY(buffer[k], size_of((uint64_t)seed, k), key_of(from, 1, k, seed), "order");
        }
    }
    for (int k = 0; k < N && (me == from || me == to); k++)
        buffer_free(buffer[k]);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Many tags from every rank to every rank, ANY_TAG receives per source: tags come in send order. */
static void any_tag(int seed)
{
    int total = N * (np - 1), counts[64] = {0};
    int *out = malloc((size_t)total * sizeof *out), *in = malloc((size_t)total * sizeof *in);
    MPI_Request *r = malloc(2 * (size_t)total * sizeof *r);
    MPI_Status *st = malloc(2 * (size_t)total * sizeof *st);
    STEP("any tag seed %d", seed);
    for (int k = 0, q = 0; k < N; k++)
        for (int peer = 0; peer < np; peer++)
            if (peer != me) {
                MPI_Irecv(&in[q], 1, MPI_INT, peer, MPI_ANY_TAG, MPI_COMM_WORLD, &r[q]);
                q++;
            }
    for (int k = 0, q = 0; k < N; k++)
        for (int peer = 0; peer < np; peer++)
            if (peer != me) {
                int tag = (int)(mix64((uint64_t)(seed * N + k)) % 1000);
                out[q] = k;
                MPI_Isend(&out[q], 1, MPI_INT, peer, tag, MPI_COMM_WORLD, &r[total + q]);
                q++;
            }
    MPI_Waitall(2 * total, r, st);
    for (int q = 0; q < total; q++) {
        int k = counts[st[q].MPI_SOURCE % 64]++;
        CHECK_EQ(in[q], k, "number of the message");
        STATUS(&st[q], st[q].MPI_SOURCE, (int)(mix64((uint64_t)(seed * N + k)) % 1000), 4);
    }
    free(out), free(in), free(r), free(st);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Posted order between wildcard and named receives, each matching message takes the first that
 * fits. */
static void posted_order(void)
{
    enum { M = 6 };
    static const int wildcard_source[M] = {1, 0, 1, 0, 0, 1}, wildcard_tag[M] = {0, 1, 1, 0, 1, 0};
    int in[M], peer = me ^ 1;
    MPI_Request r[M];
    MPI_Status st[M];
    STEP("posted order");
    if (peer < np) {
        for (int k = 0; k < M; k++) {
            in[k] = -1;
            MPI_Irecv(&in[k], 1, MPI_INT, wildcard_source[k] ? MPI_ANY_SOURCE : peer,
                      wildcard_tag[k] ? MPI_ANY_TAG : 7, MPI_COMM_WORLD, &r[k]);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (peer < np) {
        for (int k = 0; k < M; k++)
            MPI_Send(&k, 1, MPI_INT, peer, 7, MPI_COMM_WORLD);
        MPI_Waitall(M, r, st);
        for (int k = 0; k < M; k++)
            CHECK_EQ(in[k], k, "posted order");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The example of the standard: a later tag may be received first, then the earlier in order. */
static void selective(int n)
{
    int peer = me ^ 1;
    MPI_Request r[4];
    STEP("selective, %d bytes", n);
    if (peer < np) {
        unsigned char *out[4], *in = buffer_new((size_t)n);
        for (int k = 0; k < 4; k++) {
            out[k] = buffer_new((size_t)n);
            fill(out[k], (size_t)n, key_of(me, k % 2, k, n));
            MPI_Isend(out[k], n, MPI_BYTE, peer, k % 2, MPI_COMM_WORLD, &r[k]);
        }
        static const int tags[4] = {1, 0, 0, 1}, number[4] = {1, 0, 2, 3};
        for (int k = 0; k < 4; k++) {
            MPI_Recv(in, n, MPI_BYTE, peer, tags[k], MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            VERIFY(in, n, key_of(peer, tags[k], number[k], n), "selective");
        }
        MPI_Waitall(4, r, MPI_STATUSES_IGNORE);
        for (int k = 0; k < 4; k++)
            buffer_free(out[k]);
        buffer_free(in);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int seed = 0; seed < 12; seed++) {
        same_tag(seed % np, (seed + 1) % np, seed);
        any_tag(seed);
    }
    for (int k = 0; k < 50; k++)
        posted_order();
    selective(4);
    selective(5000);
    selective(LARGE_BYTES);
    return check_end();
}

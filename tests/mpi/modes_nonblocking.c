/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Isend, Issend, Ibsend, Irsend: many outstanding, completed in other orders; Issend is not
 * complete before the match. MPI 3.1 section 3.7. */
#include "check.h"

typedef int isend_function(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
static isend_function *const mode[] = {MPI_Isend, MPI_Issend, MPI_Ibsend, MPI_Irsend};

static const long sizes[] = {0, 1, 33, 4097, 20000, 65537, LARGE_BYTES};
enum { N = LENGTH(sizes) };

/* All modes and sizes to every rank at once, self included; receives posted first. */
static void all_at_once(int iteration)
{
    int total = 4 * N * np;
    MPI_Request *r = malloc(2 * (size_t)total * sizeof *r);
    MPI_Status *st = malloc(2 * (size_t)total * sizeof *st);
    unsigned char **in = malloc((size_t)total * sizeof *in),
                  **out = malloc((size_t)total * sizeof *out);
    int k = 0;
    for (int peer = 0; peer < np; peer++)
        for (int m = 0; m < 4; m++)
            for (int i = 0; i < N; i++, k++) {
                in[k] = buffer_new((size_t)sizes[i]);
                MPI_Irecv(in[k], (int)sizes[i], MPI_BYTE, peer, m * 100 + i, MPI_COMM_WORLD, &r[k]);
            }
    MPI_Barrier(MPI_COMM_WORLD); /* ready mode */
    k = 0;
    for (int peer = 0; peer < np; peer++)
        for (int m = 0; m < 4; m++)
            for (int i = 0; i < N; i++, k++) {
                int tag = m * 100 + i;
                out[k] = buffer_new((size_t)sizes[i]);
                fill(out[k], (size_t)sizes[i], key_of(me, tag, peer, iteration));
                mode[m](out[k], (int)sizes[i], MPI_BYTE, peer, tag, MPI_COMM_WORLD, &r[total + k]);
            }
    if (iteration % 3 == 0)
        MPI_Waitall(2 * total, r, st);
    else if (iteration % 3 == 1)
        for (int j = 2 * total - 1; j >= 0; j--)
            MPI_Wait(&r[j], &st[j]);
    else
        for (int left = 2 * total; left > 0; left--) {
            int which;
            MPI_Status one;
            MPI_Waitany(2 * total, r, &which, &one);
            CHECK(which >= 0 && which < 2 * total, "waitany gave %d", which);
            st[which] = one;
        }
    k = 0;
    for (int peer = 0; peer < np; peer++)
        for (int m = 0; m < 4; m++)
            for (int i = 0; i < N; i++, k++) {
                STATUS(&st[k], peer, m * 100 + i, sizes[i]);
                VERIFY(in[k], sizes[i], key_of(peer, m * 100 + i, me, iteration), "all at once");
                buffer_free(in[k]);
                buffer_free(out[k]);
            }
    free(in), free(out), free(r), free(st);
}

static void issend_not_before_match(int from, int to, int n)
{
    unsigned char *buffer = buffer_new((size_t)n);
    int flag;
    if (me == from) {
        MPI_Request r[3];
        fill(buffer, (size_t)n, key_of(me, 5, to, n));
        for (int k = 0; k < 3; k++)
            MPI_Issend(buffer, n, MPI_BYTE, to, 50 + k, MPI_COMM_WORLD, &r[k]);
        for (int k = 0; k < 20; k++) {
            MPI_Testall(3, r, &flag, MPI_STATUSES_IGNORE);
            for (int j = 0; j < 3; j++) {
                MPI_Request_get_status(r[j], &flag, MPI_STATUS_IGNORE);
                CHECK(!flag, "Issend %d of %d bytes complete without a match", j, n);
            }
            sleep_ms(1);
        }
        /* The last one is received first: only that one may complete. */
        MPI_Send(NULL, 0, MPI_BYTE, to, 60, MPI_COMM_WORLD);
        MPI_Wait(&r[2], MPI_STATUS_IGNORE);
        MPI_Testany(2, r, (int[1]){0}, &flag, MPI_STATUS_IGNORE);
        CHECK(!flag, "an unmatched Issend is complete");
        MPI_Send(NULL, 0, MPI_BYTE, to, 61, MPI_COMM_WORLD);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    } else if (me == to) {
        static const int order[3] = {2, 0, 1};
        MPI_Recv(NULL, 0, MPI_BYTE, from, 60, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int k = 0; k < 3; k++) {
            poison(buffer, (size_t)n);
            MPI_Recv(buffer, n, MPI_BYTE, from, 50 + order[k], MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            VERIFY(buffer, n, key_of(from, 5, to, n), "issend");
            if (k == 0)
                MPI_Recv(NULL, 0, MPI_BYTE, from, 61, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    buffer_free(buffer);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int size = 4 * (N * (MPI_BSEND_OVERHEAD + 8) + 500000) * np;
    void *attached = malloc((size_t)size), *detached;
    MPI_Buffer_attach(attached, size);
    for (int k = 0; k < 12; k++) {
        STEP("all at once %d", k);
        all_at_once(k);
    }
    for (int a = 0; np > 1 && a < np; a++)
        for (int i = 0; i < 3; i++) {
            STEP("issend from %d, size %d", a, i);
            issend_not_before_match(a, (a + 1) % np, (int[]){0, SMALL_BYTES, LARGE_BYTES}[i]);
        }
    MPI_Buffer_detach(&detached, &size);
    free(attached);
    return check_end();
}

/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Every combination of named and wildcard source and tag, early and late; communicators do not mix;
 * wildcards never see collective traffic; the largest tag. MPI 3.1 sections 3.2.4, 3.5. */
#include "check.h"

/* A message of (source, tag) arrives at receives of all four kinds, posted before or after. */
static void kinds(int n)
{
    MPI_Request s, r;
    MPI_Status st;
    unsigned char *out = buffer_new((size_t)n), *in = buffer_new((size_t)n);
    for (int kind = 0; kind < 8; kind++)
        for (int shift = 1; shift < np; shift++) {
            int to = (me + shift) % np, from = (me - shift + np) % np, tag = 100 + kind;
            int source = kind & 1 ? MPI_ANY_SOURCE : from, wanted = kind & 2 ? MPI_ANY_TAG : tag;
            STEP("kind %d, shift %d, %d bytes", kind, shift, n);
            fill(out, (size_t)n, key_of(me, tag, shift, n));
            poison(in, (size_t)n);
            if (kind & 4)
                MPI_Irecv(in, n, MPI_BYTE, source, wanted, MPI_COMM_WORLD, &r);
            MPI_Isend(out, n, MPI_BYTE, to, tag, MPI_COMM_WORLD, &s);
            if (!(kind & 4)) {
                if (shift == 1)
                    sleep_ms(1);
                MPI_Irecv(in, n, MPI_BYTE, source, wanted, MPI_COMM_WORLD, &r);
            }
            MPI_Wait(&r, &st);
            STATUS(&st, from, tag, n);
            VERIFY(in, n, key_of(from, tag, shift, n), "kind");
            MPI_Wait(&s, MPI_STATUS_IGNORE);
            MPI_Barrier(MPI_COMM_WORLD); /* else ANY_SOURCE could get the next round's */
        }
    buffer_free(out);
    buffer_free(in);
}

/* Open wildcard receives while all kinds of collectives run on the same communicator. */
static void not_collectives(void)
{
    enum { N = 8 };
    int in[N], peer = (me + 1) % np, from = (me + np - 1) % np, x[16], y[16 * 64];
    MPI_Request r[N];
    MPI_Status st;
    STEP("collectives under open wildcards");
    for (int k = 0; k < N; k++)
        MPI_Irecv(&in[k], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &r[k]);
    for (int round = 0; round < 30; round++) {
        int flag, index;
        MPI_Request nb;
        for (int k = 0; k < 16; k++)
            x[k] = me * 100 + k;
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Bcast(x, 16, MPI_INT, round % np, MPI_COMM_WORLD);
        CHECK_EQ(x[3], round % np * 100 + 3, "bcast");
        MPI_Allgather(&me, 1, MPI_INT, y, 1, MPI_INT, MPI_COMM_WORLD);
        CHECK_EQ(y[np - 1], np - 1, "allgather");
        MPI_Iallreduce(&me, y, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &nb);
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &st);
        CHECK(!flag, "probe sees source %d tag %d", st.MPI_SOURCE, st.MPI_TAG);
        MPI_Wait(&nb, MPI_STATUS_IGNORE);
        CHECK_EQ(y[0], np * (np - 1) / 2, "iallreduce");
        MPI_Testany(N, r, &index, &flag, &st);
        CHECK(!flag, "a wildcard receive took source %d tag %d", st.MPI_SOURCE, st.MPI_TAG);
    }
    MPI_Comm dup;
    MPI_Comm_dup(MPI_COMM_WORLD, &dup); /* creation traffic too */
    MPI_Comm_free(&dup);
    for (int k = 0; k < N; k++)
        MPI_Send(&k, 1, MPI_INT, peer, 1000 + k, MPI_COMM_WORLD);
    for (int k = 0; k < N; k++) {
        MPI_Wait(&r[k], &st);
        STATUS(&st, from, 1000 + k, 4);
        CHECK_EQ(in[k], k, "value");
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* The same envelope on several communicators at once, wildcard receives on each. */
static void communicators_do_not_mix(void)
{
    enum { C = 6 };
    MPI_Comm comm[C];
    MPI_Request r[2 * C];
    int in[C], out[C], peer = (me + 1) % np, from = (me + np - 1) % np;
    MPI_Status st[2 * C];
    STEP("communicators");
    for (int k = 0; k < C; k++)
        MPI_Comm_dup(k ? comm[k - 1] : MPI_COMM_WORLD, &comm[k]);
    for (int round = 0; round < 20; round++) {
        for (int k = 0; k < C; k++) {
            in[k] = -1;
            MPI_Irecv(&in[k], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm[k], &r[k]);
        }
        for (int k = C - 1; k >= 0; k--) {
            out[k] = round * 100 + k;
            MPI_Isend(&out[k], 1, MPI_INT, peer, 5, comm[k], &r[C + k]);
        }
        MPI_Waitall(2 * C, r, st);
        for (int k = 0; k < C; k++) {
            STATUS(&st[k], from, 5, 4);
            CHECK_EQ(in[k], round * 100 + k, "value of a communicator");
        }
    }
    for (int k = 0; k < C; k++)
        MPI_Comm_free(&comm[k]);
}

static void largest_tag(void)
{
    int *bound, flag, peer = (me + 1) % np, from = (me + np - 1) % np, x, y;
    MPI_Status st;
    STEP("largest tag");
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &flag);
    CHECK(flag && *bound >= 32767, "MPI_TAG_UB");
    int tags[] = {0, 1, 32767, *bound - 1, *bound};
    for (int k = 0; k < LENGTH(tags); k++) {
        x = k + me * 10;
        MPI_Sendrecv(&x, 1, MPI_INT, peer, tags[k], &y, 1, MPI_INT, from,
                     k % 2 ? MPI_ANY_TAG : tags[k], MPI_COMM_WORLD, &st);
        STATUS(&st, from, tags[k], 4);
        CHECK_EQ(y, k + from * 10, "value");
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    kinds(0);
    kinds(4);
    kinds(5000);
    kinds(LARGE_BYTES);
    not_collectives();
    communicators_do_not_mix();
    largest_tag();
    return check_end();
}

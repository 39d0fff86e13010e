/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; output: HASH .* */
/* A token goes around and every rank mixes itself into it: one wrong or repeated step changes all
 * the rest. Then rings of growing messages, one direction and both. HASH is the same over any PML.
 */
#include "check.h"

static void token(long rounds, uint64_t *hash)
{
    uint64_t t[4] = {1, 2, 3, 4};
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    for (long k = 0; k < rounds; k++) {
        STEP("round %ld", k);
        MPI_Request r;
        if (me == 0) {
            t[k % 4] = mix64(t[(k + 1) % 4] ^ (uint64_t)k);
            MPI_Isend(t, 4, MPI_UINT64_T, next, (int)(k % 1000), MPI_COMM_WORLD, &r);
            uint64_t back[4];
            MPI_Recv(back, 4, MPI_UINT64_T, previous, (int)(k % 1000), MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            MPI_Wait(&r, MPI_STATUS_IGNORE);
            memcpy(t, back, sizeof t);
        } else {
            MPI_Recv(t, 4, MPI_UINT64_T, previous, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < 4; i++)
                t[i] = mix64(t[i] + (uint64_t)me * 0x1234567 + (uint64_t)i);
            MPI_Send(t, 4, MPI_UINT64_T, next, (int)(k % 1000), MPI_COMM_WORLD);
        }
    }
    *hash = mix64(*hash ^ t[0] ^ t[1] * 3 ^ t[2] * 5 ^ t[3] * 7);
}

/* The block of each rank visits all ranks and comes home. */
static void blocks(size_t n, int direction, uint64_t *hash)
{
    unsigned char *here = buffer_new(n), *there = buffer_new(n);
    int next = (me + direction + np) % np, previous = (me - direction + np) % np;
    STEP("blocks of %zu", n);
    fill(here, n, key_of(me, 1, (long)n, direction));
    for (int k = 1; k <= np; k++) {
        MPI_Sendrecv(here, (int)n, MPI_BYTE, next, k, there, (int)n, MPI_BYTE, previous, k,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        unsigned char *t = here;
        here = there, there = t;
        int owner = ((me - direction * k) % np + np) % np;
        VERIFY(here, n, key_of(owner, 1, (long)n, direction), "block on its way");
        *hash = mix64(*hash ^ (n ? here[n / 2] : 0));
    }
    buffer_free(here);
    buffer_free(there);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    uint64_t hash = 0, total = 0;
    token(scaled(20000), &hash);
    for (int i = 0; i < LENGTH(edge_sizes); i++) {
        blocks((size_t)edge_sizes[i], 1, &hash);
        blocks((size_t)edge_sizes[i], -1, &hash);
    }
    if (me)
        hash = mix64(hash + (uint64_t)me);
    MPI_Reduce(&hash, &total, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016" PRIx64 "\n", total);
    return check_end();
}

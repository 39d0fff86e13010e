/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* 50,000 sends outstanding to a receiver that is late, small and large mixed: nothing is lost,
 * order is kept, and the sender's and receiver's memory stay within a few times what the messages
 * hold. */
#include "check.h"

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int count = (int)scaled(50000);
    for (int round = 0; round < 2; round++) {
        int target = round % np;
        STEP("round %d", round);
        long before = resident_kib();
        if (me != target) {
            MPI_Request *r = malloc((size_t)count * sizeof *r);
            unsigned char **out = malloc((size_t)count * sizeof *out);
            for (int k = 0; k < count; k++) {
                int n = k % 100 == 99 ? 20000 : k % 64;
                out[k] = malloc((size_t)n + 1);
                fill(out[k], (size_t)n, key_of(me, 1, k, round));
                MPI_Isend(out[k], n, MPI_BYTE, target, 1, MPI_COMM_WORLD, &r[k]);
            }
            MPI_Waitall(count, r, MPI_STATUSES_IGNORE);
            for (int k = 0; k < count; k++)
                free(out[k]);
            free(out), free(r);
        } else {
            unsigned char *in = buffer_new(20000);
            int next[64] = {0};
            sleep_ms(500); /* outside of MPI: nothing is taken in */
            for (int k = 0; k < count * (np - 1); k++) {
                MPI_Status st;
                if (k == 1000)
                    sleep_ms(200);
                MPI_Recv(in, 20000, MPI_BYTE, MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &st);
                int i = next[st.MPI_SOURCE]++, n = i % 100 == 99 ? 20000 : i % 64;
                STATUS(&st, st.MPI_SOURCE, 1, n);
                VERIFY(in, n, key_of(st.MPI_SOURCE, 1, i, round), "storm");
            }
            buffer_free(in);
        }
        long grown = resident_kib() - before; /* 64 KiB of data per 100 messages at most */
        CHECK(grown < 400000, "memory grew by %ld KiB", grown);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    return check_end();
}

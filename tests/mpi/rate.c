/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Message rate and order under MPI_Waitany and MPI_Waitsome: a window of receives that is kept
 * full, from all the others, each stream in order; prints the rate (not checked). */
#include "check.h"

enum { WINDOW = 64 };

static void window(int n, long count, bool some)
{
    STEP("window of %d bytes", n);
    double start = MPI_Wtime();
    if (me) {
        unsigned char *out = buffer_new((size_t)n);
        memset(out, me, (size_t)n);
        for (long k = 0; k < count; k++) {
            memcpy(out, &k, sizeof k);
            MPI_Send(out, n, MPI_BYTE, 0, (int)(k % 30000), MPI_COMM_WORLD);
        }
        buffer_free(out);
    } else {
        static unsigned char *in[WINDOW];
        static long posted[64], got[64];
        MPI_Request r[WINDOW];
        int from[WINDOW], indices[WINDOW];
        long number[WINDOW], total = count * (np - 1), seen = 0, asked = 0;
        MPI_Status st[WINDOW];
        memset(posted, 0, sizeof posted);
        memset(got, 0, sizeof got);
        for (int k = 0; k < WINDOW; k++) {
            in[k] = buffer_new((size_t)n);
            r[k] = MPI_REQUEST_NULL;
        }
        int ready = WINDOW;
        for (int k = 0; k < WINDOW; k++)
            indices[k] = k;
        while (seen < total) {
            for (int j = 0; j < ready; j++) { /* refill, the sources in turn */
                int k = indices[j];
                if (asked == total)
                    continue;
                from[k] = (int)(asked++ % (np - 1)) + 1;
                number[k] = posted[from[k]]++;
                MPI_Irecv(in[k], n, MPI_BYTE, from[k], MPI_ANY_TAG, MPI_COMM_WORLD, &r[k]);
            }
            if (some) {
                MPI_Waitsome(WINDOW, r, &ready, indices, st);
            } else {
                MPI_Waitany(WINDOW, r, &indices[0], &st[0]);
                ready = 1;
            }
            for (int j = 0; j < ready; j++, seen++) {
                int k = indices[j];
                long value;
                memcpy(&value, in[k], sizeof value);
                STATUS(&st[j], from[k], (int)(number[k] % 30000), n);
                CHECK_EQ(value, number[k], "number in its stream");
                CHECK(n == 8 || in[k][n - 1] == from[k], "contents");
            }
        }
        for (int k = 0; k < WINDOW; k++)
            buffer_free(in[k]);
        printf("%d bytes: %.0f messages a second\n", n, (double)total / (MPI_Wtime() - start));
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int some = 0; some < 2; some++) {
        window(8, scaled(60000), some);
        window(1000, scaled(30000), some);
        window(20000, scaled(5000), some);
        window(200000, scaled(600), some);
    }
    return check_end();
}

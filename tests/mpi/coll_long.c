/* ranks: 2,3,4 ; nodes: 1,2 */
/* 200,000 nonblocking collectives: the memory does not grow with their number. */
#include "check.h"

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    long total = scaled(200000), before = 0;
    enum { WINDOW = 8 };
    MPI_Request r[WINDOW];
    long x[WINDOW], y[WINDOW];
    for (int k = 0; k < WINDOW; k++)
        r[k] = MPI_REQUEST_NULL;
    for (long i = 0; i < total; i++) {
        int slot = (int)(i % WINDOW);
        STEP("collective %ld", i);
        MPI_Wait(&r[slot], MPI_STATUS_IGNORE);
        if (i >= WINDOW && (i - WINDOW) % 2)
            CHECK_EQ(y[slot], np * (i - WINDOW), "iallreduce");
        x[slot] = i;
        y[slot] = -1;
        if (i % 2)
            MPI_Iallreduce(&x[slot], &y[slot], 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD, &r[slot]);
        else
            MPI_Ibarrier(MPI_COMM_WORLD, &r[slot]);
        if (i == total / 4)
            before = resident_kib();
    }
    MPI_Waitall(WINDOW, r, MPI_STATUSES_IGNORE);
    long grown = resident_kib() - before, most = 0;
    MPI_Reduce(&grown, &most, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("grown by %ld KiB in %ld collectives\n", most, total - total / 4);
    /* A payload log that nothing trims takes up to 30 MB of it; a leaked request each, 75 MB. */
    CHECK(grown < 60000, "memory grew by %ld KiB in %ld collectives", grown, total - total / 4);
    return check_end();
}

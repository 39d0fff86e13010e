/* ranks: 2,3,4 ; nodes: 1,2 */
/* Communicators that are made, used for collectives and freed: some for a few calls, some for many;
 * a few dozen at a time; each in the other's midst. Neither memory nor mappings grow with their
 * number. MPI 3.1 chapters 5 and 6. */
#include "check.h"

static long mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    long lines = 0;
    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static void use(MPI_Comm comm, int calls, int k)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int i = 0; i < calls; i++) {
        double mine[700], sum[700];
        int n = i % 5 ? 1 : 700;
        for (int at = 0; at < n; at++)
            mine[at] = rank + k + i + at;
        MPI_Allreduce(mine, sum, n, MPI_DOUBLE, MPI_SUM, comm);
        for (int at = 0; at < n; at++)
            CHECK(sum[at] == size * (size - 1) / 2. + size * (double)(k + i + at), "%f", sum[at]);
        int from = rank == i % size ? k + i : -1;
        MPI_Bcast(&from, 1, MPI_INT, i % size, comm);
        CHECK_EQ(from, k + i, "bcast");
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    enum { TOGETHER = 24 };
    MPI_Comm some[TOGETHER];
    int total = (int)scaled(600);
    long resident = 0, mapped = 0;
    for (int k = 0; k < total; k++) {
        if (k == total / 3) {
            resident = resident_kib();
            mapped = mappings();
        }
        MPI_Comm copy, part;
        STEP("communicator %d", k);
        MPI_Comm_dup(MPI_COMM_WORLD, &copy);
        use(copy, k % 5 ? 2 : 60, k);
        MPI_Comm_split(copy, (me + k) % 2, -me, &part);
        use(part, k % 3 ? 1 : 40, k);
        if (k % 2)
            MPI_Comm_free(&copy);
        use(part, 3, k);
        MPI_Comm_free(&part);
        if (k % 2 == 0)
            MPI_Comm_free(&copy);
        if (k % 100 == 0) {
            for (int i = 0; i < TOGETHER; i++)
                MPI_Comm_dup(MPI_COMM_WORLD, &some[i]);
            for (int round = 0; round < 40; round++)
                for (int i = 0; i < TOGETHER; i++)
                    use(some[(i * 7 + round) % TOGETHER], 2, k + round);
            for (int i = 0; i < TOGETHER; i++)
                MPI_Comm_free(&some[(i * 5) % TOGETHER]);
        }
    }
    long grown = resident_kib() - resident, more = mappings() - mapped;
    CHECK(grown < 8000, "memory grew by %ld KiB", grown);
    CHECK(more < 20, "%ld more mappings", more);
    return check_end();
}

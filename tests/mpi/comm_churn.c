/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Communicators made and freed at a high rate (20,000 in total): dup, split, create, create_group;
 * with traffic on them while others are freed, and requests still open at MPI_Comm_free. The memory
 * must not grow with the number made. MPI 3.1 chapter 6. */
#include "check.h"

static void token(MPI_Comm comm, int value)
{
    int rank, size, got = -1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Sendrecv(&value, 1, MPI_INT, (rank + 1) % size, 3, &got, 1, MPI_INT,
                 (rank + size - 1) % size, 3, comm, MPI_STATUS_IGNORE);
    CHECK_EQ(got, value, "token on a new communicator");
}

static void one_of_each(int k, MPI_Group world)
{
    MPI_Comm dup, split, create, group;
    MPI_Group some;
    MPI_Comm_dup(MPI_COMM_WORLD, &dup);
    if (k % 4 == 0)
        token(dup, k);
    MPI_Comm_split(MPI_COMM_WORLD, (me + k) % 2, -me, &split);
    if (k % 4 == 1)
        token(split, k * 2 + (me + k) % 2);
    MPI_Group_incl(world, np - 1, (int[]){0, 1, 2, 3, 4, 5, 6, 7}, &some);
    MPI_Comm_create(MPI_COMM_WORLD, some, &create);
    CHECK((create == MPI_COMM_NULL) == (me == np - 1), "create");
    if (k % 4 == 2 && create != MPI_COMM_NULL)
        token(create, k);
    if (me < np - 1) {
        MPI_Comm_create_group(MPI_COMM_WORLD, some, k % 1000, &group);
        if (k % 4 == 3)
            token(group, k);
        MPI_Comm_free(&group);
    }
    MPI_Group_free(&some);
    MPI_Comm_free(&dup);
    MPI_Comm_free(&split);
    if (create != MPI_COMM_NULL)
        MPI_Comm_free(&create);
}

/* A window of living communicators, each with messages in flight; freed with requests still open.
 */
static void with_traffic(int rounds)
{
    enum { ALIVE = 16 };
    MPI_Comm comm[ALIVE];
    MPI_Request r[ALIVE][2];
    int in[ALIVE], out[ALIVE], next = (me + 1) % np, previous = (me + np - 1) % np;
    STEP("traffic while others are freed");
    for (int k = 0; k < rounds + ALIVE; k++) {
        int slot = k % ALIVE;
        if (k >= ALIVE) {
            if (k % 2) { /* completed after the free: MPI_Comm_free only marks */
                MPI_Comm_free(&comm[slot]);
                MPI_Waitall(2, r[slot], MPI_STATUSES_IGNORE);
            } else {
                MPI_Waitall(2, r[slot], MPI_STATUSES_IGNORE);
                MPI_Comm_free(&comm[slot]);
            }
            CHECK_EQ(in[slot], (k - ALIVE) * 10 + previous, "message of a communicator");
        }
        if (k < rounds) {
            MPI_Comm_dup(MPI_COMM_WORLD, &comm[slot]);
            in[slot] = -1;
            out[slot] = k * 10 + me;
            MPI_Irecv(&in[slot], 1, MPI_INT, k % 3 ? previous : MPI_ANY_SOURCE, 5, comm[slot],
                      &r[slot][0]);
            MPI_Isend(&out[slot], 1, MPI_INT, next, 5, comm[slot], &r[slot][1]);
        }
    }
}

/* Many alive at the same time. */
static void many_alive(void)
{
    enum { N = 400 };
    static MPI_Comm comm[N];
    static MPI_Request r[2 * N];
    static int in[N], out[N];
    STEP("many alive");
    for (int k = 0; k < N; k++)
        MPI_Comm_split(MPI_COMM_WORLD, 0, (me + k) % np, &comm[k]);
    for (int k = 0; k < N; k++) {
        int rank;
        MPI_Comm_rank(comm[k], &rank);
        CHECK_EQ(rank, (me + k) % np, "rank after split by key");
        out[k] = k * 100 + rank;
        MPI_Irecv(&in[k], 1, MPI_INT, (rank + 1) % np, k, comm[k], &r[k]);
    }
    for (int k = N - 1; k >= 0; k--)
        MPI_Isend(&out[k], 1, MPI_INT, ((me + k) % np + np - 1) % np, k, comm[k], &r[N + k]);
    MPI_Waitall(2 * N, r, MPI_STATUSES_IGNORE);
    for (int k = 0; k < N; k++) {
        CHECK_EQ(in[k], k * 100 + ((me + k) % np + 1) % np, "value");
        MPI_Comm_free(&comm[k]);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Group world;
    long rounds = scaled(4000), before = 0;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    for (long k = 0; k < rounds; k++) {
        STEP("round %ld", k);
        one_of_each((int)k, world);
        if (k == rounds / 2)
            before = resident_kib();
    }
    long grown = resident_kib() - before;
    CHECK(grown < 12000, "memory grew by %ld KiB in %ld rounds", grown, rounds / 2);
    with_traffic((int)scaled(4000));
    many_alive();
    MPI_Group_free(&world);
    return check_end();
}

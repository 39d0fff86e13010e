/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* MPI_Win_allocate_shared among the ranks of a node (Open MPI needs osc sm for it: plain `osc
 * pt2pt` refuses it), loads and stores, with messages between. MPI 3.1 section 11.2.3. */
#include "check.h"

static void shared(void)
{
    MPI_Comm node;
    MPI_Win win;
    long *base, *other;
    int rank, size, unit;
    MPI_Aint bytes;
    STEP("shared");
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    MPI_Win_allocate_shared(100 * sizeof(long), sizeof(long), MPI_INFO_NULL, node, &base, &win);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
    for (int k = 0; k < 100; k++)
        base[k] = rank * 1000 + k;
    MPI_Win_sync(win);
    MPI_Barrier(node);
    MPI_Win_sync(win);
    MPI_Win_shared_query(win, (rank + 1) % size, &bytes, &unit, &other);
    for (int k = 0; k < 100; k++)
        CHECK_EQ(other[k], (rank + 1) % size * 1000 + k, "memory of a neighbour");
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    MPI_Comm_free(&node);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int k = 0; k < 5; k++)
        shared();
    return check_end();
}

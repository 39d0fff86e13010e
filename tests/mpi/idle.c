/* ranks: 2,3,4 ; nodes: 1 */
/* How much processor time a rank burns that waits in MPI_Recv, MPI_Wait, MPI_Probe or MPI_Barrier,
 * and how much that takes from ranks that compute on the same cores. Prints; checks only that it
 * ends. */
#include "check.h"
#include <sys/resource.h>

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t compute(double cpu)
{
    uint64_t h = 1;
    for (double start = cpu_seconds(); cpu_seconds() - start < cpu;)
        for (int k = 0; k < 20000; k++)
            h = mix64(h);
    return h;
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    for (int way = 0; way < 4; way++) {
        static const char *const names[] = {"MPI_Recv", "MPI_Wait", "MPI_Probe", "MPI_Barrier"};
        MPI_Request r;
        int x = 0;
        double all[2], most[2] = {0};
        STEP("%s", names[way]);
        MPI_Barrier(MPI_COMM_WORLD);
        double wall = MPI_Wtime(), cpu = cpu_seconds();
        if (me == 0) {
            volatile uint64_t keep = compute(0.5);
            (void)keep;
            if (way < 3)
                for (int k = 1; k < np; k++)
                    MPI_Send(&x, 1, MPI_INT, k, 1, MPI_COMM_WORLD);
            else
                MPI_Barrier(MPI_COMM_WORLD);
            wall = MPI_Wtime() - wall;
        } else {
            if (way == 1) {
                MPI_Irecv(&x, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, &r);
                MPI_Wait(&r, MPI_STATUS_IGNORE);
            } else if (way == 3) {
                MPI_Barrier(MPI_COMM_WORLD);
            } else {
                if (way == 2)
                    MPI_Probe(0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Recv(&x, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            cpu = cpu_seconds() - cpu;
        }
        all[0] = me ? 0 : wall;
        all[1] = me ? cpu : 0;
        MPI_Reduce(all, most, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (me == 0)
            printf("%-12s 0.5 s of work took %.2f s; a waiting rank burned up to %.2f s\n",
                   names[way], most[0], most[1]);
    }
    return check_end();
}

/* A task farm: rank 0 hands out tasks and takes results as they come (MPI_ANY_SOURCE), the others
 * compute. Its sum does not depend on who computes what. usage: farm TASKS LENGTH */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    long task;
    double value;
} result_t;

static double work(long task, long length)
{
    double sum = (double) task;
    for (long i = 0; i < length; i++)
        sum = sum * 0.999999 + 1.0 / (1.0 + (double) ((i ^ task) & 1023));
    return sum;
}

static void hand_out(long *next, long tasks, int worker)
{
    long task = *next < tasks ? (*next)++ : -1;
    MPI_Send(&task, 1, MPI_LONG, worker, 1, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int me, np;
    long tasks = argc > 1 ? atol(argv[1]) : 1000, length = argc > 2 ? atol(argv[2]) : 1000000;
    result_t result;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (me == 0) {
        double *values = calloc((size_t) tasks, sizeof(*values)), sum = 0;
        long next = 0;
        for (int worker = 1; worker < np; worker++)
            hand_out(&next, tasks, worker);
        for (long done = 0; done < tasks; done++) {
            MPI_Status status;
            MPI_Recv(&result, sizeof(result), MPI_BYTE, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status);
            values[result.task] = result.value;
            hand_out(&next, tasks, status.MPI_SOURCE);
        }
        for (long i = 0; i < tasks; i++)
            sum += values[i];
        printf("SUM %.17g\n", sum);
        free(values);
    } else {
        for (;;) {
            MPI_Recv(&result.task, 1, MPI_LONG, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (result.task < 0)
                break;
            result.value = work(result.task, length);
            MPI_Send(&result, sizeof(result), MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        }
    }
    MPI_Finalize();
    return 0;
}

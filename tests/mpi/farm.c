/* ranks: 2,3,4 ; nodes: 1,2,3 ; output: HASH .* */
/* Master and workers with ANY_SOURCE and ANY_TAG: tasks of random sizes, results in whatever order,
 * each exactly once. The sum of the results does not depend on who did what: HASH. */
#include "check.h"

enum { TASK = 1, STOP = 2, RESULT = 3, READY = 4 };

static uint64_t work(const unsigned char *in, int n)
{
    uint64_t h = 0;
    for (int i = 0; i < n; i++)
        h = (h ^ in[i]) * 0x100000001b3u;
    return h;
}

static int size_of(uint64_t seed, int task)
{
    static const int sizes[] = {4, 50, 3000, 9000, 70000};
    return sizes[mix64(seed + (uint64_t)task) % LENGTH(sizes)];
}

static void master(uint64_t seed, int tasks)
{
    unsigned char *out = buffer_new(70000);
    uint64_t result[2], sum = 0;
    bool *done = calloc((size_t)tasks, sizeof *done);
    int given = 0, finished = 0, stopped = 0;
    while (stopped < np - 1) {
        MPI_Status st;
        MPI_Recv(result, 2, MPI_UINT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
        if (st.MPI_TAG == RESULT) {
            CHECK(result[0] < (uint64_t)tasks && !done[result[0]], "result of task %lu",
                  (long)result[0]);
            done[result[0]] = true;
            sum += result[1] * (result[0] + 1);
            finished++;
        } else {
            CHECK_EQ(st.MPI_TAG, READY, "tag");
        }
        if (given < tasks) {
            int n = size_of(seed, given);
            fill(out, (size_t)n, key_of(0, TASK, given, (long)seed));
            memcpy(out, &given, sizeof given);
            MPI_Send(out, n, MPI_BYTE, st.MPI_SOURCE, TASK, MPI_COMM_WORLD);
            given++;
        } else {
            MPI_Send(NULL, 0, MPI_BYTE, st.MPI_SOURCE, STOP, MPI_COMM_WORLD);
            stopped++;
        }
    }
    CHECK_EQ(finished, tasks, "finished tasks");
    printf("HASH %016" PRIx64 "\n", sum);
    free(done);
    buffer_free(out);
}

static void worker(uint64_t seed)
{
    unsigned char *in = buffer_new(70000), *expected = buffer_new(70000);
    uint64_t result[2] = {0};
    MPI_Status st;
    MPI_Send(result, 2, MPI_UINT64_T, 0, READY, MPI_COMM_WORLD);
    for (;;) {
        int n, task;
        MPI_Probe(0, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
        MPI_Get_count(&st, MPI_BYTE, &n);
        MPI_Recv(in, n, MPI_BYTE, 0, st.MPI_TAG, MPI_COMM_WORLD, &st);
        if (st.MPI_TAG == STOP)
            break;
        memcpy(&task, in, sizeof task);
        CHECK_EQ(n, size_of(seed, task), "size of a task");
        fill(expected, (size_t)n, key_of(0, TASK, task, (long)seed));
        memcpy(expected, &task, sizeof task);
        CHECK(!memcmp(in, expected, (size_t)n), "bytes of task %d", task);
        result[0] = (uint64_t)task;
        result[1] = work(in, n);
        MPI_Send(result, 2, MPI_UINT64_T, 0, RESULT, MPI_COMM_WORLD);
    }
    buffer_free(in);
    buffer_free(expected);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    uint64_t seed = (uint64_t)environment_number("CHECK_SEED", 1);
    STEP("farm");
    if (me == 0)
        master(seed, (int)scaled(10000));
    else
        worker(seed);
    return check_end();
}

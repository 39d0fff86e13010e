/* ranks: 2,3,4 ; nodes: 1,2,3 ; thread: multiple */
/* MPI_THREAD_MULTIPLE: four threads a rank call collectives at the same time, each on a
 * communicator of its own, which it duplicates and frees in between; long enough for shared memory. Every result
 * is checked. MPI 3.1 sections 5 and 12.4. */
#include "threads.h"

enum { LONGEST = 3000, GENERATIONS = 3, ROUNDS = 120 };

/* What a rank gives in a round, at an index. */
static int64_t given(int thread, int round, int rank, int index)
{
    uint64_t of = (uint64_t) (thread * 1000 + round) * 64 + (uint64_t) rank;
    return (int64_t) (mix64(of) % 1000) + index;
}

static int64_t sum_of(int thread, int round, int ranks, int index)
{
    int64_t sum = 0;
    for (int rank = 0; rank < ranks; rank++)
        sum += given(thread, round, rank, index);
    return sum;
}

#define MUST(found, wanted, what)                                                                  \
    do {                                                                                           \
        if ((found) != (wanted))                                                                   \
            FAIL("%s: thread %d, round %d, %" PRId64 " at %d", what, t, k, (int64_t) (found), i);  \
    } while (0)

static void round_of(MPI_Comm comm, int t, int k, int64_t *out, int64_t *in)
{
    static const int lengths[] = {1, 5, 6, 7, 100, 1030, LONGEST};
    int n = lengths[(k + t) % LENGTH(lengths)], root = k % np, i;
    MPI_Request request;
    for (i = 0; i < n; i++)
        out[i] = given(t, k, me, i);
    switch ((k + t) % 8) {
    case 0:
        MPI_Barrier(comm);
        MPI_Allreduce(out, in, n, MPI_INT64_T, MPI_SUM, comm);
        for (i = 0; i < n; i++)
            MUST(in[i], sum_of(t, k, np, i), "allreduce");
        break;
    case 1:
        MPI_Bcast(out, n, MPI_INT64_T, root, comm);
        for (i = 0; i < n; i++)
            MUST(out[i], given(t, k, root, i), "bcast");
        break;
    case 2:
        MPI_Reduce(out, in, n, MPI_INT64_T, MPI_SUM, root, comm);
        for (i = 0; i < n && me == root; i++)
            MUST(in[i], sum_of(t, k, np, i), "reduce");
        break;
    case 3:
        MPI_Allgather(out, n, MPI_INT64_T, in, n, MPI_INT64_T, comm);
        for (i = 0; i < n * np; i++)
            MUST(in[i], given(t, k, i / n, i % n), "allgather");
        break;
    case 4:
        for (i = 0; i < n * np; i++)
            out[i] = given(t, k, me, i);
        MPI_Alltoall(out, n, MPI_INT64_T, in, n, MPI_INT64_T, comm);
        for (i = 0; i < n * np; i++)
            MUST(in[i], given(t, k, i / n, me * n + i % n), "alltoall");
        break;
    case 5:
        MPI_Gather(out, n, MPI_INT64_T, in, n, MPI_INT64_T, root, comm);
        for (i = 0; i < n * np && me == root; i++)
            MUST(in[i], given(t, k, i / n, i % n), "gather");
        break;
    case 6:
        MPI_Scan(out, in, n, MPI_INT64_T, MPI_SUM, comm);
        for (i = 0; i < n; i++)
            MUST(in[i], sum_of(t, k, me + 1, i), "scan");
        break;
    default:
        MPI_Iallreduce(out, in, n, MPI_INT64_T, MPI_SUM, comm, &request);
        MPI_Barrier(comm);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (i = 0; i < n; i++)
            MUST(in[i], sum_of(t, k, np, i), "iallreduce");
    }
}

static void *all_of_them(void *argument)
{
    struct thread *thread = argument;
    int64_t *out = malloc(sizeof *out * LONGEST * (size_t) np),
            *in = malloc(sizeof *in * LONGEST * (size_t) np);
    for (int generation = 0; generation < GENERATIONS; generation++) {
        MPI_Comm comm;
        MPI_Comm_dup(thread->comm, &comm);
        for (int k = 0; k < ROUNDS; k++)
            round_of(comm, thread->number, generation * ROUNDS + k, out, in);
        MPI_Comm_free(&comm);
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    MPI_Comm comm[THREADS];
    check_begin_thread(&argc, &argv, MPI_THREAD_MULTIPLE);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[k]);
    threads_run(all_of_them, comm);
    for (int k = 0; k < THREADS; k++)
        MPI_Comm_free(&comm[k]);
    return check_end();
}

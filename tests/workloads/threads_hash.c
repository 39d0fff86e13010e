/* Two threads a rank send round a ring at the same time, each on a communicator of its own, and
 * keep a hash of what they get. Half of the iterations are done when the number in the file GATE is
 * larger than that. usage: threads_hash ITERATIONS [GATE] */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 2, WORDS_MAX = 2500 };

typedef struct {
    MPI_Comm comm;
    int me, np, iterations;
    uint64_t hash;
} thread_t;

static const char *gate;

/* Each thread by its communicator: it is not gate.h's. */
static void wait_in_the_middle(const thread_t *thread, int k)
{
    for (int limit = 0; gate && limit <= k; usleep(1000)) {
        FILE *file = 0 == thread->me ? fopen(gate, "r") : NULL;
        if (!file || 1 != fscanf(file, "%d", &limit))
            limit = 0;
        if (file)
            fclose(file);
        MPI_Bcast(&limit, 1, MPI_INT, 0, thread->comm);
    }
}

static void *work(void *argument)
{
    static const int words[] = { 1, 100, WORDS_MAX, 1 };
    thread_t *thread = argument;
    uint64_t out[WORDS_MAX], in[WORDS_MAX], sum;
    int next = (thread->me + 1) % thread->np, before = (thread->me + thread->np - 1) % thread->np;
    for (int k = 0; k < thread->iterations; k++) {
        int n = words[k % 4];
        if (k == thread->iterations / 2)
            wait_in_the_middle(thread, k);
        MPI_Request both[2];
        for (int i = 0; i < n; i++)
            out[i] = thread->hash + (uint64_t) i * 11400714819323198485ull;
        MPI_Irecv(in, n, MPI_UINT64_T, before, k % 8, thread->comm, &both[0]);
        MPI_Isend(out, n, MPI_UINT64_T, next, k % 8, thread->comm, &both[1]);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
        for (int i = 0; i < n; i++)
            thread->hash = ((thread->hash * 31 + (uint64_t) thread->me) ^ in[i]) * 1099511628211ull;
        if (k % 50 == 0) {
            MPI_Allreduce(&thread->hash, &sum, 1, MPI_UINT64_T, MPI_SUM, thread->comm);
            thread->hash = thread->hash * 3 + sum;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    thread_t all[THREADS];
    pthread_t others[THREADS];
    int provided;
    uint64_t hash = 0, sum;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided != MPI_THREAD_MULTIPLE)
        MPI_Abort(MPI_COMM_WORLD, 2);
    gate = argc > 2 ? argv[2] : NULL;
    for (int t = 0; t < THREADS; t++) {
        all[t].iterations = argc > 1 ? atoi(argv[1]) : 1000;
        MPI_Comm_dup(MPI_COMM_WORLD, &all[t].comm);
        MPI_Comm_rank(MPI_COMM_WORLD, &all[t].me);
        MPI_Comm_size(MPI_COMM_WORLD, &all[t].np);
        all[t].hash = 14695981039346656037ull + (uint64_t) (all[t].me * THREADS + t);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_create(&others[t], NULL, work, &all[t]);
    for (int t = 0; t < THREADS; t++) {
        pthread_join(others[t], NULL);
        hash = hash * 31 + all[t].hash;
        MPI_Comm_free(&all[t].comm);
    }
    MPI_Reduce(&hash, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (all[0].me == 0)
        printf("HASH %016llx\n", (unsigned long long) sum);
    MPI_Finalize();
    return 0;
}

/* Three threads a rank with windows (MPI_THREAD_MULTIPLE): one puts round a ring between fences,
 * one draws numbers and adds to records under lock_all and exclusive locks, both add to a window
 * that they share; one only sends and receives meanwhile. What each finds is the same whoever comes
 * first.
 * usage: window_threads ITERATIONS [GATE]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"
#include <pthread.h>

enum { WORDS = 200, COUNTER = 0, SUM, RECORD, LOCKED_WORDS, THREADS = 3 };

static MPI_Comm comms[THREADS];
static MPI_Win common;
static uint64_t *shared_words, hashes[THREADS];
static long wrongs[THREADS], allowed;
static int me, np, iterations;

static void until_allowed(int k)
{
    while (k >= __atomic_load_n(&allowed, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static void add_to_common(int thread, int target)
{
    const uint64_t one = 1;
    MPI_Accumulate(&one, 1, MPI_UINT64_T, target, thread, 1, MPI_UINT64_T, MPI_SUM, common);
    MPI_Win_flush(target, common);
}

/* The first thread: the others may go as far as the gate. */
static void fences(const char *gate)
{
    uint64_t *mine, next[WORDS], hash = 0;
    int limit = gate ? 0 : iterations;
    MPI_Win window;
    MPI_Win_allocate(sizeof next, sizeof *next, MPI_INFO_NULL, comms[0], &mine, &window);
    for (int i = 0; i < WORDS; i++)
        mine[i] = mix((uint64_t) (me * WORDS + i));
    MPI_Win_fence(0, window);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        __atomic_store_n(&allowed, k + 1, __ATOMIC_RELEASE);
        pace();
        for (int i = 0; i < WORDS; i++)
            next[i] = mix(mine[i] + (uint64_t) k);
        MPI_Win_fence(0, window);
        MPI_Put(next, WORDS, MPI_UINT64_T, (me + 1) % np, 0, WORDS, MPI_UINT64_T, window);
        MPI_Win_fence(0, window);
        hash = mix(hash ^ mine[k % WORDS]);
        add_to_common(0, (me + k) % np);
    }
    MPI_Win_free(&window);
    hashes[0] = hash;
}

/* Records are {how many, sum} under the exclusive lock; counters are drawn from. */
static void *locks(void *unused)
{
    const uint64_t one = 1;
    uint64_t *mine, seen, record[2], hash = 0, last[64] = {0};
    long wrong = 0, drawn = 0;
    MPI_Win window;
    MPI_Win_allocate((LOCKED_WORDS + 1) * sizeof *mine, sizeof *mine, MPI_INFO_NULL, comms[1],
                     &mine, &window);
    for (int i = 0; i <= LOCKED_WORDS; i++)
        mine[i] = 0;
    MPI_Barrier(comms[1]);
    for (int k = 0; k < iterations; k++) {
        int target = (me + k) % np;
        until_allowed(k);
        MPI_Win_lock_all(0, window);
        MPI_Fetch_and_op(&one, &seen, MPI_UINT64_T, target, COUNTER, MPI_SUM, window);
        MPI_Accumulate(&(uint64_t){(uint64_t) k}, 1, MPI_UINT64_T, target, SUM, 1, MPI_UINT64_T,
                       MPI_SUM, window);
        MPI_Win_unlock_all(window);
        /* My numbers of one counter grow. */
        wrong += last[target % 64] > seen;
        last[target % 64] = seen + 1;
        drawn++;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
        MPI_Get(record, 2, MPI_UINT64_T, target, RECORD, 2, MPI_UINT64_T, window);
        MPI_Win_flush(target, window);
        record[0]++;
        record[1] += mix((uint64_t) (me * 100000 + k));
        MPI_Put(record, 2, MPI_UINT64_T, target, RECORD, 2, MPI_UINT64_T, window);
        MPI_Win_unlock(target, window);
        add_to_common(1, target);
        if (k % 10 == 9) { /* all of these steps are there, and none of the next ones */
            MPI_Barrier(comms[1]);
            MPI_Win_lock(MPI_LOCK_SHARED, me, 0, window);
            wrong += mine[COUNTER] != (uint64_t) drawn || mine[RECORD] != (uint64_t) drawn;
            hash = mix(hash ^ mine[SUM] ^ mine[RECORD + 1]);
            MPI_Win_unlock(me, window);
            MPI_Barrier(comms[1]);
        }
    }
    MPI_Win_free(&window);
    hashes[1] = hash;
    wrongs[1] = wrong;
    return unused;
}

static void *messages(void *unused)
{
    uint64_t hash = mix((uint64_t) me), in;
    for (int k = 0; k < iterations; k++) {
        until_allowed(k);
        MPI_Sendrecv(&hash, 1, MPI_UINT64_T, (me + 1) % np, 1, &in, 1, MPI_UINT64_T,
                     (me + np - 1) % np, 1, comms[2], MPI_STATUS_IGNORE);
        hash = mix(hash + 3 * in);
    }
    hashes[2] = hash;
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t others[2];
    int provided;
    uint64_t hash = 0;
    long wrong = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided != MPI_THREAD_MULTIPLE)
        MPI_Abort(MPI_COMM_WORLD, 2);
    iterations = argc > 1 ? atoi(argv[1]) : 200;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    for (int t = 0; t < THREADS; t++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[t]);
    MPI_Win_allocate(2 * sizeof *shared_words, sizeof *shared_words, MPI_INFO_NULL, MPI_COMM_WORLD,
                     &shared_words, &common);
    shared_words[0] = shared_words[1] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, common);
    pthread_create(&others[0], NULL, locks, NULL);
    pthread_create(&others[1], NULL, messages, NULL);
    fences(argc > 2 ? argv[2] : NULL);
    pthread_join(others[0], NULL);
    pthread_join(others[1], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(common);
    for (int t = 0; t < 2; t++) /* from each rank every np-th one: as many as I have added */
        wrongs[0] += shared_words[t] != (uint64_t) iterations;
    MPI_Win_unlock_all(common);
    for (int t = 0; t < THREADS; t++) {
        hash = mix(hash ^ hashes[t]);
        wrong += wrongs[t];
        MPI_Comm_free(&comms[t]);
    }
    int right = print_hash(hash, wrong);
    MPI_Win_free(&common);
    MPI_Finalize();
    return right ? 0 : 1;
}

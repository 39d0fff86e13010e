/* Threads of one rank: start them all, join them all. Failures inside end the job as everywhere. */
#ifndef THREADS_H
#define THREADS_H
#include "check.h"
#include <pthread.h>

enum { THREADS = 4 };

struct thread {
    pthread_t handle;
    int number;
    MPI_Comm comm;
    uint64_t seed;
};

UNUSED static void threads_run(void *(*body)(void *), const MPI_Comm *comm)
{
    struct thread t[THREADS];
    for (int k = 0; k < THREADS; k++) {
        t[k].number = k;
        t[k].comm = comm ? comm[k] : MPI_COMM_WORLD;
        t[k].seed = mix64((uint64_t)(me * THREADS + k));
        if (pthread_create(&t[k].handle, NULL, body, &t[k]))
            FAIL("pthread_create");
    }
    for (int k = 0; k < THREADS; k++)
        pthread_join(t[k].handle, NULL);
}
#endif

/*
 * In place of Open MPI 5.0's header of this name, which Debian's libopenmpi-dev leaves out and
 * opal_config.h names: mutexes and conditions of OPAL are those of POSIX. Their sizes count: they
 * are parts of other structs.
 */
#ifndef CORRELATED_SHIM_THREADS_PTHREADS_MUTEX_H
#define CORRELATED_SHIM_THREADS_PTHREADS_MUTEX_H

#include "opal_config.h"

#include <pthread.h>
#include <stdbool.h>

#include "opal/class/opal_object.h"
#include "opal/constants.h"

#if OPAL_ENABLE_DEBUG
#error "this Open MPI was built for debugging: its own headers are needed (--with-devel-headers)"
#endif

typedef pthread_mutex_t opal_thread_internal_mutex_t;
typedef pthread_cond_t opal_thread_internal_cond_t;

#define OPAL_THREAD_INTERNAL_MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
#define OPAL_THREAD_INTERNAL_COND_INITIALIZER PTHREAD_COND_INITIALIZER

static inline int correlated_shim_code(int error)
{
    return 0 == error ? OPAL_SUCCESS : OPAL_ERR_IN_ERRNO;
}

static inline int opal_thread_internal_mutex_init(pthread_mutex_t *mutex, bool recursive)
{
    pthread_mutexattr_t kind;
    int error = pthread_mutexattr_init(&kind);
    if (0 == error) {
        (void) pthread_mutexattr_settype(&kind, recursive ? PTHREAD_MUTEX_RECURSIVE
                                                          : PTHREAD_MUTEX_DEFAULT);
        error = pthread_mutex_init(mutex, &kind);
        (void) pthread_mutexattr_destroy(&kind);
    }
    return correlated_shim_code(error);
}

static inline void opal_thread_internal_mutex_destroy(pthread_mutex_t *mutex)
{
    (void) pthread_mutex_destroy(mutex);
}

static inline void opal_thread_internal_mutex_lock(pthread_mutex_t *mutex)
{
    (void) pthread_mutex_lock(mutex);
}

static inline void opal_thread_internal_mutex_unlock(pthread_mutex_t *mutex)
{
    (void) pthread_mutex_unlock(mutex);
}

/* 0: the caller has it now. */
static inline int opal_thread_internal_mutex_trylock(pthread_mutex_t *mutex)
{
    return 0 != pthread_mutex_trylock(mutex);
}

static inline int opal_thread_internal_cond_init(pthread_cond_t *condition)
{
    return correlated_shim_code(pthread_cond_init(condition, NULL));
}

static inline void opal_thread_internal_cond_destroy(pthread_cond_t *condition)
{
    (void) pthread_cond_destroy(condition);
}

static inline void opal_thread_internal_cond_signal(pthread_cond_t *condition)
{
    (void) pthread_cond_signal(condition);
}

static inline void opal_thread_internal_cond_broadcast(pthread_cond_t *condition)
{
    (void) pthread_cond_broadcast(condition);
}

static inline void opal_thread_internal_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    (void) pthread_cond_wait(condition, mutex);
}

#endif

/*
 * In place of Open MPI 5.0's header of this name, which Debian's libopenmpi-dev leaves out and
 * opal_config.h names: how a thread makes room for others.
 */
#ifndef CORRELATED_SHIM_THREADS_PTHREADS_THREADS_H
#define CORRELATED_SHIM_THREADS_PTHREADS_THREADS_H

#include "opal_config.h"

#include <pthread.h>

/* What the user has chosen for it (threads_pthreads_yield_strategy). */
OPAL_DECLSPEC extern void (*opal_threads_pthreads_yield_fn)(void);

static inline void opal_thread_yield(void)
{
    opal_threads_pthreads_yield_fn();
}

#endif

/*
 * In place of Open MPI 5.0's header of this name, which Debian's libopenmpi-dev leaves out and
 * opal_config.h names: data of a thread.
 */
#ifndef CORRELATED_SHIM_THREADS_PTHREADS_TSD_H
#define CORRELATED_SHIM_THREADS_PTHREADS_TSD_H

#include <pthread.h>

#include "opal/constants.h"

typedef pthread_key_t opal_tsd_key_t;

static inline int opal_tsd_get(opal_tsd_key_t key, void **value)
{
    *value = pthread_getspecific(key);
    return OPAL_SUCCESS;
}

#endif

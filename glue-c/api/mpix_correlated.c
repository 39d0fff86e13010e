/*
 * libmpix_correlated: finds the component in the process, however Open MPI has loaded it.
 */
#define _GNU_SOURCE
#include "mpix_correlated.h"

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*checkpoint_t)(int all, int wait, int then_exit, uint64_t *checkpoint);
typedef unsigned (*restarts_t)(void);

static int is_component(struct dl_phdr_info *info, size_t size, void *found)
{
    (void) size;
    if (NULL == strstr(info->dlpi_name, "mca_vprotocol_correlated.so")) {
        return 0;
    }
    *(const char **) found = info->dlpi_name;
    return 1;
}

static void *find(const char *symbol)
{
    /* Built into libmpi, or loaded for all. */
    void *there = dlsym(RTLD_DEFAULT, symbol);
    if (NULL != there) {
        return there;
    }
    const char *name = NULL;
    dl_iterate_phdr(is_component, &name);
    void *component = NULL == name ? NULL : dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    return NULL == component ? NULL : dlsym(component, symbol);
}

int MPIX_Correlated_checkpoint(int flags, unsigned long long *checkpoint)
{
    checkpoint_t request;
    uint64_t number = 0;
    *(void **) &request = find("mca_vprotocol_correlated_checkpoint");
    if (NULL != checkpoint) {
        *checkpoint = 0;
    }
    if (NULL == request) {
        return MPIX_CORRELATED_NO_COMPONENT;
    }
    int rc = request(flags & MPIX_CORRELATED_ALL, flags & MPIX_CORRELATED_WAIT,
                     flags & MPIX_CORRELATED_EXIT, &number);
    if (NULL != checkpoint) {
        *checkpoint = number;
    }
    return 0 == rc ? MPIX_CORRELATED_OK : MPIX_CORRELATED_NO_CHECKPOINT;
}

int MPIX_Correlated_restarts(void)
{
    restarts_t restarts;
    *(void **) &restarts = find("mca_vprotocol_correlated_restarts");
    return NULL == restarts ? 0 : (int) restarts();
}

/* Fortran: call mpix_correlated_checkpoint(flags, number, ierror), number integer*8 */
void mpix_correlated_checkpoint_(const int *flags, int64_t *checkpoint, int *ierror)
{
    unsigned long long number;
    *ierror = MPIX_Correlated_checkpoint(*flags, &number);
    *checkpoint = (int64_t) number;
}

void mpix_correlated_restarts_(int *restarts)
{
    *restarts = MPIX_Correlated_restarts();
}

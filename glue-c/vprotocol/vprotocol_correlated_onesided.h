/*
 * What the files of the one-sided component need of each other.
 */
#ifndef VPROTOCOL_CORRELATED_ONESIDED_H
#define VPROTOCOL_CORRELATED_ONESIDED_H

#include "vprotocol_correlated.h"

#include "ompi/mca/osc/osc.h"
#include "ompi/win/win.h"

/* A window. */
typedef struct {
    ompi_osc_base_module_t super;
    ompi_communicator_t *comm; /* its own */
    uint32_t window;           /* the engine's name for it */
    int rank;
    int size;
    int flavor;
    uint64_t *bytes; /* of each rank */
    uint32_t *units;
    uint64_t *counts; /* for fences */
    void *memory;     /* allocated here, or NULL */
    uint8_t *mapped;  /* the same, at a place of its own */
    /* Shared windows: memory of all ranks. */
    uint8_t *attached; /* or NULL */
    size_t attached_bytes;
    uint8_t **bases;
} mca_osc_correlated_window_t;

static inline mca_osc_correlated_window_t *correlated_window(const ompi_win_t *window)
{
    return (mca_osc_correlated_window_t *) window->w_osc_module;
}

/* MPI's error for one of enum rustbtl_rma. */
int mca_osc_correlated_error(int32_t outcome);

/* vprotocol_correlated_accesses.c, vprotocol_correlated_epochs.c: fill in their functions. */
void mca_osc_correlated_accesses(ompi_osc_base_module_t *module);
void mca_osc_correlated_epochs(ompi_osc_base_module_t *module);
/* The same file: types and operations are there. To be called once, before there are windows. */
void mca_osc_correlated_types(void);
/* The primitive that a type consists of. */
uint32_t mca_osc_correlated_primitive(ompi_datatype_t *type);

#endif

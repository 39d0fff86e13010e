/* An operation that does not commute, for folds whose order is looked at. */
#ifndef MATRICES_H
#define MATRICES_H

#include <mpi.h>
#include <stdint.h>
#include <string.h>

/* Matrices of two rows. */
__attribute__((unused)) static void multiply(void *left, void *right, int *count,
                                             MPI_Datatype *type)
{
    (void) type;
    uint32_t *a = left, *b = right, c[4];
    for (int i = 0; i < *count; i++, a += 4, b += 4) {
        c[0] = a[0] * b[0] + a[1] * b[2];
        c[1] = a[0] * b[1] + a[1] * b[3];
        c[2] = a[2] * b[0] + a[3] * b[2];
        c[3] = a[2] * b[1] + a[3] * b[3];
        memcpy(b, c, sizeof c);
    }
}

/* A word of one; odd, so that no product loses what it is made of. */
__attribute__((unused)) static uint32_t word(int rank, int i, int k)
{
    return (uint32_t) (rank * 2654435761u + (uint32_t) i * 40503u + (uint32_t) k * 7u) | 1;
}
#endif

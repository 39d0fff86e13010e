/* What the collectives*.c programs share: numbers to fold, an operation, what goes into a hash. */
#ifndef FOLDS_H
#define FOLDS_H
#include "hash.h"

#include <string.h>

/* Of different magnitude, so that sums depend on the order. */
static inline double number(uint64_t seed)
{
    uint64_t bits = mix(seed);
    return (double) (int64_t) bits / (double) (1ull << (bits % 61));
}

static inline void eat(uint64_t *hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        *hash = mix(*hash ^ word);
    }
}

/* Matrices of two rows: does not commute. */
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
#endif

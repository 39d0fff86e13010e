/* What the collectives*.c programs share: numbers to fold, an operation (matrices.h), what goes
 * into a hash. */
#ifndef FOLDS_H
#define FOLDS_H
#include "../mpi/matrices.h"
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
#endif

/* Datatypes with an independent list of the bytes they name: used by datatypes_*.c. */
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "check.h"

enum { ELEMENT_BYTES = 24, LAYOUTS = 16 };

/* offset[i] is where byte i of an element is, extent the distance to the next element. */
struct layout {
    const char *name;
    MPI_Datatype type;
    long offset[ELEMENT_BYTES];
    long extent;
};

static struct layout layouts[LAYOUTS];

static struct layout *layout_begin(int which, const char *name)
{
    layouts[which].name = name;
    return &layouts[which];
}

static void layout_end(struct layout *l)
{
    MPI_Aint lb, extent;
    int size;
    MPI_Type_commit(&l->type);
    MPI_Type_size(l->type, &size);
    MPI_Type_get_extent(l->type, &lb, &extent);
    CHECK(size == ELEMENT_BYTES && extent == l->extent, "%s: size %d, extent %ld, expected %ld",
          l->name, size, (long)extent, l->extent);
}

/* Blocks at given displacements, all in bytes: the common form of most constructors. */
static void offsets_of_blocks(struct layout *l, int blocks, const int *length, const long *at)
{
    int k = 0;
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < length[b]; i++)
            l->offset[k++] = at[b] + i;
    CHECK_EQ(k, ELEMENT_BYTES, "bytes of a layout");
}

static void layouts_make(void)
{
    struct layout *l;
    MPI_Datatype t, u;
    int k = 0;

    l = layout_begin(k++, "contiguous");
    MPI_Type_contiguous(24, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 1, (int[]){24}, (long[]){0});
    l->extent = 24;
    layout_end(l);

    l = layout_begin(k++, "vector");
    MPI_Type_vector(6, 4, 8, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 6, (int[]){4, 4, 4, 4, 4, 4}, (long[]){0, 8, 16, 24, 32, 40});
    l->extent = 44;
    layout_end(l);

    l = layout_begin(k++, "hvector");
    MPI_Type_create_hvector(3, 8, 13, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 3, (int[]){8, 8, 8}, (long[]){0, 13, 26});
    l->extent = 34;
    layout_end(l);

    l = layout_begin(k++, "vector backwards");
    MPI_Type_create_hvector(3, 8, -13, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 3, (int[]){8, 8, 8}, (long[]){0, -13, -26});
    l->extent = 34;
    layout_end(l);

    l = layout_begin(k++, "indexed, not in order");
    MPI_Type_indexed(3, (int[]){3, 5, 16}, (int[]){20, 2, 30}, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 3, (int[]){3, 5, 16}, (long[]){20, 2, 30});
    l->extent = 44;
    layout_end(l);

    l = layout_begin(k++, "hindexed with negative displacement");
    MPI_Type_create_hindexed(3, (int[]){4, 10, 10}, (MPI_Aint[]){-40, 5, -17}, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 3, (int[]){4, 10, 10}, (long[]){-40, 5, -17});
    l->extent = 55;
    layout_end(l);

    l = layout_begin(k++, "indexed block");
    MPI_Type_create_indexed_block(4, 6, (int[]){50, 0, 20, 30}, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 4, (int[]){6, 6, 6, 6}, (long[]){50, 0, 20, 30});
    l->extent = 56;
    layout_end(l);

    l = layout_begin(k++, "hindexed block");
    MPI_Type_create_hindexed_block(2, 12, (MPI_Aint[]){13, 60}, MPI_BYTE, &l->type);
    offsets_of_blocks(l, 2, (int[]){12, 12}, (long[]){13, 60});
    l->extent = 59;
    layout_end(l);

    l = layout_begin(k++, "struct with gaps");
    MPI_Type_create_struct(3, (int[]){4, 8, 12}, (MPI_Aint[]){0, 8, 20},
                           (MPI_Datatype[]){MPI_BYTE, MPI_BYTE, MPI_BYTE}, &l->type);
    offsets_of_blocks(l, 3, (int[]){4, 8, 12}, (long[]){0, 8, 20});
    l->extent = 32;
    layout_end(l);

    l = layout_begin(k++, "resized, large extent and other lower bound");
    MPI_Type_vector(3, 8, 10, MPI_BYTE, &t);
    MPI_Type_create_resized(t, -16, 100, &l->type);
    MPI_Type_free(&t);
    offsets_of_blocks(l, 3, (int[]){8, 8, 8}, (long[]){0, 10, 20});
    l->extent = 100;
    layout_end(l);

    l = layout_begin(k++, "interleaved by a small extent");
    MPI_Type_vector(24, 1, 50, MPI_BYTE, &t); /* a column; the next element is the next column */
    MPI_Type_create_resized(t, 0, 1, &l->type);
    MPI_Type_free(&t);
    for (int i = 0; i < 24; i++)
        l->offset[i] = 50 * i;
    l->extent = 1;
    layout_end(l);

    l = layout_begin(k++, "subarray, C order");
    MPI_Type_create_subarray(2, (int[]){7, 11}, (int[]){4, 6}, (int[]){2, 3}, MPI_ORDER_C, MPI_BYTE,
                             &l->type);
    for (int i = 0; i < 24; i++)
        l->offset[i] = (2 + i / 6) * 11 + 3 + i % 6;
    l->extent = 77;
    layout_end(l);

    l = layout_begin(k++, "subarray of 3 dimensions, Fortran order");
    MPI_Type_create_subarray(3, (int[]){5, 4, 6}, (int[]){3, 2, 4}, (int[]){1, 1, 2},
                             MPI_ORDER_FORTRAN, MPI_BYTE, &l->type);
    for (int i = 0; i < 24; i++)
        l->offset[i] = (1 + i % 3) + 5 * (1 + i / 3 % 2) + 20 * (2 + i / 6);
    l->extent = 120;
    layout_end(l);

    l = layout_begin(k++, "darray, cyclic(2) by block");
    /* 8 x 12 array on 2 x 2 processes, the share of process (1,1) */
    MPI_Type_create_darray(
        4, 3, 2, (int[]){8, 12}, (int[]){MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_BLOCK},
        (int[]){2, MPI_DISTRIBUTE_DFLT_DARG}, (int[]){2, 2}, MPI_ORDER_C, MPI_BYTE, &l->type);
    for (int i = 0; i < 24; i++) {
        static const int rows[4] = {2, 3, 6, 7};
        l->offset[i] = rows[i / 6] * 12 + 6 + i % 6;
    }
    l->extent = 96;
    layout_end(l);

    l = layout_begin(k++, "nested");
    MPI_Type_create_struct(2, (int[]){1, 3}, (MPI_Aint[]){6, 1},
                           (MPI_Datatype[]){MPI_BYTE, MPI_BYTE}, &t); /* 6, 1 2 3; extent 6 */
    MPI_Type_create_resized(t, 0, 10, &u);
    MPI_Type_free(&t);
    MPI_Type_vector(2, 1, 2, u, &t); /* at 0 and 20; extent 30 */
    MPI_Type_free(&u);
    MPI_Type_contiguous(3, t, &l->type);
    MPI_Type_free(&t);
    for (int i = 0; i < 24; i++) {
        static const int inner[4] = {6, 1, 2, 3};
        l->offset[i] = inner[i % 4] + 20 * (i / 4 % 2) + 30 * (i / 8);
    }
    l->extent = 90;
    layout_end(l);

    l = layout_begin(k++, "with empty blocks");
    MPI_Type_create_hindexed(5, (int[]){0, 12, 0, 12, 0}, (MPI_Aint[]){0, 30, 10, 8, 500}, MPI_BYTE,
                             &l->type);
    offsets_of_blocks(l, 2, (int[]){12, 12}, (long[]){30, 8});
    l->extent = 34;
    layout_end(l);
    CHECK_EQ(k, LAYOUTS, "number of layouts");
}

static void layouts_free(void)
{
    for (int k = 0; k < LAYOUTS; k++)
        MPI_Type_free(&layouts[k].type);
}

/* Memory that holds `count` elements, with room on both sides for negative displacements. */
struct region {
    unsigned char *memory, *base;
    size_t bytes;
};

UNUSED static struct region region_new(const struct layout *l, long count)
{
    struct region r;
    long low = 0, high = 0;
    for (int i = 0; i < ELEMENT_BYTES; i++) {
        low = l->offset[i] < low ? l->offset[i] : low;
        high = l->offset[i] + 1 > high ? l->offset[i] + 1 : high;
    }
    high += l->extent * (count > 0 ? count - 1 : 0);
    r.bytes = (size_t)(high - low + 32);
    r.memory = buffer_new(r.bytes);
    r.base = r.memory - low + 16;
    return r;
}

UNUSED static void region_fill(struct region r, const struct layout *l, long count, uint64_t key)
{
    for (long e = 0; e < count; e++)
        for (int i = 0; i < ELEMENT_BYTES; i++)
            r.base[e * l->extent + l->offset[i]] =
                pattern_byte(key, (size_t)(e * ELEMENT_BYTES + i));
}

/* Checks the named bytes (the first `bytes` of them), then that all others still hold the poison.
 */
UNUSED static void region_check(struct region r, const struct layout *l, long count, long bytes,
                                uint64_t key)
{
    for (long e = 0; e < count; e++)
        for (int i = 0; i < ELEMENT_BYTES; i++) {
            unsigned char *p = &r.base[e * l->extent + l->offset[i]];
            long at = e * ELEMENT_BYTES + i;
            if (at < bytes) {
                if (*p != pattern_byte(key, (size_t)at))
                    FAIL("%s: byte %ld: expected 0x%02x, got 0x%02x", l->name, at,
                         pattern_byte(key, (size_t)at), *p);
                *p = POISON;
            }
        }
    UNTOUCHED(r.memory, r.bytes, l->name);
    GUARDS(r.memory);
}
#endif

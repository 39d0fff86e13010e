/* ranks: 1,2,3 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Derived types at both ends: each layout of layouts.h into each other one, by put and get, in
 * small and large numbers; the types are copies that are freed before the epoch ends. What is not
 * named by a type stays. MPI 3.1 sections 11.3.1, 11.3.2. */
#include "layouts.h"
#include "windows.h"

enum { ROOM = 96 * 1024 };

static MPI_Datatype copy_of(const struct layout *l)
{
    MPI_Datatype copy;
    MPI_Type_dup(l->type, &copy);
    return copy;
}

/* Where the first element lies in the window, so that all bytes of `count` are inside. */
static struct region region_in_window(struct window *w, const struct layout *l, long count)
{
    struct region r = region_new(l, count);
    long low = r.memory + 16 - r.base; /* lowest displacement, as region_new found it */
    buffer_free(r.memory);
    r.memory = w->base;
    r.base = w->base + 16 - low;
    CHECK(r.bytes <= ROOM, "%s: %zu bytes are needed", l->name, r.bytes);
    return r;
}

/* region_check without guards around the memory. */
static void check_in_window(struct window *w, struct region r, const struct layout *l, long count,
                            uint64_t key)
{
    for (long e = 0; e < count; e++)
        for (int i = 0; i < ELEMENT_BYTES; i++) {
            unsigned char *p = &r.base[e * l->extent + l->offset[i]];
            CHECK_EQ(*p, pattern_byte(key, (size_t)(e * ELEMENT_BYTES + i)), "byte of an element");
            *p = POISON;
        }
    UNTOUCHED(w->base, ROOM, l->name);
}

/* Into the next rank's window, and back out of it. */
static void there_and_back(struct window *w, const struct layout *here, const struct layout *there,
                           long count)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np, n = (int)count;
    struct region r = region_new(here, count), s = region_in_window(w, there, count);
    MPI_Aint first = at(w, next, s.base - w->base);
    uint64_t key = key_of(me, 1, count, here - layouts), theirs = key_of(previous, 1, count,
                                                                         here - layouts);
    STEP("%s: %ld of %s into %s", flavour_name[w->flavour], count, here->name, there->name);
    region_fill(r, here, count, key);
    MPI_Datatype mine = copy_of(here), other = copy_of(there);
    MPI_Put(r.base, n, mine, next, first, n, other, w->win);
    MPI_Type_free(&mine);
    MPI_Type_free(&other);
    MPI_Win_fence(0, w->win);
    MPI_Datatype again = copy_of(here);
    other = copy_of(there);
    poison(r.memory, r.bytes);
    MPI_Get(r.base, n, again, next, first, n, other, w->win);
    MPI_Type_free(&again);
    MPI_Type_free(&other);
    MPI_Win_fence(0, w->win);
    region_check(r, here, count, count * ELEMENT_BYTES, key);
    check_in_window(w, s, there, count, theirs);
    buffer_free(r.memory);
    MPI_Win_fence(0, w->win);
}

/* One element here is three there: the same bytes, other types and counts. */
static void as_bytes(struct window *w, const struct layout *l, long count)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np, n = (int)count * ELEMENT_BYTES;
    struct region s = region_in_window(w, l, count);
    unsigned char *plain = buffer_new((size_t)n);
    STEP("%s: bytes into %s", flavour_name[w->flavour], l->name);
    fill(plain, (size_t)n, key_of(me, 2, count, 0));
    MPI_Put(plain, n, MPI_BYTE, next, at(w, next, s.base - w->base), (int)count, l->type, w->win);
    MPI_Win_fence(0, w->win);
    poison(plain, (size_t)n);
    MPI_Get(plain, n, MPI_BYTE, next, at(w, next, s.base - w->base), (int)count, l->type, w->win);
    MPI_Win_fence(0, w->win);
    VERIFY(plain, n, key_of(me, 2, count, 0), "bytes out of a layout");
    check_in_window(w, s, l, count, key_of(previous, 2, count, 0));
    buffer_free(plain);
    MPI_Win_fence(0, w->win);
}

/* Columns of a matrix of 50 columns: more of them would lie on each other. */
static long many(const struct layout *a, const struct layout *b)
{
    return a->extent == 1 || b->extent == 1 ? 50 : 700;
}

static void body(struct window *w)
{
    poison(w->base, ROOM);
    MPI_Win_fence(0, w->win);
    for (int k = 0; k < LAYOUTS; k++) {
        if (!layouts[k].name)
            continue;
        /* half of all pairs here, the other half on the other flavour */
        for (int i = (k + (w->flavour == CREATE)) % 2; i < LAYOUTS; i += 2)
            if (layouts[i].name)
                there_and_back(w, &layouts[k], &layouts[i], 1 + (k * LAYOUTS + i) % 5);
        const struct layout *other = &layouts[(k + 5) % LAYOUTS];
        there_and_back(w, &layouts[k], other, many(&layouts[k], other));
        as_bytes(w, &layouts[k], 1);
        as_bytes(w, &layouts[k], many(&layouts[k], &layouts[k]));
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    layouts_make();
    for (int flavour = CREATE; flavour < FLAVOURS; flavour += 2) { /* created, dynamic */
        struct window w;
        if (window_open(&w, (enum flavour)flavour, MPI_COMM_WORLD, ROOM, 1)) {
            body(&w);
            window_close(&w);
        }
    }
    layouts_free();
    return check_end();
}

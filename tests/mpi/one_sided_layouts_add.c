/* ranks: 1,2,3 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Derived types at both ends of accumulates: sums of ints from each type into each other one, also
 * fetched into a third; types freed before the epoch ends; pairs
 * and doubles in vectors. Which place is which element MPI_Pack says. MPI 3.1 section 11.3.4. */
#include "windows.h"

enum { INTS = 4096, MOST = 64 };

/* A type of ints, and which int of an element's memory each of its elements is. */
struct type {
    const char *name;
    MPI_Datatype type;
    int count, at[MOST];
    int extent; /* ints */
};

static struct type types[10];
static int types_count;

static void add(const char *name, MPI_Datatype type)
{
    struct type *t = &types[types_count++];
    int memory[512], position = 0, size;
    MPI_Aint low, extent;
    MPI_Type_commit(&type);
    MPI_Type_size(type, &size);
    MPI_Type_get_extent(type, &low, &extent);
    for (int k = 0; k < LENGTH(memory); k++)
        memory[k] = k;
    CHECK(size <= MOST * 4, "room for %s", name);
    *t = (struct type){.name = name, .type = type, .count = size / 4, .extent = (int)extent / 4};
    MPI_Pack(memory, 1, type, t->at, (int)sizeof t->at, &position, MPI_COMM_WORLD);
    CHECK_EQ(position, size, "packed");
}

static void make_types(void)
{
    MPI_Datatype t, u;
    MPI_Type_contiguous(12, MPI_INT, &t);
    add("contiguous", t);
    MPI_Type_vector(4, 3, 5, MPI_INT, &t);
    add("vector", t);
    MPI_Type_create_hvector(6, 2, 16, MPI_INT, &t);
    add("hvector", t);
    MPI_Type_indexed(4, (int[]){3, 1, 6, 2}, (int[]){10, 1, 20, 5}, MPI_INT, &t);
    add("indexed, not in order", t);
    MPI_Type_create_hindexed(3, (int[]){4, 4, 4}, (MPI_Aint[]){64, 0, 32}, MPI_INT, &t);
    add("hindexed", t);
    MPI_Type_create_subarray(2, (int[]){5, 6}, (int[]){3, 4}, (int[]){1, 1}, MPI_ORDER_C, MPI_INT,
                             &t);
    add("subarray", t);
    MPI_Type_create_struct(2, (int[]){2, 5}, (MPI_Aint[]){8, 32}, (MPI_Datatype[]){MPI_INT, MPI_INT},
                           &u);
    MPI_Type_contiguous(4, MPI_INT, &t);
    MPI_Type_create_struct(2, (int[]){1, 2}, (MPI_Aint[]){0, 64}, (MPI_Datatype[]){u, t}, &t);
    MPI_Type_free(&u);
    u = t;
    MPI_Type_create_struct(2, (int[]){1, 1}, (MPI_Aint[]){0, 120},
                           (MPI_Datatype[]){u, MPI_INT}, &t);
    MPI_Type_free(&u);
    add("struct of structs", t); /* 2 + 5 + 8 + 1 */
    MPI_Type_vector(6, 2, 3, MPI_INT, &u);
    MPI_Type_create_resized(u, 0, 160, &t);
    MPI_Type_free(&u);
    add("resized", t);
    MPI_Type_create_indexed_block(12, 1, (int[]){30, 28, 26, 24, 22, 20, 1, 3, 5, 7, 9, 11},
                                  MPI_INT, &t);
    add("indexed block, backwards", t);
}

static MPI_Datatype copy_of(const struct type *t)
{
    MPI_Datatype copy;
    MPI_Type_dup(t->type, &copy);
    return copy;
}

/* Place of the k-th element of many. */
static int place(const struct type *t, int k)
{
    return k / t->count * t->extent + t->at[k % t->count];
}

/* Everybody adds to rank `target`; the first then fetches what is there into a third type. */
static void sums(struct window *w, const struct type *from, const struct type *to, int target,
                 bool fetch)
{
    int elements = from->count * to->count, *mine = (int *)w->base;
    while (place(from, elements - 1) >= INTS - 512 || place(to, elements - 1) >= INTS - 512)
        FAIL("room");
    int *x = malloc(INTS * sizeof *x), *old = malloc(INTS * sizeof *old);
    int n = elements / from->count, m = elements / to->count;
    STEP("%s: %s into %s", flavour_name[w->flavour], from->name, to->name);
    for (int k = 0; k < INTS; k++) {
        mine[k] = -k;
        x[k] = old[k] = 1 << 30;
    }
    for (int k = 0; k < elements; k++)
        x[place(from, k)] = (me + 1) * k;
    MPI_Win_fence(0, w->win);
    MPI_Datatype a = copy_of(from), b = copy_of(to), c = copy_of(from);
    if (fetch)
        MPI_Get_accumulate(x, n, a, old, n, c, target, at(w, target, 0), m, b, MPI_SUM, w->win);
    else
        MPI_Accumulate(x, n, a, target, at(w, target, 0), m, b, MPI_SUM, w->win);
    MPI_Type_free(&a);
    MPI_Type_free(&b);
    MPI_Type_free(&c);
    MPI_Win_fence(0, w->win);
    int ranks = np * (np + 1) / 2;
    char named[INTS] = {0};
    for (int k = 0; k < elements; k++)
        named[place(to, k)] = 1;
    for (int k = 0; k < elements; k++)
        CHECK_EQ(mine[place(to, k)], -place(to, k) + (me == target ? ranks * k : 0), "sum");
    for (int k = 0; k < INTS; k++)
        if (!named[k])
            CHECK_EQ(mine[k], -k, "beside");
    for (int k = 0; k < elements && fetch; k++) {
        int was = old[place(from, k)] + place(to, k); /* sums of some other ranks' (r + 1) * k */
        CHECK(k ? was >= 0 && was % k == 0 && was / k <= ranks - me - 1 : was == 0,
              "element %d was %d", k, was);
        old[place(from, k)] = 1 << 30;
    }
    for (int k = 0; k < INTS && fetch; k++)
        CHECK_EQ(old[k], 1 << 30, "beside what was fetched");
    MPI_Win_fence(0, w->win);
    free(x);
    free(old);
}

/* Columns of a matrix of other types than ints. */
static void columns(struct window *w)
{
    enum { ROWS = 40, COLUMNS = 6 };
    struct pair {
        int value, index;
    } pairs[ROWS], *mine = (struct pair *)w->base;
    double x[ROWS], *doubles = (double *)(w->base + 4096);
    MPI_Datatype column, pair_column;
    STEP("%s: columns of doubles and of pairs", flavour_name[w->flavour]);
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &column);
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_2INT, &pair_column);
    MPI_Type_commit(&column);
    MPI_Type_commit(&pair_column);
    for (int k = 0; k < ROWS * COLUMNS; k++) {
        mine[k].value = mine[k].index = 1000;
        doubles[k] = 0.5;
    }
    for (int k = 0; k < ROWS; k++) {
        pairs[k].value = (k * 7 + me) % 5;
        pairs[k].index = me;
        x[k] = me + 0.25;
    }
    MPI_Win_fence(0, w->win);
    for (int target = 0; target < np; target++) {
        MPI_Accumulate(pairs, ROWS, MPI_2INT, target, at(w, target, 2 * 8), 1, pair_column,
                       MPI_MINLOC, w->win);
        MPI_Accumulate(x, ROWS, MPI_DOUBLE, target, at(w, target, 4096 + 3 * 8), 1, column, MPI_SUM,
                       w->win);
    }
    MPI_Win_fence(0, w->win);
    for (int k = 0; k < ROWS; k++) {
        int least = 1000, whose = -1;
        for (int rank = 0; rank < np; rank++)
            if ((k * 7 + rank) % 5 < least) {
                least = (k * 7 + rank) % 5;
                whose = rank;
            }
        for (int c = 0; c < COLUMNS; c++) {
            CHECK_EQ(mine[k * COLUMNS + c].value, c == 2 ? least : 1000, "least value");
            CHECK_EQ(mine[k * COLUMNS + c].index, c == 2 ? whose : 1000, "whose it is");
            double want = 0.5 + (c == 3 ? np * (np - 1) / 2 + 0.25 * np : 0);
            CHECK(doubles[k * COLUMNS + c] == want, "row %d column %d is %g, not %g", k, c,
                  doubles[k * COLUMNS + c], want);
        }
    }
    MPI_Win_fence(0, w->win);
    MPI_Type_free(&column);
    MPI_Type_free(&pair_column);
}

static void body(struct window *w)
{
    for (int k = 0; k < types_count; k++)
        for (int i = 0; i < types_count; i++)
            sums(w, &types[k], &types[i], (k + i) % np, (k + i) % 2);
    columns(w);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    make_types();
    on_all_flavours(INTS * 4, 4, body);
    for (int k = 0; k < types_count; k++)
        MPI_Type_free(&types[k].type);
    return check_end();
}

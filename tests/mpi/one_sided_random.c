/* ranks: 2,3,4,6 ; nodes: 1,2,3 ; output: HASH [0-9a-f]+ ; stock args: --mca osc pt2pt */
/* Random programs without data races, against a model: in each phase each part of each window has
 * one origin that puts, gets and accumulates there, or is only read by all; phases of fences, of
 * post and start, of exclusive and shared locks, of lock_all, in random order, sizes from 1 to
 * 5,000 elements, contiguous or strided. All ranks know what all do, so each knows what is
 * everywhere. The hash is that of all windows and of all that was read. MPI 3.1 section 11.7. */
#include "windows.h"

enum { PARTS = 8, PART = 4096, OPERATIONS = 12 };

static unsigned *model; /* of all windows: rank, part, element */
static unsigned x[OPERATIONS][PART], got[OPERATIONS][PART], want[OPERATIONS][PART];
static uint64_t hash = 1469598103934665603u;

static unsigned *in_model(int rank, int part)
{
    return model + ((long)rank * PARTS + part) * PART;
}

struct operation {
    int target, part, from, n, stride;
    enum { PUT, GET, ADD, FETCH_ADD, READ_ALL } kind;
    unsigned value;
};

/* Who may change a part in this phase: nobody if it is not below the number of ranks. */
static int origin_of(uint64_t phase_seed, int rank, int part)
{
    return (int)(mix64(phase_seed ^ (uint64_t)(rank * PARTS + part) * 77) % (uint64_t)(np + 1));
}

/* Number k of a rank in a phase. Parts of others are read only if nobody changes them; a place is
 * touched by one operation of a phase only, since the order of puts and gets is free. */
static struct operation draw(uint64_t phase_seed, int rank, int k)
{
    uint64_t random = mix64(phase_seed ^ (uint64_t)(rank * 64 + k) * 7919);
    struct operation o = {.target = (int)random_below(&random, np),
                          .part = (int)random_below(&random, PARTS),
                          .stride = 1 + (int)random_below(&random, 3)};
    int room = PART / OPERATIONS;
    o.from = k * room;
    o.n = 1 + (int)random_below(&random, random_below(&random, 3) ? 8 : room / o.stride);
    o.value = (unsigned)random_next(&random);
    int origin = origin_of(phase_seed, o.target, o.part);
    o.kind = origin == rank ? (int)random_below(&random, 4) : READ_ALL;
    if (origin != rank && origin < np)
        o.n = 0; /* somebody else's */
    return o;
}

static void issue(struct window *w, const struct operation *o, int k)
{
    MPI_Datatype type = MPI_UNSIGNED;
    int n = o->n;
    MPI_Aint there = at(w, o->target, 4l * (o->part * PART + o->from));
    if (n == 0)
        return;
    if (o->stride > 1) {
        MPI_Type_vector(n, 1, o->stride, MPI_UNSIGNED, &type);
        MPI_Type_commit(&type);
    }
    int m = o->stride > 1 ? 1 : n;
    for (int i = 0; i < n; i++)
        x[k][i] = o->value + (unsigned)i;
    if (o->kind == PUT)
        MPI_Put(x[k], n, MPI_UNSIGNED, o->target, there, m, type, w->win);
    else if (o->kind == ADD)
        MPI_Accumulate(x[k], n, MPI_UNSIGNED, o->target, there, m, type, MPI_SUM, w->win);
    else if (o->kind == FETCH_ADD)
        MPI_Get_accumulate(x[k], n, MPI_UNSIGNED, got[k], n, MPI_UNSIGNED, o->target, there, m,
                           type, MPI_SUM, w->win);
    else
        MPI_Get(got[k], n, MPI_UNSIGNED, o->target, there, m, type, w->win);
    if (o->stride > 1)
        MPI_Type_free(&type);
}

/* What it does to the model; what it reads of it, if it is mine. */
static void apply(const struct operation *o, int rank, int k)
{
    unsigned *p = in_model(o->target, o->part) + o->from;
    for (int i = 0; i < o->n; i++) {
        unsigned *place = p + (long)i * o->stride;
        if (rank == me)
            want[k][i] = *place;
        if (o->kind == PUT)
            *place = o->value + (unsigned)i;
        if (o->kind == ADD || o->kind == FETCH_ADD)
            *place += o->value + (unsigned)i;
    }
}

static void phase(struct window *w, uint64_t seed, MPI_Group all)
{
    static struct operation mine[OPERATIONS];
    int way = (int)(mix64(seed) % 4);
    for (int k = 0; k < OPERATIONS; k++)
        mine[k] = draw(seed, me, k);
    if (way == 0) {
        MPI_Win_fence(0, w->win);
    } else if (way == 1) {
        MPI_Win_post(all, 0, w->win);
        MPI_Win_start(all, 0, w->win);
    } else if (way == 2) {
        MPI_Win_lock_all(0, w->win);
    }
    for (int k = 0; k < OPERATIONS; k++) {
        if (way == 3)
            MPI_Win_lock(k % 2 ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, mine[k].target, 0, w->win);
        issue(w, &mine[k], k);
        if (way == 3)
            MPI_Win_unlock(mine[k].target, w->win);
        if (way == 2 && k % 5 == 4)
            MPI_Win_flush(mine[k].target, w->win);
    }
    if (way == 0) {
        MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
    } else if (way == 1) {
        MPI_Win_complete(w->win);
        MPI_Win_wait(w->win);
    } else if (way == 2) {
        MPI_Win_unlock_all(w->win);
    }
    if (way >= 2)
        MPI_Barrier(MPI_COMM_WORLD);
    for (int rank = 0; rank < np; rank++)
        for (int k = 0; k < OPERATIONS; k++) {
            struct operation o = draw(seed, rank, k);
            apply(&o, rank, k);
        }
    for (int k = 0; k < OPERATIONS; k++)
        for (int i = 0; i < mine[k].n && mine[k].kind != PUT && mine[k].kind != ADD; i++) {
            CHECK_EQ(got[k][i], want[k][i], "read");
            hash = mix64(hash ^ got[k][i]);
        }
    MPI_Win_lock(MPI_LOCK_SHARED, me, 0, w->win);
    CHECK(!memcmp(w->base, in_model(me, 0), PARTS * PART * 4), "window, way %d", way);
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    uint64_t all;
    check_begin(&argc, &argv);
    uint64_t seed = (uint64_t)environment_number("CHECK_SEED", 1);
    long phases = scaled(24);
    MPI_Group group;
    MPI_Comm_group(MPI_COMM_WORLD, &group);
    model = calloc((size_t)np * PARTS * PART, sizeof *model);
    for (int flavour = 0; flavour < 3; flavour++) {
        struct window w;
        window_open(&w, (enum flavour)flavour, MPI_COMM_WORLD, PARTS * PART * 4, 4);
        memset(model, 0, (size_t)np * PARTS * PART * sizeof *model);
        for (long k = 0; k < phases; k++) {
            STEP("%s: seed %d, phase %ld", flavour_name[flavour], (int)seed, k);
            phase(&w, seed * 100000 + (uint64_t)(flavour * 1000 + k), group);
        }
        for (long k = 0; k < PARTS * PART; k++)
            hash = mix64(hash ^ ((unsigned *)w.base)[k]);
        window_close(&w);
    }
    MPI_Group_free(&group);
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long)all);
    return check_end();
}

/* ranks: 2,3 ; nodes: 1,2,3 ; memory: 900 ; stock args: --mca osc pt2pt */
/* Large transfers: 64 MiB put and got, with a layout, 16 MiB of accumulates and of what is
 * fetched, several at the same time in both directions. */
#include "windows.h"

enum { LARGE = 64 << 20, MIDDLE = 16 << 20 };

static void there_and_back(struct window *w)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    unsigned char *x = malloc(LARGE);
    STEP("64 MiB");
    fill(x, LARGE, key_of(me, 1, 0, 0));
    MPI_Win_fence(0, w->win);
    MPI_Put(x, LARGE, MPI_BYTE, next, at(w, next, 0), LARGE, MPI_BYTE, w->win);
    MPI_Win_fence(0, w->win);
    VERIFY(w->base, LARGE, key_of(previous, 1, 0, 0), "put");
    memset(x, 0, LARGE);
    MPI_Get(x, LARGE, MPI_BYTE, next, at(w, next, 0), LARGE, MPI_BYTE, w->win);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, w->win);
    VERIFY(x, LARGE, key_of(me, 1, 0, 0), "got");
    free(x);
}

/* Every second row of 4,000 bytes; and rows of 24 bytes, more than a message can describe. */
static void rows(struct window *w, int bytes, int count)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    size_t n = (size_t)bytes * (size_t)count;
    unsigned char *x = malloc(n);
    MPI_Datatype second;
    STEP("%d rows of %d bytes", count, bytes);
    MPI_Type_vector(count, bytes, 2 * bytes, MPI_BYTE, &second);
    MPI_Type_commit(&second);
    fill(x, n, key_of(me, 2, bytes, 0));
    memset(w->base, POISON, 2 * n);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, w->win);
    MPI_Put(x, (int)n, MPI_BYTE, next, at(w, next, 0), 1, second, w->win);
    MPI_Win_flush(next, w->win);
    memset(x, 0, n);
    MPI_Get(x, (int)n, MPI_BYTE, next, at(w, next, 0), 1, second, w->win);
    MPI_Type_free(&second);
    MPI_Win_unlock(next, w->win);
    VERIFY(x, n, key_of(me, 2, bytes, 0), "got");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, me, 0, w->win);
    fill(x, n, key_of(previous, 2, bytes, 0));
    for (int k = 0; k < count; k++) {
        CHECK(!memcmp(w->base + (size_t)k * 2 * (size_t)bytes, x + (size_t)k * (size_t)bytes,
                      (size_t)bytes), "row %d", k);
        UNTOUCHED(w->base + ((size_t)k * 2 + 1) * (size_t)bytes, k + 1 < count ? bytes : 0,
                  "between rows");
    }
    MPI_Win_unlock(me, w->win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(x);
}

/* All add to one, who adds to itself, too. */
static void sums(struct window *w)
{
    enum { LONGS = MIDDLE / 8 };
    long *x = malloc(MIDDLE), *old = malloc(MIDDLE), *mine = (long *)w->base;
    STEP("sums of 16 MiB");
    for (long k = 0; k < LONGS; k++) {
        x[k] = k * (me + 1);
        mine[k] = 5;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, w->win);
    MPI_Accumulate(x, LONGS, MPI_LONG, 0, at(w, 0, 0), LONGS, MPI_LONG, MPI_SUM, w->win);
    MPI_Win_flush(0, w->win);
    MPI_Get_accumulate(x, LONGS, MPI_LONG, old, LONGS, MPI_LONG, 0, at(w, 0, 0), LONGS, MPI_LONG,
                       MPI_SUM, w->win);
    MPI_Win_flush(0, w->win);
    int ranks = np * (np + 1) / 2;
    for (long k = 1; k < LONGS; k++)
        CHECK((old[k] - 5) % k == 0 && (old[k] - 5) / k >= me + 1 && (old[k] - 5) / k < 2 * ranks,
              "element %ld was %ld", k, old[k]);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Get(old, LONGS, MPI_LONG, 0, at(w, 0, 0), LONGS, MPI_LONG, w->win);
    MPI_Win_unlock_all(w->win);
    for (long k = 0; k < LONGS; k++)
        CHECK_EQ(old[k], 5 + 2 * k * ranks, "sum");
    MPI_Barrier(MPI_COMM_WORLD);
    free(x);
    free(old);
}

int main(int argc, char **argv)
{
    struct window w;
    check_begin(&argc, &argv);
    window_open(&w, ALLOCATE, MPI_COMM_WORLD, LARGE, 1);
    there_and_back(&w);
    rows(&w, 4000, 4000);
    rows(&w, 24, 100000);
    sums(&w);
    window_close(&w);
    return check_end();
}

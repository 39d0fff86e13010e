/* ranks: 1,2,3,4,6 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Operations that are atomic, by all ranks on the same places at the same time: tickets, swaps in
 * a chain, a lock of compare-and-swap, sums of elements, reads without an operation; on all types
 * that MPI_Compare_and_swap takes. MPI 3.1 section 11.3.4. */
#include "windows.h"

enum { LONGS = 600 };

static void clear(struct window *w)
{
    meet(w);
    memset(w->base, 0, LONGS * 8);
    meet(w);
}

/* Each ticket is drawn once; each rank draws rising ones. */
static void tickets(struct window *w)
{
    enum { EACH = 60 };
    long one = 1, mine, last = -1, sum = 0, all;
    clear(w);
    STEP("%s: tickets", flavour_name[w->flavour]);
    for (int k = 0; k < EACH; k++) {
        MPI_Fetch_and_op(&one, &mine, MPI_LONG, 0, at(w, 0, 0), MPI_SUM, w->win);
        MPI_Win_flush(0, w->win);
        CHECK(mine > last && mine < (long)EACH * np, "ticket %ld after %ld", mine, last);
        last = mine;
        sum += mine;
    }
    MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQ(all, (long)EACH * np * (EACH * np - 1) / 2, "each ticket once");
}

/* Swaps: who swaps gets what the one before has left, so all values but the last are seen once. */
static void chain(struct window *w)
{
    enum { EACH = 40 };
    long x, before, sum = 0, all, sent = 0, target = np - 1;
    clear(w);
    STEP("%s: swaps", flavour_name[w->flavour]);
    for (int k = 0; k < EACH; k++) {
        x = 1 + me * EACH + k;
        sent += x;
        MPI_Fetch_and_op(&x, &before, MPI_LONG, (int)target, at(w, (int)target, 8), MPI_REPLACE,
                         w->win);
        MPI_Win_flush((int)target, w->win);
        sum += before;
    }
    meet(w);
    if (me == target)
        sum += ((long *)w->base)[1];
    sum -= sent;
    MPI_Allreduce(&sum, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQ(all, 0, "each value is seen once, or is the last one");
}

/* A lock by compare-and-swap around a get and a put. */
static void spin(struct window *w)
{
    enum { EACH = 8 };
    long mine = me + 1, none = 0, seen, x;
    clear(w);
    STEP("%s: a lock of compare-and-swap", flavour_name[w->flavour]);
    for (int k = 0; k < EACH; k++) {
        do {
            MPI_Compare_and_swap(&mine, &none, &seen, MPI_LONG, 0, at(w, 0, 16), w->win);
            MPI_Win_flush(0, w->win);
            CHECK(seen >= 0 && seen <= np && seen != mine, "%ld holds the lock", seen);
        } while (seen);
        MPI_Get(&x, 1, MPI_LONG, 0, at(w, 0, 24), 1, MPI_LONG, w->win);
        MPI_Win_flush(0, w->win);
        x++;
        MPI_Put(&x, 1, MPI_LONG, 0, at(w, 0, 24), 1, MPI_LONG, w->win);
        MPI_Win_flush(0, w->win);
        MPI_Compare_and_swap(&none, &mine, &seen, MPI_LONG, 0, at(w, 0, 16), w->win);
        MPI_Win_flush(0, w->win);
        CHECK_EQ(seen, mine, "the lock is still mine");
    }
    meet(w);
    if (me == 0)
        CHECK_EQ(((long *)w->base)[3], (long)EACH * np, "additions under the lock");
}

/* Vectors: each element is atomic; what is fetched is a value that the element had. */
static void elements(struct window *w)
{
    enum { N = 500, EACH = 6 };
    long *x = malloc(N * sizeof *x), *old = malloc(N * sizeof *old);
    clear(w);
    STEP("%s: elements", flavour_name[w->flavour]);
    for (int k = 0; k < N; k++)
        x[k] = k + 1;
    for (int round = 0; round < EACH; round++)
        for (int r = 0; r < np; r++) {
            MPI_Get_accumulate(x, N, MPI_LONG, old, N, MPI_LONG, r, at(w, r, 0), N, MPI_LONG,
                               MPI_SUM, w->win);
            MPI_Win_flush(r, w->win);
            for (int k = 0; k < N; k++)
                CHECK(old[k] % (k + 1) == 0 && old[k] / (k + 1) >= round &&
                          old[k] / (k + 1) <= EACH * (np - 1) + round,
                      "element %d was %ld", k, old[k]);
        }
    meet(w);
    for (int k = 0; k < N; k++)
        CHECK_EQ(((long *)w->base)[k], (long)EACH * np * (k + 1), "sums");
    meet(w);
    for (int r = 0; r < np; r++) {
        MPI_Get_accumulate(NULL, 0, MPI_DATATYPE_NULL, old, N, MPI_LONG, r, at(w, r, 0), N,
                           MPI_LONG, MPI_NO_OP, w->win);
        MPI_Win_flush(r, w->win);
        for (int k = 0; k < N; k++)
            CHECK_EQ(old[k], (long)EACH * np * (k + 1), "read without an operation");
    }
    free(x);
    free(old);
}

/* Values of each type that can be compared and swapped: the right one is swapped, others are not,
 * and what is beside is not touched. */
static void types(struct window *w)
{
    const struct {
        MPI_Datatype type;
        int bytes;
        const char *name;
    } all[] = {
        {MPI_SIGNED_CHAR, 1, "signed char"},
        {MPI_UNSIGNED_CHAR, 1, "unsigned char"},
        {MPI_SHORT, 2, "short"},
        {MPI_UNSIGNED_SHORT, 2, "unsigned short"},
        {MPI_INT, 4, "int"},
        {MPI_UNSIGNED, 4, "unsigned"},
        {MPI_LONG, 8, "long"},
        {MPI_UNSIGNED_LONG, 8, "unsigned long"},
        {MPI_LONG_LONG, 8, "long long"},
        {MPI_INT8_T, 1, "int8"},
        {MPI_INT16_T, 2, "int16"},
        {MPI_INT32_T, 4, "int32"},
        {MPI_INT64_T, 8, "int64"},
        {MPI_UINT8_T, 1, "uint8"},
        {MPI_UINT16_T, 2, "uint16"},
        {MPI_UINT32_T, 4, "uint32"},
        {MPI_UINT64_T, 8, "uint64"},
        {MPI_AINT, 8, "MPI_Aint"},
        {MPI_OFFSET, 8, "MPI_Offset"},
        {MPI_COUNT, 8, "MPI_Count"},
        {MPI_INTEGER, 4, "INTEGER"},
        {MPI_C_BOOL, 1, "bool"},
        {MPI_BYTE, 1, "byte"},
    };
    int next = (me + 1) % np;
    for (int k = 0; k < LENGTH(all); k++) {
        unsigned char old[16], now[8], is[8], other[8];
        int n = all[k].bytes;
        STEP("%s: compare and swap, %s", flavour_name[w->flavour], all[k].name);
        for (int i = 0; i < 8; i++) {
            is[i] = (unsigned char)(all[k].type == MPI_C_BOOL ? 1 : 0x80 + me * 8 + i);
            now[i] = (unsigned char)(all[k].type == MPI_C_BOOL ? 0 : 0x30 + me * 8 + i);
            other[i] = (unsigned char)(all[k].type == MPI_C_BOOL ? 0 : 0xf0 - i);
        }
        meet(w);
        memset(w->base, POISON, 24);
        for (int i = 0; i < n; i++) /* what the rank before me expects here */
            w->base[8 + i] = (unsigned char)(all[k].type == MPI_C_BOOL ? 1
                                             : 0x80 + (me + np - 1) % np * 8 + i);
        meet(w);
        memset(old, 0x11, sizeof old);
        MPI_Compare_and_swap(now, other, old, all[k].type, next, at(w, next, 8), w->win);
        MPI_Win_flush(next, w->win);
        CHECK(!memcmp(old, is, (size_t)n), "what is there, not swapped");
        MPI_Compare_and_swap(now, is, old, all[k].type, next, at(w, next, 8), w->win);
        MPI_Win_flush(next, w->win);
        CHECK(!memcmp(old, is, (size_t)n), "it was not swapped before");
        MPI_Compare_and_swap(is, other, old, all[k].type, next, at(w, next, 8), w->win);
        MPI_Win_flush(next, w->win);
        for (int i = 0; i < n && all[k].type != MPI_C_BOOL; i++)
            CHECK_EQ(old[i], now[i], "it was swapped");
        for (int i = n; i < 16; i++)
            CHECK_EQ(old[i], 0x11, "behind the result");
        meet(w);
        UNTOUCHED(w->base, 8, "before");
        UNTOUCHED(w->base + 8 + n, 24 - 8 - n, "behind");
    }
}

static void body(struct window *w)
{
    MPI_Win_lock_all(0, w->win);
    tickets(w);
    chain(w);
    spin(w);
    elements(w);
    types(w);
    MPI_Win_unlock_all(w->win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours(LONGS * 8, 8, body);
    return check_end();
}

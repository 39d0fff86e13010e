/* ranks: 1,2,3 ; nodes: 1,2,3 ; args: accumulate | get_accumulate | fetch_and_op ; stock args: --mca osc pt2pt */
/* All predefined operations on all predefined types that MPI 3.1 section 5.9.2 allows (and
 * MPI_REPLACE and MPI_NO_OP on all; Open MPI also has arithmetic on bytes and characters, so programs
 * use it), against the same in C: MPI_MINLOC and MPI_MAXLOC on pairs with
 * padding, which has to stay as it was, logical operations on MPI_C_BOOL, complex and long double.
 * MPI 3.1 section 11.3.4. */
#include <complex.h>
#include "windows.h"

enum { N = 9, SIZE_MAX_BYTES = 32, ROOM = N * SIZE_MAX_BYTES };

enum class { INTEGER, UNSIGNED, FORTRAN, FLOATING, COMPLEX, LOGICAL, PAIR, CHARACTER };

struct kind {
    MPI_Datatype type;
    const char *name;
    enum class class;
    size_t bytes;
    void (*set)(void *at, long value);
    void (*apply)(void *at, const void *with, int op);
};

enum op { SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC, REPLACE, NO_OP,
          OPS };
static const char *const op_name[OPS] = {"sum",  "prod", "min", "max",  "land",   "lor",    "lxor",
                                         "band", "bor",  "bxor", "minloc", "maxloc", "replace",
                                         "no_op"};
static MPI_Op op_handle[OPS];

#define SET(T, NAME)                                                                               \
    static void set_##NAME(void *at, long value)                                                   \
    {                                                                                              \
        T x = (T)value;                                                                            \
        memcpy(at, &x, sizeof x);                                                                  \
    }
#define BEGIN(T, NAME)                                                                             \
    SET(T, NAME)                                                                                   \
    static void apply_##NAME(void *at, const void *with, int op)                                   \
    {                                                                                              \
        T a, b;                                                                                    \
        memcpy(&a, at, sizeof a);                                                                  \
        memcpy(&b, with, sizeof b);
#define END                                                                                        \
        memcpy(at, &a, sizeof a);                                                                  \
    }
#define ORDERED                                                                                    \
    if (op == SUM)                                                                                 \
        a = a + b;                                                                                 \
    if (op == PROD)                                                                                \
        a = a * b;                                                                                 \
    if (op == MIN)                                                                                 \
        a = a < b ? a : b;                                                                         \
    if (op == MAX)                                                                                 \
        a = a > b ? a : b;
#define LOGIC                                                                                      \
    if (op == LAND)                                                                                \
        a = a && b;                                                                                \
    if (op == LOR)                                                                                 \
        a = a || b;                                                                                \
    if (op == LXOR)                                                                                \
        a = !a != !b;
#define BITS                                                                                       \
    if (op == BAND)                                                                                \
        a = a & b;                                                                                 \
    if (op == BOR)                                                                                 \
        a = a | b;                                                                                 \
    if (op == BXOR)                                                                                \
        a = a ^ b;
#define WHOLE(T, NAME) BEGIN(T, NAME) ORDERED LOGIC BITS END
#define FLOAT(T, NAME) BEGIN(T, NAME) ORDERED END
#define COMPLEX_OF(T, NAME)                                                                        \
    BEGIN(T, NAME)                                                                                 \
    if (op == SUM)                                                                                 \
        a = a + b;                                                                                 \
    if (op == PROD)                                                                                \
        a = a * b;                                                                                 \
    END
#define LOGICAL_OF(T, NAME) BEGIN(T, NAME) LOGIC END
#define MOVED(T, NAME)                                                                             \
    SET(T, NAME)                                                                                   \
    static void apply_##NAME(void *at, const void *with, int op)                                   \
    {                                                                                              \
        (void)at, (void)with, (void)op;                                                            \
    }
/* Pairs: the value decides, the lower index if values are equal; padding is not touched. */
#define PAIR_OF(T, NAME)                                                                           \
    struct NAME {                                                                                  \
        T value;                                                                                   \
        int index;                                                                                 \
    };                                                                                             \
    static void set_##NAME(void *at, long value)                                                   \
    {                                                                                              \
        struct NAME *p = at;                                                                       \
        p->value = (T)(value / 2);                                                                 \
        p->index = (int)(value * 7 % 5);                                                           \
    }                                                                                              \
    static void apply_##NAME(void *at, const void *with, int op)                                   \
    {                                                                                              \
        struct NAME *a = at;                                                                       \
        const struct NAME *b = with;                                                               \
        bool better = op == MINLOC ? b->value < a->value : b->value > a->value;                    \
        if (op != MINLOC && op != MAXLOC)                                                          \
            return;                                                                                \
        if (better || (b->value == a->value && b->index < a->index)) {                             \
            a->value = b->value;                                                                   \
            a->index = b->index;                                                                   \
        }                                                                                          \
    }

WHOLE(signed char, schar)
WHOLE(unsigned char, uchar)
WHOLE(short, short)
WHOLE(unsigned short, ushort)
WHOLE(int, int)
WHOLE(unsigned, uint)
WHOLE(long, long)
WHOLE(unsigned long, ulong)
WHOLE(long long, llong)
WHOLE(unsigned long long, ullong)
WHOLE(int8_t, i8)
WHOLE(int16_t, i16)
WHOLE(int32_t, i32)
WHOLE(int64_t, i64)
WHOLE(uint8_t, u8)
WHOLE(uint16_t, u16)
WHOLE(uint32_t, u32)
WHOLE(uint64_t, u64)
WHOLE(MPI_Aint, aint)
WHOLE(MPI_Offset, offset)
WHOLE(MPI_Count, count)
FLOAT(float, float)
FLOAT(double, double)
FLOAT(long double, ldouble)
COMPLEX_OF(float complex, fcomplex)
COMPLEX_OF(double complex, dcomplex)
COMPLEX_OF(long double complex, lcomplex)
LOGICAL_OF(_Bool, truth)
MOVED(wchar_t, wchar)
PAIR_OF(float, float_int)
PAIR_OF(double, double_int)
PAIR_OF(long, long_int)
PAIR_OF(int, two_int)
PAIR_OF(short, short_int)
PAIR_OF(long double, long_double_int)

#define KIND(TYPE, CLASS, NAME, C) {TYPE, #TYPE, CLASS, sizeof(C), set_##NAME, apply_##NAME}
static struct kind kinds[48];
static int kinds_count;

static void make_kinds(void)
{
    const struct kind all[] = {
        KIND(MPI_SIGNED_CHAR, INTEGER, schar, char),
        KIND(MPI_UNSIGNED_CHAR, UNSIGNED, uchar, char),
        KIND(MPI_SHORT, INTEGER, short, short),
        KIND(MPI_UNSIGNED_SHORT, UNSIGNED, ushort, short),
        KIND(MPI_INT, INTEGER, int, int),
        KIND(MPI_UNSIGNED, UNSIGNED, uint, int),
        KIND(MPI_LONG, INTEGER, long, long),
        KIND(MPI_UNSIGNED_LONG, UNSIGNED, ulong, long),
        KIND(MPI_LONG_LONG, INTEGER, llong, long long),
        KIND(MPI_UNSIGNED_LONG_LONG, UNSIGNED, ullong, long long),
        KIND(MPI_INT8_T, INTEGER, i8, int8_t),
        KIND(MPI_INT16_T, INTEGER, i16, int16_t),
        KIND(MPI_INT32_T, INTEGER, i32, int32_t),
        KIND(MPI_INT64_T, INTEGER, i64, int64_t),
        KIND(MPI_UINT8_T, UNSIGNED, u8, int8_t),
        KIND(MPI_UINT16_T, UNSIGNED, u16, int16_t),
        KIND(MPI_UINT32_T, UNSIGNED, u32, int32_t),
        KIND(MPI_UINT64_T, UNSIGNED, u64, int64_t),
        KIND(MPI_AINT, INTEGER, aint, MPI_Aint),
        KIND(MPI_OFFSET, INTEGER, offset, MPI_Offset),
        KIND(MPI_COUNT, INTEGER, count, MPI_Count),
        KIND(MPI_INTEGER, FORTRAN, i32, int32_t),
        KIND(MPI_FLOAT, FLOATING, float, float),
        KIND(MPI_DOUBLE, FLOATING, double, double),
        KIND(MPI_LONG_DOUBLE, FLOATING, ldouble, long double),
        KIND(MPI_REAL, FLOATING, float, float),
        KIND(MPI_DOUBLE_PRECISION, FLOATING, double, double),
        KIND(MPI_C_FLOAT_COMPLEX, COMPLEX, fcomplex, float complex),
        KIND(MPI_C_DOUBLE_COMPLEX, COMPLEX, dcomplex, double complex),
        KIND(MPI_C_LONG_DOUBLE_COMPLEX, COMPLEX, lcomplex, long double complex),
        KIND(MPI_C_BOOL, LOGICAL, truth, _Bool),
        KIND(MPI_BYTE, UNSIGNED, u8, int8_t), /* only bitwise in MPI, all in Open MPI */
        KIND(MPI_CHAR, INTEGER, i8, int8_t),
        KIND(MPI_C_COMPLEX, COMPLEX, fcomplex, float complex),
        KIND(MPI_WCHAR, CHARACTER, wchar, wchar_t),
        KIND(MPI_FLOAT_INT, PAIR, float_int, struct float_int),
        KIND(MPI_DOUBLE_INT, PAIR, double_int, struct double_int),
        KIND(MPI_LONG_INT, PAIR, long_int, struct long_int),
        KIND(MPI_2INT, PAIR, two_int, struct two_int),
        KIND(MPI_SHORT_INT, PAIR, short_int, struct short_int),
        KIND(MPI_LONG_DOUBLE_INT, PAIR, long_double_int, struct long_double_int),
    };
    _Static_assert(LENGTH(all) <= LENGTH(kinds), "room");
    memcpy(kinds, all, sizeof all);
    kinds_count = LENGTH(all);
    const MPI_Op handles[OPS] = {MPI_SUM,    MPI_PROD,   MPI_MIN,     MPI_MAX,  MPI_LAND,
                                 MPI_LOR,    MPI_LXOR,   MPI_BAND,    MPI_BOR,  MPI_BXOR,
                                 MPI_MINLOC, MPI_MAXLOC, MPI_REPLACE, MPI_NO_OP};
    memcpy(op_handle, handles, sizeof handles);
}

static bool allowed(enum class class, int op)
{
    switch (op) {
    case SUM:
    case PROD:
        return class <= COMPLEX;
    case MIN:
    case MAX:
        return class <= FLOATING;
    case LAND:
    case LOR:
    case LXOR:
        return class == INTEGER || class == UNSIGNED || class == LOGICAL;
    case BAND:
    case BOR:
    case BXOR:
        return class <= FORTRAN;
    case MINLOC:
    case MAXLOC:
        return class == PAIR;
    }
    return true;
}

/* Bytes of a long double that mean nothing may differ; so may padding of a temporary. */
static bool same(const struct kind *kind, const void *a, const void *b)
{
    if (kind->type == MPI_LONG_DOUBLE)
        return !memcmp(a, b, 10);
    if (kind->type == MPI_C_LONG_DOUBLE_COMPLEX)
        return !memcmp(a, b, 10) && !memcmp((const char *)a + 16, (const char *)b + 16, 10);
    if (kind->type == MPI_SHORT_INT)
        return !memcmp(a, b, 2) && !memcmp((const char *)a + 4, (const char *)b + 4, 4);
    if (kind->type == MPI_LONG_DOUBLE_INT)
        return !memcmp(a, b, 10) && !memcmp((const char *)a + 16, (const char *)b + 16, 4);
    if (kind->type == MPI_DOUBLE_INT || kind->type == MPI_LONG_INT)
        return !memcmp(a, b, 12);
    return !memcmp(a, b, kind->bytes);
}

/* Holes in a pair: what the target has there stays. */
static void check_holes(const struct kind *kind, const unsigned char *p)
{
    int from = 0, to = 0;
    if (kind->type == MPI_SHORT_INT)
        from = 2, to = 4;
    if (kind->type == MPI_DOUBLE_INT || kind->type == MPI_LONG_INT)
        from = 12, to = 16;
    if (kind->type == MPI_LONG_DOUBLE_INT)
        from = 20, to = 32;
    for (int k = from; k < to; k++)
        CHECK_EQ(p[k], POISON, "padding of a pair was written");
}

static long value(const struct kind *kind, int rank, int i, int op)
{
    uint64_t state = key_of(rank, op, i, kind->bytes);
    long v = random_below(&state, 5) + (op == PROD ? 1 : 0);
    bool is_address = kind->type == MPI_OFFSET || kind->type == MPI_AINT || kind->type == MPI_COUNT;
    if (kind->class == LOGICAL)
        return v % 2;
    if (is_address && stock_fails("MPI_OFFSET is an unsigned type"))
        return v;
    return kind->class == UNSIGNED || kind->class == CHARACTER ? v : v - 2;
}

enum way { ACCUMULATE, GET_ACCUMULATE, FETCH };

/* One origin at a time, in order of rank, so that the result is one: rank 0's window is the target. */
static void one(struct window *w, const struct kind *kind, int op, enum way way)
{
    unsigned char model[ROOM] __attribute__((aligned(16))), x[ROOM] __attribute__((aligned(16)));
    unsigned char old[ROOM] __attribute__((aligned(16)));
    const int n = way == FETCH ? 1 : N;
    STEP("%s: %s on %s", flavour_name[w->flavour], op_name[op], kind->name);
    memset(model, POISON, sizeof model);
    for (int i = 0; i < n; i++)
        kind->set(model + i * kind->bytes, value(kind, 99, i, op));
    if (me == 0)
        memcpy(w->base, model, ROOM);
    MPI_Win_fence(0, w->win);
    for (int turn = 0; turn < np; turn++) {
        memset(x, 0, sizeof x);
        for (int i = 0; i < n; i++)
            kind->set(x + i * kind->bytes, value(kind, turn, i, op));
        memset(old, 0x77, sizeof old);
        if (turn == me && way == ACCUMULATE)
            MPI_Accumulate(x, n, kind->type, 0, at(w, 0, 0), n, kind->type, op_handle[op], w->win);
        if (turn == me && way == GET_ACCUMULATE)
            MPI_Get_accumulate(x, n, kind->type, old, n, kind->type, 0, at(w, 0, 0), n, kind->type,
                               op_handle[op], w->win);
        if (turn == me && way == FETCH)
            MPI_Fetch_and_op(x, old, kind->type, 0, at(w, 0, 0), op_handle[op], w->win);
        MPI_Win_fence(0, w->win);
        for (int i = 0; i < n && turn == me && way != ACCUMULATE; i++)
            CHECK(same(kind, old + i * kind->bytes, model + i * kind->bytes), "fetched, element %d",
                  i);
        for (int i = 0; i < n; i++) {
            if (op == REPLACE)
                kind->set(model + i * kind->bytes, value(kind, turn, i, op));
            else if (op != NO_OP)
                kind->apply(model + i * kind->bytes, x + i * kind->bytes, op);
        }
    }
    for (int i = 0; i < n && me == 0; i++) {
        CHECK(same(kind, w->base + i * kind->bytes, model + i * kind->bytes), "element %d", i);
        check_holes(kind, w->base + i * kind->bytes);
    }
    for (size_t k = n * kind->bytes; k < ROOM && me == 0; k++)
        CHECK_EQ(w->base[k], POISON, "behind the last element");
    MPI_Win_fence(0, w->win);
}

static enum way way;

/* What stock Open MPI 4.1.4 (osc/pt2pt) aborts at, or does wrong. */
static bool stock_aborts(const struct kind *kind, int op)
{
    bool padded = kind->class == PAIR && kind->type != MPI_2INT && kind->type != MPI_FLOAT_INT;
    bool located = op == MINLOC || op == MAXLOC;
    return padded && (located || way != FETCH) && stock_fails("padded pairs");
}

static void body(struct window *w)
{
    for (int k = 0; k < kinds_count; k++)
        for (int op = 0; op < OPS; op++) {
            if (!allowed(kinds[k].class, op) || (way == ACCUMULATE && op == NO_OP))
                continue;
            if (!stock_aborts(&kinds[k], op))
                one(w, &kinds[k], op, way);
        }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    make_kinds();
    const char *name = argc > 1 ? argv[1] : "accumulate";
    way = !strcmp(name, "accumulate") ? ACCUMULATE : *name == 'g' ? GET_ACCUMULATE : FETCH;
    struct window w;
    for (int flavour = 0; flavour < FLAVOURS; flavour += 3) /* create, and shared memory */
        if (window_open(&w, (enum flavour)flavour, MPI_COMM_WORLD, ROOM, 1)) {
            body(&w);
            window_close(&w);
        }
    return check_end();
}

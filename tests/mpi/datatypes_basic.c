/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Every predefined C type and pair type; MPI_BOTTOM with absolute addresses; MPI_PACKED and
 * external packing; types of size zero. MPI 3.1 sections 3.2.2, 4.1.12, 4.2, 4.3. */
#include "check.h"
#include <complex.h>
#include <wchar.h>

static int next, previous;

#define EACH(T, M)                                                                                 \
    do {                                                                                           \
        enum { N = 700 };                                                                          \
        static T out[N], in[N];                                                                    \
        int size, got = -1;                                                                        \
        MPI_Status st;                                                                             \
        STEP("type " #M);                                                                          \
        MPI_Type_size(M, &size);                                                                   \
        CHECK_EQ(size, sizeof(T), "size of " #M);                                                  \
        for (int n = 0; n <= N; n += 175) {                                                        \
            for (int k = 0; k < N; k++) {                                                          \
                out[k] = (T)(k % 2 + me);                                                          \
                in[k] = (T)5;                                                                      \
            }                                                                                      \
            MPI_Sendrecv(out, n, M, next, 1, in, N, M, previous, 1, MPI_COMM_WORLD, &st);          \
            MPI_Get_count(&st, M, &got);                                                           \
            CHECK_EQ(got, n, "count of " #M);                                                      \
            for (int k = 0; k < N; k++)                                                            \
                CHECK(in[k] == (k < n ? (T)(k % 2 + previous) : (T)5), "element %d of %d", k, n);  \
        }                                                                                          \
    } while (0)

static void predefined(void)
{
    EACH(char, MPI_CHAR);
    EACH(signed char, MPI_SIGNED_CHAR);
    EACH(unsigned char, MPI_UNSIGNED_CHAR);
    EACH(unsigned char, MPI_BYTE);
    EACH(wchar_t, MPI_WCHAR);
    EACH(short, MPI_SHORT);
    EACH(unsigned short, MPI_UNSIGNED_SHORT);
    EACH(int, MPI_INT);
    EACH(unsigned, MPI_UNSIGNED);
    EACH(long, MPI_LONG);
    EACH(unsigned long, MPI_UNSIGNED_LONG);
    EACH(long long, MPI_LONG_LONG);
    EACH(unsigned long long, MPI_UNSIGNED_LONG_LONG);
    EACH(float, MPI_FLOAT);
    EACH(double, MPI_DOUBLE);
    EACH(long double, MPI_LONG_DOUBLE);
    EACH(int8_t, MPI_INT8_T);
    EACH(int16_t, MPI_INT16_T);
    EACH(int32_t, MPI_INT32_T);
    EACH(int64_t, MPI_INT64_T);
    EACH(uint8_t, MPI_UINT8_T);
    EACH(uint16_t, MPI_UINT16_T);
    EACH(uint32_t, MPI_UINT32_T);
    EACH(uint64_t, MPI_UINT64_T);
    EACH(_Bool, MPI_C_BOOL);
    EACH(float _Complex, MPI_C_FLOAT_COMPLEX);
    EACH(double _Complex, MPI_C_DOUBLE_COMPLEX);
    EACH(long double _Complex, MPI_C_LONG_DOUBLE_COMPLEX);
    EACH(MPI_Aint, MPI_AINT);
    EACH(MPI_Offset, MPI_OFFSET);
    EACH(MPI_Count, MPI_COUNT);
}

#define PAIR(T, M)                                                                                 \
    do {                                                                                           \
        enum { N = 9000 };                                                                         \
        static struct {                                                                            \
            T value;                                                                               \
            int index;                                                                             \
        } out[N], in[N];                                                                           \
        MPI_Status st;                                                                             \
        int got = -1;                                                                              \
        STEP("pair " #M);                                                                          \
        for (int n = 1; n <= N; n += 2999) {                                                       \
            memset(in, 0x33, sizeof in);                                                           \
            for (int k = 0; k < N; k++) {                                                          \
                out[k].value = (T)(k % 100);                                                       \
                out[k].index = me * 100000 + k;                                                    \
            }                                                                                      \
            MPI_Sendrecv(out, n, M, next, 2, in, N, M, previous, 2, MPI_COMM_WORLD, &st);          \
            MPI_Get_count(&st, M, &got);                                                           \
            CHECK_EQ(got, n, "count of " #M);                                                      \
            for (int k = 0; k < n; k++)                                                            \
                CHECK(in[k].value == (T)(k % 100) && in[k].index == previous * 100000 + k,         \
                      "pair %d", k);                                                               \
            if (n < N)                                                                             \
                CHECK_EQ(in[n].index, 0x33333333, "behind");                                       \
        }                                                                                          \
    } while (0)

static void pairs(void)
{
    PAIR(float, MPI_FLOAT_INT);
    PAIR(double, MPI_DOUBLE_INT);
    PAIR(long, MPI_LONG_INT);
    PAIR(int, MPI_2INT);
    PAIR(short, MPI_SHORT_INT);
    PAIR(long double, MPI_LONG_DOUBLE_INT);
}

static void bottom(int n)
{
    int *a = malloc((size_t)n * sizeof *a), *c = malloc((size_t)n * sizeof *c);
    double *b = malloc((size_t)n * sizeof *b), *d = malloc((size_t)n * sizeof *d);
    MPI_Aint at[2];
    MPI_Datatype from, to, types[2] = {MPI_INT, MPI_DOUBLE};
    int lengths[2] = {n, n};
    STEP("bottom, %d", n);
    MPI_Get_address(a, &at[0]);
    MPI_Get_address(b, &at[1]);
    MPI_Type_create_struct(2, lengths, at, types, &from);
    MPI_Get_address(c, &at[0]);
    MPI_Get_address(d, &at[1]);
    MPI_Type_create_struct(2, lengths, at, types, &to);
    MPI_Type_commit(&from);
    MPI_Type_commit(&to);
    for (int round = 0; round < 3; round++) {
        MPI_Request r[2];
        for (int k = 0; k < n; k++) {
            a[k] = me + k + round;
            b[k] = me * 0.5 + k;
            c[k] = -1;
            d[k] = -1;
        }
        MPI_Irecv(MPI_BOTTOM, 1, to, previous, 3, MPI_COMM_WORLD, &r[0]);
        MPI_Isend(MPI_BOTTOM, 1, from, next, 3, MPI_COMM_WORLD, &r[1]);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
        for (int k = 0; k < n; k++)
            CHECK(c[k] == previous + k + round && d[k] == previous * 0.5 + k, "element %d", k);
    }
    MPI_Type_free(&from);
    MPI_Type_free(&to);
    free(a), free(b), free(c), free(d);
}

/* Packed by parts, sent as MPI_PACKED, received packed or as the type, and the other way round. */
static void packed(int n)
{
    int size_int, size_double, position = 0, got = -1;
    int *a = malloc((size_t)n * sizeof *a), *c = calloc((size_t)n, sizeof *c);
    double x = me + 0.25, y = 0;
    MPI_Status st;
    STEP("packed, %d", n);
    for (int k = 0; k < n; k++)
        a[k] = me * 7 + k;
    MPI_Pack_size(n, MPI_INT, MPI_COMM_WORLD, &size_int);
    MPI_Pack_size(1, MPI_DOUBLE, MPI_COMM_WORLD, &size_double);
    int room = size_int + size_double;
    char *out = malloc((size_t)room), *in = malloc((size_t)room);
    MPI_Pack(a, n, MPI_INT, out, room, &position, MPI_COMM_WORLD);
    MPI_Pack(&x, 1, MPI_DOUBLE, out, room, &position, MPI_COMM_WORLD);
    MPI_Sendrecv(out, position, MPI_PACKED, next, 4, in, room, MPI_PACKED, previous, 4,
                 MPI_COMM_WORLD, &st);
    MPI_Get_count(&st, MPI_PACKED, &got);
    CHECK_EQ(got, position, "packed bytes");
    position = 0;
    MPI_Unpack(in, got, &position, c, n, MPI_INT, MPI_COMM_WORLD);
    MPI_Unpack(in, got, &position, &y, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int k = 0; k < n; k++)
        CHECK_EQ(c[k], previous * 7 + k, "unpacked");
    CHECK(y == previous + 0.25, "unpacked double %g", y);
    /* packed -> typed, typed -> packed */
    position = 0;
    memset(c, 0, (size_t)n * sizeof *c);
    MPI_Pack(a, n, MPI_INT, out, room, &position, MPI_COMM_WORLD);
    MPI_Sendrecv(out, position, MPI_PACKED, next, 5, c, n, MPI_INT, previous, 5, MPI_COMM_WORLD,
                 &st);
    for (int k = 0; k < n; k++)
        CHECK_EQ(c[k], previous * 7 + k, "packed to typed");
    memset(c, 0, (size_t)n * sizeof *c);
    MPI_Sendrecv(a, n, MPI_INT, next, 5, in, room, MPI_PACKED, previous, 5, MPI_COMM_WORLD, &st);
    MPI_Get_count(&st, MPI_PACKED, &got);
    position = 0;
    MPI_Unpack(in, got, &position, c, n, MPI_INT, MPI_COMM_WORLD);
    for (int k = 0; k < n; k++)
        CHECK_EQ(c[k], previous * 7 + k, "typed to packed");
    /* external32 */
    MPI_Aint external, at = 0;
    MPI_Pack_external_size("external32", n, MPI_INT, &external);
    char *e = malloc((size_t)external), *f = malloc((size_t)external);
    MPI_Pack_external("external32", a, n, MPI_INT, e, external, &at);
    MPI_Sendrecv(e, (int)at, MPI_BYTE, next, 6, f, (int)external, MPI_BYTE, previous, 6,
                 MPI_COMM_WORLD, &st);
    memset(c, 0, (size_t)n * sizeof *c);
    at = 0;
    MPI_Unpack_external("external32", f, external, &at, c, n, MPI_INT);
    for (int k = 0; k < n; k++)
        CHECK_EQ(c[k], previous * 7 + k, "external");
    free(a), free(c), free(out), free(in), free(e), free(f);
}

static void empty_types(void)
{
    MPI_Datatype t[3];
    MPI_Status st;
    int x = 9, got = -1;
    STEP("empty types");
    MPI_Type_contiguous(0, MPI_INT, &t[0]);
    MPI_Type_create_struct(0, NULL, NULL, NULL, &t[1]);
    MPI_Type_vector(5, 0, 3, MPI_INT, &t[2]);
    for (int k = 0; k < 3; k++) {
        MPI_Type_commit(&t[k]);
        MPI_Sendrecv(&x, 5, t[k], next, 7, &x, 5, t[k], previous, 7, MPI_COMM_WORLD, &st);
        STATUS(&st, previous, 7, 0);
        MPI_Get_count(&st, MPI_INT, &got);
        CHECK_EQ(got, 0, "count");
        MPI_Sendrecv(NULL, 0, MPI_INT, next, 8, &x, 1, t[k], previous, 8, MPI_COMM_WORLD, &st);
        STATUS(&st, previous, 8, 0);
        MPI_Type_free(&t[k]);
    }
    CHECK_EQ(x, 9, "untouched");
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    next = (me + 1) % np;
    previous = (me + np - 1) % np;
    predefined();
    pairs();
    bottom(1);
    bottom(500);
    bottom(30000);
    packed(3);
    packed(2000);
    packed(80000);
    empty_types();
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 */
/* Every layout to every other layout, at eager and rendezvous sizes: the bytes that the types name
 * arrive in order, the gaps stay. MPI 3.1 chapter 4. */
#include "layouts.h"

static void exchange(int a, int b, long count, int way)
{
    const struct layout *from = &layouts[a], *to = &layouts[b];
    int next = (me + 1) % np, previous = (me + np - 1) % np, tag = a * LAYOUTS + b, elements = -1;
    MPI_Request r[2];
    MPI_Status st[2];
    STEP("%s -> %s, %ld elements, way %d", from->name, to->name, count, way);
    struct region out = region_new(from, count), in = region_new(to, count);
    region_fill(out, from, count, key_of(me, tag, count, 0));
    if (way == 0) {
        MPI_Irecv(in.base, (int)count, to->type, previous, tag, MPI_COMM_WORLD, &r[0]);
        MPI_Isend(out.base, (int)count, from->type, next, tag, MPI_COMM_WORLD, &r[1]);
    } else if (way == 1) { /* unexpected */
        MPI_Isend(out.base, (int)count, from->type, next, tag, MPI_COMM_WORLD, &r[1]);
        MPI_Probe(previous, tag, MPI_COMM_WORLD, &st[0]);
        STATUS(&st[0], previous, tag, count * ELEMENT_BYTES);
        MPI_Irecv(in.base, (int)count, to->type, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &r[0]);
    } else { /* synchronous; matched probe */
        MPI_Message m;
        MPI_Issend(out.base, (int)count, from->type, next, tag, MPI_COMM_WORLD, &r[1]);
        MPI_Mprobe(previous, tag, MPI_COMM_WORLD, &m, &st[0]);
        MPI_Imrecv(in.base, (int)count, to->type, &m, &r[0]);
    }
    MPI_Waitall(2, r, st);
    STATUS(&st[0], previous, tag, count * ELEMENT_BYTES);
    MPI_Get_count(&st[0], to->type, &elements);
    CHECK_EQ(elements, count, "count in elements of the receiver's type");
    region_check(in, to, count, count * ELEMENT_BYTES, key_of(previous, tag, count, 0));
    buffer_free(in.memory);
    buffer_free(out.memory);
}

/* Blocking and buffered sends, persistent ones: the same type restarted. */
static void persistent(int a, int b, long count)
{
    const struct layout *from = &layouts[a], *to = &layouts[b];
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    MPI_Request r[2];
    STEP("persistent %s -> %s, %ld elements", from->name, to->name, count);
    struct region out = region_new(from, count), in = region_new(to, count);
    MPI_Recv_init(in.base, (int)count, to->type, previous, 1, MPI_COMM_WORLD, &r[0]);
    MPI_Send_init(out.base, (int)count, from->type, next, 1, MPI_COMM_WORLD, &r[1]);
    for (int k = 0; k < 3; k++) {
        poison(in.memory, in.bytes);
        region_fill(out, from, count, key_of(me, 1, count, k));
        MPI_Startall(2, r);
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
        region_check(in, to, count, count * ELEMENT_BYTES, key_of(previous, 1, count, k));
    }
    MPI_Request_free(&r[0]);
    MPI_Request_free(&r[1]);
    buffer_free(in.memory);
    buffer_free(out.memory);
}

/* A type may be freed while a message that uses it is on its way. */
static void freed_type(long count)
{
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    MPI_Datatype type;
    MPI_Request r[2];
    struct layout *l = &layouts[2];
    STEP("freed type, %ld elements", count);
    struct region out = region_new(l, count), in = region_new(l, count);
    region_fill(out, l, count, key_of(me, 2, count, 0));
    for (int k = 0; k < 2; k++) {
        MPI_Type_dup(l->type, &type);
        if (k == 0)
            MPI_Irecv(in.base, (int)count, type, previous, 2, MPI_COMM_WORLD, &r[0]);
        else
            MPI_Isend(out.base, (int)count, type, next, 2, MPI_COMM_WORLD, &r[1]);
        MPI_Type_free(&type);
    }
    MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
    region_check(in, l, count, count * ELEMENT_BYTES, key_of(previous, 2, count, 0));
    buffer_free(in.memory);
    buffer_free(out.memory);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    layouts_make();
    static const long counts[] = {0, 1, 2, 100, 2800, 12000};
    for (int c = 0; c < LENGTH(counts); c++)
        for (int a = 0; a < LAYOUTS; a++)
            for (int b = 0; b < LAYOUTS; b++)
                /* interleaved elements: each byte once up to 50 elements */
                if (counts[c] <= 2 ||
                    ((a * 7 + b * 3 + c) % 4 == 0 && (b != 10 || counts[c] <= 50) &&
                     (a != 10 || counts[c] <= 50)))
                    exchange(a, b, counts[c], (a + b + c) % 3);
    for (int a = 0; a < LAYOUTS; a++)
        if (a != 10)
            persistent(a, (a + 5) % LAYOUTS == 10 ? 0 : (a + 5) % LAYOUTS, a % 2 ? 40 : 5000);
    freed_type(10);
    freed_type(20000);
    layouts_free();
    return check_end();
}

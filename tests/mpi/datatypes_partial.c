/* ranks: 2,4 ; nodes: 1,2,3 */
/* A message shorter than the receive, in the middle of an element: Get_count is MPI_UNDEFINED,
 * Get_elements counts basic elements, only the bytes that came are written. MPI 3.1 section 4.1.11.
 */
#include "layouts.h"

static void partial(int which, long count, long bytes)
{
    const struct layout *l = &layouts[which];
    int peer = me ^ 1, got = -1;
    STEP("%s: %ld of %ld bytes", l->name, bytes, count * ELEMENT_BYTES);
    if (me % 2 == 0) {
        unsigned char *out = buffer_new((size_t)bytes);
        fill(out, (size_t)bytes, key_of(me, which, bytes, 0));
        MPI_Send(out, (int)bytes, MPI_BYTE, peer, which, MPI_COMM_WORLD);
        buffer_free(out);
    } else {
        struct region in = region_new(l, count);
        MPI_Status st;
        MPI_Count long_count = -1;
        MPI_Recv(in.base, (int)count, l->type, peer, which, MPI_COMM_WORLD, &st);
        MPI_Get_count(&st, l->type, &got);
        CHECK_EQ(got, bytes % ELEMENT_BYTES ? MPI_UNDEFINED : bytes / ELEMENT_BYTES, "Get_count");
        MPI_Get_elements(&st, l->type, &got);
        CHECK_EQ(got, bytes, "Get_elements");
        MPI_Get_elements_x(&st, l->type, &long_count);
        CHECK_EQ(long_count, bytes, "Get_elements_x");
        region_check(in, l, count, bytes, key_of(peer, which, bytes, 0));
        buffer_free(in.memory);
    }
}

/* Elements of different sizes. */
static void of_struct(void)
{
    struct mixed {
        int i;
        double d;
        char c[3];
    } out[4], in[4];
    MPI_Datatype t, u;
    MPI_Status st;
    int peer = me ^ 1, count = -1;
    STEP("struct of int, double, 3 chars");
    MPI_Type_create_struct(3, (int[]){1, 1, 3},
                           (MPI_Aint[]){offsetof(struct mixed, i), offsetof(struct mixed, d),
                                        offsetof(struct mixed, c)},
                           (MPI_Datatype[]){MPI_INT, MPI_DOUBLE, MPI_CHAR}, &t);
    MPI_Type_create_resized(t, 0, sizeof(struct mixed), &u);
    MPI_Type_commit(&u);
    for (int n = 0; n <= 4; n++) {
        for (int k = 0; k < 4; k++)
            out[k] = (struct mixed){me * 10 + k, k * 0.5, {(char)k, 'a', 'b'}};
        if (me % 2 == 0) {
            MPI_Send(out, n, u, peer, 1, MPI_COMM_WORLD);
        } else {
            memset(in, 0, sizeof in);
            MPI_Recv(in, 4, u, peer, 1, MPI_COMM_WORLD, &st);
            MPI_Get_count(&st, u, &count);
            CHECK_EQ(count, n, "Get_count");
            MPI_Get_elements(&st, u, &count);
            CHECK_EQ(count, 5 * n, "Get_elements");
            for (int k = 0; k < 4; k++) {
                CHECK_EQ(in[k].i, k < n ? peer * 10 + k : 0, "int");
                CHECK(in[k].d == (k < n ? k * 0.5 : 0), "double %g", in[k].d);
                CHECK_EQ(in[k].c[1], k < n ? 'a' : 0, "char");
            }
        }
    }
    /* One int and one double: in the middle of the second element. */
    MPI_Datatype head;
    MPI_Type_create_struct(3, (int[]){1, 1, 1},
                           (MPI_Aint[]){0, sizeof(struct mixed), sizeof(struct mixed) + 8},
                           (MPI_Datatype[]){u, MPI_INT, MPI_DOUBLE}, &head);
    MPI_Type_commit(&head);
    if (me % 2 == 0) {
        MPI_Send(out, 1, head, peer, 2, MPI_COMM_WORLD);
    } else {
        memset(in, 0, sizeof in);
        MPI_Recv(in, 4, u, peer, 2, MPI_COMM_WORLD, &st);
        MPI_Get_count(&st, u, &count);
        CHECK_EQ(count, MPI_UNDEFINED, "Get_count of one and a half");
        MPI_Get_elements(&st, u, &count);
        CHECK_EQ(count, 7, "Get_elements of one and a half");
        CHECK_EQ(in[1].i, peer * 10 + 1, "int of the second");
        CHECK(in[1].d == 0.5 && in[1].c[1] == 0, "rest of the second");
    }
    MPI_Type_free(&head);
    MPI_Type_free(&t);
    MPI_Type_free(&u);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    layouts_make();
    for (int which = 0; which < LAYOUTS; which++) {
        for (long bytes = 0; bytes <= 3 * ELEMENT_BYTES; bytes += 1 + which % 3)
            partial(which, 3, bytes);
        if (which == 10)
            continue;
        partial(which, 200, 4000);
        partial(which, 200, 4777);
        partial(which, 4000, 65536 + 7);
        partial(which, 12000, 287999);
    }
    of_struct();
    layouts_free();
    return check_end();
}

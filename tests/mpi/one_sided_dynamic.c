/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Dynamic windows: several regions of one window, attached and detached while it is in use by
 * others, memory attached again at the same address, an operation over regions that touch, a list
 * whose elements are made by all ranks (MPI 3.1 example 11.22). Section 11.2.4. */
#include "windows.h"

/* Rounds of attach, use by the next rank, detach; the memory is the same each time. */
static void again_and_again(MPI_Win win)
{
    enum { REGIONS = 6, INTS = 500 };
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    int *memory = calloc(REGIONS * INTS, sizeof *memory), x[INTS], got[INTS];
    MPI_Aint mine[REGIONS], theirs[REGIONS];
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < 20; round++) {
        STEP("attach again, round %d", round);
        for (int k = 0; k < REGIONS; k++) { /* not in order of address */
            int part = (k * 5 + round) % REGIONS;
            MPI_Win_attach(win, memory + part * INTS, INTS * sizeof *memory);
            MPI_Get_address(memory + part * INTS, &mine[k]);
        }
        MPI_Sendrecv(mine, REGIONS, MPI_AINT, previous, 1, theirs, REGIONS, MPI_AINT, next, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int k = 0; k < REGIONS; k++) {
            for (int i = 0; i < INTS; i++)
                x[i] = me * 100000 + round * 1000 + k + i;
            MPI_Put(x, INTS, MPI_INT, next, theirs[k], INTS, MPI_INT, win);
            MPI_Win_flush_local(next, win);
        }
        MPI_Win_flush(next, win);
        for (int k = 0; k < REGIONS; k++) {
            MPI_Get(got, INTS - 7, MPI_INT, next, MPI_Aint_add(theirs[k], 7 * 4), INTS - 7, MPI_INT,
                    win);
            MPI_Win_flush(next, win);
            for (int i = 0; i < INTS - 7; i++)
                CHECK_EQ(got[i], me * 100000 + round * 1000 + k + i + 7, "got back");
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_sync(win);
        for (int k = 0; k < REGIONS; k++) {
            int *region = memory + (k * 5 + round) % REGIONS * INTS;
            for (int i = 0; i < INTS; i++)
                CHECK_EQ(region[i], previous * 100000 + round * 1000 + k + i, "put");
            MPI_Win_detach(win, region);
        }
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    free(memory);
}

/* Others use one region while the owner attaches and detaches another one. */
static void meanwhile(MPI_Win win)
{
    enum { EACH = 40 };
    long counter = 0, one = 1, old, other[64];
    MPI_Aint where;
    STEP("attach while another region is in use");
    MPI_Win_attach(win, &counter, sizeof counter);
    MPI_Get_address(&counter, &where);
    MPI_Bcast(&where, 1, MPI_AINT, 0, MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    for (int k = 0; k < EACH; k++) {
        if (me == 0)
            MPI_Win_attach(win, other, sizeof other);
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, where, MPI_SUM, win);
        MPI_Win_flush(0, win);
        if (me == 0)
            MPI_Win_detach(win, other);
    }
    meet(&(struct window){.win = win, .comm = MPI_COMM_WORLD});
    if (me == 0)
        CHECK_EQ(counter, (long)EACH * np, "counter");
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_detach(win, &counter);
}

/* A list: every rank appends its elements behind the last by compare-and-swap of the tail's next. */
struct pointer {
    long rank;
    MPI_Aint at;
};
struct element {
    long value, next_rank; /* -1: the last */
    MPI_Aint next_at;
};
#define PLACE(pointer, member) MPI_Aint_add((pointer).at, offsetof(struct element, member))

static void list(MPI_Win win)
{
    enum { EACH = 10 };
    struct element *all[EACH + 1];
    struct pointer head = {0, 0}, tail;
    const long none = -1;
    int made = 0;
    long sum = 0, count = 0;
    if (me == 0) {
        all[made] = malloc(sizeof **all);
        *all[made] = (struct element){-1, -1, 0};
        MPI_Win_attach(win, all[made], sizeof **all);
        MPI_Get_address(all[made++], &head.at);
    }
    MPI_Bcast(&head.at, 1, MPI_AINT, 0, MPI_COMM_WORLD);
    tail = head;
    MPI_Win_lock_all(0, win);
    for (int k = 0; k < EACH; k++) {
        struct pointer mine = {me, 0};
        STEP("list, element %d", k);
        all[made] = malloc(sizeof **all);
        *all[made] = (struct element){me * 1000 + k, -1, 0};
        MPI_Win_attach(win, all[made], sizeof **all);
        MPI_Get_address(all[made++], &mine.at);
        for (;;) {
            long seen;
            MPI_Compare_and_swap(&mine.rank, &none, &seen, MPI_LONG, (int)tail.rank,
                                 PLACE(tail, next_rank), win);
            MPI_Win_flush((int)tail.rank, win);
            if (seen == none) {
                MPI_Accumulate(&mine.at, 1, MPI_AINT, (int)tail.rank, PLACE(tail, next_at), 1,
                               MPI_AINT, MPI_REPLACE, win);
                MPI_Win_flush((int)tail.rank, win);
                tail = mine;
                break;
            }
            struct pointer next = {seen, 0};
            while (!next.at) { /* its owner is about to say where it is */
                MPI_Fetch_and_op(NULL, &next.at, MPI_AINT, (int)tail.rank, PLACE(tail, next_at),
                                 MPI_NO_OP, win);
                MPI_Win_flush((int)tail.rank, win);
            }
            tail = next;
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    STEP("list, read");
    for (struct pointer p = head;;) {
        struct element e;
        MPI_Get(&e, sizeof e, MPI_BYTE, (int)p.rank, p.at, sizeof e, MPI_BYTE, win);
        MPI_Win_flush((int)p.rank, win);
        sum += e.value >= 0 ? e.value : 0;
        count += e.value >= 0;
        if (e.next_rank < 0)
            break;
        p = (struct pointer){e.next_rank, e.next_at};
    }
    CHECK_EQ(count, np * EACH, "elements");
    CHECK_EQ(sum, 1000l * EACH * np * (np - 1) / 2 + (long)np * EACH * (EACH - 1) / 2, "each once");
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < made; k++) {
        MPI_Win_detach(win, all[k]);
        free(all[k]);
    }
}

/* Nothing is attached, or nothing is left; fences and an empty window. */
/* Memory that is attached piece by piece is accessed at once: put, fetched, combined; not beyond. */
static void touching(MPI_Win win)
{
    enum { PIECES = 4, EACH = 1000, INTS = PIECES * EACH };
    int next = (me + 1) % np, previous = (me + np - 1) % np;
    int *memory = calloc(INTS, sizeof *memory), *x = calloc(INTS, sizeof *x);
    int *got = calloc(INTS, sizeof *got);
    MPI_Aint mine, theirs;
    STEP("an operation over regions that touch");
    for (int k = 0; k < PIECES; k++) /* the second one first */
        MPI_Win_attach(win, memory + (k ^ 1) * EACH, EACH * sizeof *memory);
    MPI_Get_address(memory, &mine);
    MPI_Sendrecv(&mine, 1, MPI_AINT, previous, 1, &theirs, 1, MPI_AINT, next, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    for (int i = 0; i < INTS; i++)
        x[i] = me * 10000 + i;
    MPI_Win_lock_all(0, win);
    MPI_Put(x, INTS, MPI_INT, next, theirs, INTS, MPI_INT, win);
    MPI_Win_flush(next, win);
    MPI_Accumulate(x, INTS - 2, MPI_INT, next, MPI_Aint_add(theirs, 4), INTS - 2, MPI_INT, MPI_SUM,
                   win);
    MPI_Win_flush(next, win);
    MPI_Get(got, INTS - 2, MPI_INT, next, MPI_Aint_add(theirs, 4), INTS - 2, MPI_INT, win);
    MPI_Win_flush(next, win);
    for (int i = 0; i < INTS - 2; i++)
        CHECK_EQ(got[i], x[i + 1] + x[i], "got back over the edges");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    CHECK_EQ(memory[0], previous * 10000, "the first");
    CHECK_EQ(memory[INTS - 1], previous * 10000 + INTS - 1, "the last");
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < PIECES; k++)
        MPI_Win_detach(win, memory + k * EACH);
    MPI_Barrier(MPI_COMM_WORLD);
    free(memory);
    free(x);
    free(got);
}

static void nothing(MPI_Win win)
{
    char memory[8];
    STEP("nothing attached");
    MPI_Win_fence(0, win);
    MPI_Win_fence(0, win);
    MPI_Win_attach(win, memory, sizeof memory);
    MPI_Win_detach(win, memory);
    MPI_Win_attach(win, memory, 4);
    MPI_Win_attach(win, memory + 4, 4);
    MPI_Win_detach(win, memory + 4);
    MPI_Win_detach(win, memory);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, win);
}

int main(int argc, char **argv)
{
    MPI_Win win;
    check_begin(&argc, &argv);
    for (int k = 0; k < 3; k++) {
        MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        again_and_again(win);
        meanwhile(win);
        list(win);
        touching(win);
        MPI_Barrier(MPI_COMM_WORLD);
        nothing(win);
        MPI_Win_free(&win);
    }
    return check_end();
}

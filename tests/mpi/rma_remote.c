/* ranks: 2,3,4 ; nodes: 1,2,3 ; args: created | allocated ; stock args: --mca osc pt2pt */
/* Memory of other processes without their help: puts and gets of all sizes, flushed and read back;
 * counters, tickets and bits that all change at once, in 4 bytes and in 8; a lock made of
 * compare-and-swap around data that must not be torn. Windows that are created or allocated.
 * MPI 3.1 sections 11.3, 11.5.3. (What osc/rdma of Open MPI 4.1.4 cannot do is left out: dynamic
 * windows between nodes, MPI_Get_accumulate of more than 4 KiB. With vader, too, it crashes in
 * atomics on windows that are allocated, if all ranks are on one node.) */
#include "check.h"

enum { BYTES = 1 << 20, PART = BYTES / 8, ROUNDS = 200 };

static const int sizes[] = { 1, 7, 8, 4096, 16383, 16384, 16385, 65536, 65537, PART };

/* In the last eighth of the window, on multiples of 64 bytes. */
enum { COUNTER = BYTES - 4096, NARROW = COUNTER + 64, BITS = NARROW + 64, LOCK = BITS + 64,
       GUARDED = LOCK + 64 };

static void transfers(MPI_Win win)
{
    unsigned char *out = malloc(PART), *in = malloc(PART);
    MPI_Win_lock_all(0, win);
    for (int k = 0; k < LENGTH(sizes); k++)
        for (int t = 0; t < np; t++) {
            int target = (me + t) % np, n = sizes[k];
            STEP("%d bytes to rank %d", n, target);
            uint64_t key = mix64((uint64_t)me * 1000 + (uint64_t)target * 100 + (uint64_t)k);
            for (int i = 0; i < n; i++)
                out[i] = pattern_byte(key, (size_t)i);
            memset(in, 0, PART);
            MPI_Put(out, n, MPI_BYTE, target, (MPI_Aint)me * PART, n, MPI_BYTE, win);
            MPI_Win_flush(target, win);
            MPI_Get(in, n, MPI_BYTE, target, (MPI_Aint)me * PART, n, MPI_BYTE, win);
            MPI_Win_flush(target, win);
            VERIFY(in, (size_t)n, key, "put and got");
        }
    MPI_Win_unlock_all(win);
    free(out), free(in);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Each value that a fetch returns is returned once. */
static void tickets(MPI_Win win)
{
    static char seen[4 * ROUNDS], all[4 * ROUNDS];
    int one = 1, before = -1;
    memset(seen, 0, sizeof seen);
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < ROUNDS; round++) {
        STEP("ticket %d", round);
        MPI_Fetch_and_op(&one, &before, MPI_INT, np - 1, NARROW, MPI_SUM, win);
        MPI_Win_flush(np - 1, win);
        CHECK(before >= 0 && before < np * ROUNDS, "ticket %d", before);
        seen[before]++;
    }
    MPI_Win_unlock_all(win);
    MPI_Allreduce(seen, all, np * ROUNDS, MPI_SIGNED_CHAR, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0; k < np * ROUNDS; k++)
        CHECK_EQ(all[k], 1, "each ticket once");
}

static void counters(MPI_Win win)
{
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < ROUNDS; round++)
        for (int target = 0; target < np; target++) {
            long add = me + 1, bit = 1l << me, got = -1;
            STEP("counters of rank %d, round %d", target, round);
            MPI_Accumulate(&add, 1, MPI_LONG, target, COUNTER, 1, MPI_LONG, MPI_SUM, win);
            MPI_Fetch_and_op(&bit, &got, MPI_LONG, target, BITS, MPI_BXOR, win);
            MPI_Win_flush(target, win);
            CHECK_EQ((got & bit) != 0, round % 2, "my bit before");
        }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int target = 0; target < np; target++) {
        long sum = 0, bits = -1;
        MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win);
        MPI_Get(&sum, 1, MPI_LONG, target, COUNTER, 1, MPI_LONG, win);
        MPI_Get(&bits, 1, MPI_LONG, target, BITS, 1, MPI_LONG, win);
        MPI_Win_unlock(target, win);
        CHECK_EQ(sum, (long)ROUNDS * np * (np + 1) / 2, "sum");
        CHECK_EQ(bits, 0, "bits that were inverted an even number of times");
    }
}

/* Whoever has swapped its number for 0 owns the data behind. */
static void guarded(MPI_Win win)
{
    long none = 0, mine = me + 1, was, data[8];
    MPI_Win_lock_all(0, win);
    for (int round = 0; round < ROUNDS / 10; round++) {
        STEP("lock by compare-and-swap, round %d", round);
        do {
            MPI_Compare_and_swap(&mine, &none, &was, MPI_LONG, 0, LOCK, win);
            MPI_Win_flush(0, win);
        } while (0 != was);
        MPI_Get(data, 8, MPI_LONG, 0, GUARDED, 8, MPI_LONG, win);
        MPI_Win_flush(0, win);
        for (int k = 0; k < 8; k++) {
            CHECK_EQ(data[k], data[0] * (k + 1), "torn");
        }
        long next = data[0] + 1;
        for (int k = 0; k < 8; k++)
            data[k] = next * (k + 1);
        MPI_Put(data, 8, MPI_LONG, 0, GUARDED, 8, MPI_LONG, win);
        MPI_Win_flush(0, win);
        MPI_Compare_and_swap(&none, &mine, &was, MPI_LONG, 0, LOCK, win);
        MPI_Win_flush(0, win);
        CHECK_EQ(was, mine, "the lock is mine");
    }
    MPI_Win_unlock_all(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
    MPI_Get(data, 8, MPI_LONG, 0, GUARDED, 8, MPI_LONG, win);
    MPI_Win_unlock(0, win);
    CHECK_EQ(data[0], (long)(ROUNDS / 10) * np, "turns");
}

static void all(MPI_Win win)
{
    transfers(win);
    tickets(win);
    counters(win);
    guarded(win);
    MPI_Win_free(&win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    MPI_Win win;
    void *base;
    if (argc > 1 && 0 == strcmp(argv[1], "created")) {
        base = calloc(1, BYTES);
        MPI_Win_create(base, BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        MPI_Barrier(MPI_COMM_WORLD);
        all(win);
        free(base);
    } else {
        MPI_Win_allocate(BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, win);
        memset(base, 0, BYTES);
        MPI_Win_unlock(me, win);
        MPI_Barrier(MPI_COMM_WORLD);
        all(win);
    }
    return check_end();
}

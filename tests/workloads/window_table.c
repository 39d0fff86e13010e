/* A distributed hash table whose records are columns: a key, three sums and a small text lie in
 * five arrays of the owner's window, and a derived type names the fields of a record. Ranks add to
 * records of random keys, which are made when they are needed, under the owner's exclusive lock;
 * others read whole records meanwhile under shared locks, and must find them consistent. Where a
 * record lies depends on the order, what is in it does not.
 * usage: window_table ITERATIONS [GATE [UPDATES]]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"
#include <stddef.h>
#include <string.h>

enum { SLOTS = 512, SUMS = 3, TEXT = 12, KEYS_EACH = 200 };

/* The window of a rank: columns, not records. */
struct columns {
    uint64_t key[SLOTS];
    int64_t sum[SUMS][SLOTS];
    char text[SLOTS][TEXT];
};

/* The same as one record here. */
struct record {
    uint64_t key;
    int64_t sum[SUMS];
    char text[TEXT];
};

static MPI_Win window;
static struct columns *mine;
static int me, np;

/* The fields of one slot there, as the struct has them here. */
static MPI_Datatype fields_there(long slot)
{
    MPI_Datatype type, sums;
    MPI_Type_vector(SUMS, 1, SLOTS, MPI_INT64_T, &sums);
    MPI_Type_create_struct(
        3, (int[]){1, 1, TEXT},
        (MPI_Aint[]){offsetof(struct columns, key) + 8 * slot,
                     (MPI_Aint) offsetof(struct columns, sum) + 8 * slot,
                     (MPI_Aint) offsetof(struct columns, text) + TEXT * slot},
        (MPI_Datatype[]){MPI_UINT64_T, sums, MPI_CHAR}, &type);
    MPI_Type_free(&sums);
    MPI_Type_commit(&type);
    return type;
}

static MPI_Datatype fields_here(void)
{
    MPI_Datatype type;
    MPI_Type_create_struct(3, (int[]){1, SUMS, TEXT},
                           (MPI_Aint[]){offsetof(struct record, key), offsetof(struct record, sum),
                                        offsetof(struct record, text)},
                           (MPI_Datatype[]){MPI_UINT64_T, MPI_INT64_T, MPI_CHAR}, &type);
    MPI_Type_commit(&type);
    return type;
}

static void text_of(uint64_t key, char *text)
{
    for (int i = 0; i < TEXT; i++)
        text[i] = (char) ('a' + mix(key + (uint64_t) i) % 26);
}

static void read_record(int rank, long slot, struct record *r)
{
    MPI_Datatype there = fields_there(slot), here = fields_here();
    MPI_Get(r, 1, here, rank, 0, 1, there, window);
    MPI_Type_free(&there); /* before the get is done */
    MPI_Type_free(&here);
    MPI_Win_flush(rank, window);
}

/* A record is empty, or all of it is right: its second sum is twice the first, the third counts. */
static long inconsistent(const struct record *r)
{
    char text[TEXT];
    text_of(r->key, text);
    return r->key ? r->sum[1] != 2 * r->sum[0] || r->sum[2] <= 0 || memcmp(text, r->text, TEXT)
                  : r->sum[0] || r->sum[1] || r->sum[2];
}

/* Adds to the record of a key; the owner's exclusive lock is held. */
static void add(int rank, uint64_t key, int64_t amount)
{
    struct record r;
    long slot = (long) (mix(key) / 64 % SLOTS);
    for (;; slot = (slot + 1) % SLOTS) {
        read_record(rank, slot, &r);
        if (r.key == key || !r.key)
            break;
    }
    if (!r.key) {
        MPI_Datatype there = fields_there(slot), here = fields_here();
        struct record fresh = {.key = key};
        text_of(key, fresh.text);
        MPI_Put(&fresh, 1, here, rank, 0, 1, there, window);
        MPI_Type_free(&there);
        MPI_Type_free(&here);
        MPI_Win_flush(rank, window);
    }
    int64_t more[SUMS] = {amount, 2 * amount, 1};
    MPI_Datatype sums;
    MPI_Type_vector(SUMS, 1, SLOTS, MPI_INT64_T, &sums);
    MPI_Type_commit(&sums);
    MPI_Accumulate(more, SUMS, MPI_INT64_T, rank,
                   (MPI_Aint) offsetof(struct columns, sum) + 8 * slot, 1, sums, MPI_SUM, window);
    MPI_Type_free(&sums);
}

int main(int argc, char **argv)
{
    int iterations = argc > 1 ? atoi(argv[1]) : 100, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    long updates = argc > 3 ? atol(argv[3]) : 20, wrong = 0;
    uint64_t hash = 0, random;
    int64_t given = 0, total[2], sums[2] = {0, 0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    random = (uint64_t) me + 1;
    MPI_Win_allocate(sizeof *mine, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window);
    memset(mine, 0, sizeof *mine);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        pace();
        for (long u = 0; u < updates; u++) {
            uint64_t number = (random = mix(random)) % (uint64_t) (KEYS_EACH * np);
            uint64_t key = mix(number + 1) | 1;
            int rank = (int) (number % (uint64_t) np);
            int64_t amount = (int64_t) (mix(random) % 1000) - 300;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
            add(rank, key, amount);
            MPI_Win_unlock(rank, window);
            given += amount;
            if (u % 4 == 0) {
                struct record r;
                rank = (rank + 1) % np;
                MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
                read_record(rank, (long) (key / 64 % SLOTS), &r);
                MPI_Win_unlock(rank, window);
                wrong += inconsistent(&r);
            }
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, me, 0, window);
    for (int s = 0; s < SLOTS; s++) {
        struct record r = {.key = mine->key[s]};
        for (int i = 0; i < SUMS; i++)
            r.sum[i] = mine->sum[i][s];
        memcpy(r.text, mine->text[s], TEXT);
        wrong += inconsistent(&r);
        sums[0] += r.sum[0];
        sums[1] += r.sum[2];
        if (r.key)
            hash += mix(r.key ^ mix((uint64_t) r.sum[0] ^ mix((uint64_t) r.sum[2])));
    }
    MPI_Win_unlock(me, window);
    sums[0] -= given;
    sums[1] -= (int64_t) iterations * updates;
    MPI_Allreduce(sums, total, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    wrong += total[0] != 0 || total[1] != 0;
    int right = print_hash(hash, wrong);
    MPI_Win_free(&window);
    MPI_Finalize();
    return !right;
}

/* Tasks over Global Arrays: each takes the next number from a shared counter (NGA_Read_inc), gets a
 * tile that others have made (NGA_Get), adds what it computes to another (NGA_Acc), and between
 * rounds all tiles change places (NGA_Put). Integers only, and sums: who does which task is chance,
 * the answer is not.
 *
 * usage: tasks ROUNDS [PAUSE_MICROSECONDS for each task]
 * Prints `answer`, a sum over the array, and compares it with that of one process: exit code 1.
 */
#include <ga.h>
#include <macdecls.h>
#include <mpi.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TILES = 24, WORDS = 512 };

static long mixed(long a, long b)
{
    uint64_t x = (uint64_t) a * 6364136223846793005ull + (uint64_t) b * 1442695040888963407ull + 1;
    x ^= x >> 29;
    return (long) (x & 0x3fffffff);
}

/* What task `tile` of a round adds to the next tile, made from its own. */
static void work(long *out, const long *in, int round, int tile)
{
    for (int k = 0; k < WORDS; k++)
        out[k] = mixed(in[k] + round, in[(k + tile + 1) % WORDS]);
}

static void seed(long *tile, int number)
{
    for (int k = 0; k < WORDS; k++)
        tile[k] = mixed(number, k);
}

static long hash(const long *tile, int number)
{
    uint64_t all = (uint64_t) number + 1;
    for (int k = 0; k < WORDS; k++)
        all = (all ^ (uint64_t) tile[k]) * 1099511628211ull;
    return (long) (all & 0xffffffffffff);
}

/* By one process. */
static long expected(int rounds)
{
    static long planes[2][TILES][WORDS];
    long more[WORDS], all = 0;
    for (int t = 0; t < TILES; t++)
        seed(planes[0][t], t);
    for (int i = 0; i < rounds; i++) {
        long (*from)[WORDS] = planes[i % 2], (*to)[WORDS] = planes[1 - i % 2];
        for (int t = 0; t < TILES; t++)
            memcpy(to[t], from[(t + 5) % TILES], sizeof to[t]);
        for (int t = 0; t < TILES; t++) {
            work(more, from[t], i, t);
            for (int k = 0; k < WORDS; k++)
                to[(t + 1) % TILES][k] += more[k];
        }
    }
    for (int t = 0; t < TILES; t++)
        all += hash(planes[rounds % 2][t], t);
    return all;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 100, pause = argc > 2 ? atoi(argv[2]) : 0;
    MPI_Init(&argc, &argv);
    GA_Initialize();
    MA_init(C_LONG, 1 << 16, 1 << 16);
    int me = GA_Nodeid(), size = GA_Nnodes();
    int dims[2] = { TILES, WORDS }, chunk[2] = { 1, WORDS }, ld = WORDS, one = 1, zero[1] = { 0 };
    int planes[2] = { NGA_Create(C_LONG, 2, dims, "even", chunk),
                      NGA_Create(C_LONG, 2, dims, "odd", chunk) };
    int counter = NGA_Create(C_LONG, 1, &one, "counter", NULL);
    long in[WORDS], out[WORDS], factor = 1;
    for (int t = me; t < TILES; t += size) {
        int lo[2] = { t, 0 }, hi[2] = { t, WORDS - 1 };
        seed(in, t);
        NGA_Put(planes[0], lo, hi, in, &ld);
    }
    GA_Zero(counter);
    for (int i = 0; i < rounds; i++) {
        int from = planes[i % 2], to = planes[1 - i % 2];
        GA_Sync();
        for (int t = me; t < TILES; t += size) {
            int lo[2] = { (t + 5) % TILES, 0 }, hi[2] = { (t + 5) % TILES, WORDS - 1 };
            NGA_Get(from, lo, hi, in, &ld);
            lo[0] = hi[0] = t;
            NGA_Put(to, lo, hi, in, &ld);
        }
        GA_Sync();
        for (;;) {
            long task = NGA_Read_inc(counter, zero, 1) - (long) i * (TILES + size);
            if (task >= TILES)
                break;
            int lo[2] = { (int) task, 0 }, hi[2] = { (int) task, WORDS - 1 };
            NGA_Get(from, lo, hi, in, &ld);
            work(out, in, i, (int) task);
            if (pause > 0)
                usleep((useconds_t) pause);
            lo[0] = hi[0] = ((int) task + 1) % TILES;
            NGA_Acc(to, lo, hi, out, &ld, &factor);
        }
    }
    GA_Sync();
    long all = 0;
    for (int t = me; t < TILES; t += size) {
        int lo[2] = { t, 0 }, hi[2] = { t, WORDS - 1 };
        NGA_Get(planes[rounds % 2], lo, hi, in, &ld);
        all += hash(in, t);
    }
    GA_Lgop(&all, 1, "+");
    int is_wrong = all != expected(rounds);
    if (0 == me)
        printf("answer %012lx, %s\n", (unsigned long) all, is_wrong ? "WRONG" : "right");
    fflush(stdout);
    GA_Terminate();
    MPI_Finalize();
    return is_wrong;
}

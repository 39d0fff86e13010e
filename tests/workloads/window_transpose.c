/* A 3-D FFT over puts: each rank has a slab of planes, transforms its two inner dimensions, gives
 * each other rank a block by MPI_Put, transforms the third, and back again. Forward and back is the
 * identity but for rounding, which is the same in each run.
 * usage: window_transpose ITERATIONS [GATE [EDGE [fence|post|flush]]]; EDGE: a power of 2
 * and a multiple of the ranks; without a mode all of them in turn.
 * PACE_US: hash.h; TIMES=1: also prints the time of an iteration and the part in puts and
 * synchronization, in microseconds, as "iteration EDGE US" and "puts EDGE US" */
#include "hash.h"
#include "gate.h"
#include <complex.h>
#include <math.h>
#include <string.h>

typedef double complex number;
enum mode { FENCE, POST, FLUSH, MODES };
static const char *const names[] = {"fence", "post", "flush"};

static int me, np, edge, planes; /* planes of each rank */
static number *slab, *out, *in, *line;
static MPI_Win window;
static MPI_Group all;

/* In place, of `edge` numbers `stride` apart. */
static void transform(number *a, size_t stride, int sign)
{
    for (int i = 0, j = 0; i < edge; i++) {
        line[j] = a[(size_t) i * stride];
        int bit = edge >> 1;
        for (; bit && (j & bit); bit >>= 1)
            j ^= bit;
        j |= bit;
    }
    for (int half = 1; half < edge; half *= 2)
        for (int k = 0; k < half; k++) {
            number w = cexp(sign * I * M_PI * k / half);
            for (int i = k; i < edge; i += 2 * half) {
                number x = line[i], y = w * line[i + half];
                line[i] = x + y;
                line[i + half] = x - y;
            }
        }
    for (int i = 0; i < edge; i++)
        a[(size_t) i * stride] = sign > 0 ? line[i] / edge : line[i];
}

/* Block b of my slab (planes x edge x edge) goes to rank b, whose planes are those of the second
 * dimension. */
static void transpose(enum mode mode)
{
    size_t block = (size_t) planes * (size_t) planes * (size_t) edge;
    for (int b = 0; b < np; b++)
        for (int x = 0; x < planes; x++)
            for (int y = 0; y < planes; y++)
                memcpy(out + (size_t) b * block + ((size_t) y * planes + x) * edge,
                       slab + ((size_t) x * edge + (size_t) (b * planes + y)) * edge,
                       (size_t) edge * sizeof *out);
    if (mode == FENCE)
        MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    if (mode == POST) {
        MPI_Win_post(all, 0, window);
        MPI_Win_start(all, 0, window);
    }
    if (mode == FLUSH)
        MPI_Win_lock_all(0, window);
    for (int k = 0; k < np; k++) {
        int b = (me + k) % np;
        MPI_Put(out + (size_t) b * block, (int) block, MPI_C_DOUBLE_COMPLEX, b,
                (MPI_Aint) ((size_t) me * block), (int) block, MPI_C_DOUBLE_COMPLEX, window);
    }
    if (mode == FENCE)
        MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    if (mode == POST) {
        MPI_Win_complete(window);
        MPI_Win_wait(window);
    }
    if (mode == FLUSH) {
        MPI_Win_flush_all(window);
        MPI_Win_unlock_all(window);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (int b = 0; b < np; b++)
        for (int y = 0; y < planes; y++)
            for (int x = 0; x < planes; x++)
                memcpy(slab + ((size_t) y * edge + (size_t) (b * planes + x)) * edge,
                       in + (size_t) b * block + ((size_t) y * planes + x) * edge,
                       (size_t) edge * sizeof *out);
    MPI_Barrier(MPI_COMM_WORLD); /* nobody puts before all have read */
}

int main(int argc, char **argv)
{
    int iterations = argc > 1 ? atoi(argv[1]) : 20, limit = 0, only = -1;
    const char *gate = argc > 2 && argv[2][0] ? argv[2] : NULL;
    uint64_t hash = 0, bits[2];
    double inside = 0, worst = 0, start, begin;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    edge = argc > 3 ? atoi(argv[3]) : 16;
    for (int m = 0; m < MODES && argc > 4; m++)
        if (!strcmp(argv[4], names[m]))
            only = m;
    planes = edge / np;
    size_t numbers = (size_t) planes * (size_t) edge * (size_t) edge;
    if (edge % np || edge & (edge - 1)) {
        if (me == 0)
            fprintf(stderr, "EDGE %d is no power of 2 or no multiple of %d ranks\n", edge, np);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    slab = malloc(numbers * sizeof *slab);
    out = malloc(numbers * sizeof *out);
    line = malloc((size_t) edge * sizeof *line);
    MPI_Win_allocate((MPI_Aint) (numbers * sizeof *in), sizeof *in, MPI_INFO_NULL, MPI_COMM_WORLD,
                     &in, &window);
    MPI_Win_get_group(window, &all);
    for (size_t i = 0; i < numbers; i++)
        slab[i] = (double) (mix((uint64_t) me * numbers + i) % 1000) / 1000;
    number first = slab[0];
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int k = 0; k < iterations; k++) {
        int sign = k % 2 ? 1 : -1;
        wait_at(gate, k, &limit);
        pace();
        for (int x = 0; x < planes && sign < 0; x++)
            for (int y = 0; y < edge; y++)
                transform(slab + ((size_t) x * edge + y) * edge, 1, sign);
        for (int x = 0; x < planes; x++) /* the second dimension */
            for (int z = 0; z < edge; z++)
                transform(slab + (size_t) x * edge * edge + z, (size_t) edge, sign);
        start = MPI_Wtime();
        transpose(only >= 0 ? (enum mode) only : (enum mode) (k % MODES));
        inside += MPI_Wtime() - start;
        for (int y = 0; y < planes; y++) /* the first one, which is local now */
            for (int z = 0; z < edge; z++)
                transform(slab + (size_t) y * edge * edge + z, (size_t) edge, sign);
        for (int y = 0; y < planes && sign > 0; y++)
            for (int x = 0; x < edge; x++)
                transform(slab + ((size_t) y * edge + x) * edge, 1, sign);
        if (sign > 0) { /* back again */
            double off = cabs(slab[0] - first);
            worst = off > worst ? off : worst;
        }
    }
    double times[2] = {MPI_Wtime() - begin, inside}, slowest[2];
    for (size_t i = 0; i < numbers; i++) {
        memcpy(bits, &slab[i], sizeof bits);
        hash = mix(hash ^ bits[0]) ^ bits[1];
    }
    int right = print_hash(hash, worst > 1e-9);
    MPI_Reduce(times, slowest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (me == 0 && getenv("TIMES"))
        printf("iteration %d %.1f\nputs %d %.1f\n", edge, slowest[0] / iterations * 1e6, edge,
               slowest[1] / iterations * 1e6);
    MPI_Group_free(&all);
    MPI_Win_free(&window);
    free(slab), free(out), free(line);
    MPI_Finalize();
    return !right;
}

/* A ring of tiles on StarPU, whose communication thread makes all calls of MPI and asks for them
 * without end, beside workers that never sleep. Each step makes every tile from itself and its two
 * neighbours; all is modulo 2^64, so the answer depends on no order and no number of ranks.
 *
 * usage: stencil STEPS
 * Prints `answer`, the sum over all tiles, and compares it with that of one process: exit code 1.
 */
#include <starpu_mpi.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 12, WORDS = 4096, STEPS_AT_A_TIME = 50 };

static void step(uint64_t *to, const uint64_t *from, const uint64_t *left, const uint64_t *right)
{
    for (int k = 0; k < WORDS; k++) {
        uint64_t before = k > 0 ? from[k - 1] : left[WORDS - 1];
        uint64_t after = k < WORDS - 1 ? from[k + 1] : right[0];
        uint64_t sum = from[k] * 3 + before + after;
        to[k] = sum * 6364136223846793005ull + 1442695040888963407ull + (uint64_t) k;
    }
}

static void step_task(void *tiles[], void *unused)
{
    (void) unused;
    uint64_t *at[4];
    for (int i = 0; i < 4; i++)
        at[i] = (uint64_t *) STARPU_VECTOR_GET_PTR(tiles[i]);
    step(at[0], at[1], at[2], at[3]);
}

static struct starpu_codelet codelet = {
    .cpu_funcs = { step_task },
    .cpu_funcs_name = { "step_task" },
    .nbuffers = 4,
    .modes = { STARPU_W, STARPU_R, STARPU_R, STARPU_R },
    .name = "step",
};

static void fill(uint64_t *tile, int number)
{
    for (int k = 0; k < WORDS; k++)
        tile[k] = (uint64_t) (number * WORDS + k) * 0x9E3779B97F4A7C15ull;
}

static uint64_t hash(const uint64_t *tile, int number)
{
    uint64_t all = (uint64_t) number + 1;
    for (int k = 0; k < WORDS; k++)
        all = (all ^ tile[k]) * 1099511628211ull;
    return all;
}

/* By one process. */
static uint64_t expected(int steps)
{
    static uint64_t planes[2][TILES][WORDS];
    uint64_t all = 0;
    for (int t = 0; t < TILES; t++)
        fill(planes[0][t], t);
    for (int i = 0; i < steps; i++) {
        uint64_t (*from)[WORDS] = planes[i % 2], (*to)[WORDS] = planes[1 - i % 2];
        for (int t = 0; t < TILES; t++)
            step(to[t], from[t], from[(t + TILES - 1) % TILES], from[(t + 1) % TILES]);
    }
    for (int t = 0; t < TILES; t++)
        all += hash(planes[steps % 2][t], t);
    return all;
}

static void must(int result, const char *what)
{
    if (0 != result) {
        fprintf(stderr, "stencil: %s: %d\n", what, result);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

int main(int argc, char **argv)
{
    static uint64_t memory[2][TILES][WORDS];
    starpu_data_handle_t tiles[2][TILES];
    int me, size, got, steps = argc > 1 ? atoi(argv[1]) : 400;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &got);
    must(got < MPI_THREAD_SERIALIZED, "the level of threads");
    must(starpu_mpi_init_conf(&argc, &argv, 0, MPI_COMM_WORLD, NULL), "starpu_mpi_init_conf");
    must(0 == starpu_cpu_worker_get_count(), "there is no worker");
    starpu_mpi_comm_rank(MPI_COMM_WORLD, &me);
    starpu_mpi_comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < 2 * TILES; i++) {
        int plane = i / TILES, t = i % TILES, is_mine = t % size == me;
        uint64_t *at = memory[plane][t];
        fill(at, t);
        starpu_vector_data_register(&tiles[plane][t], is_mine ? STARPU_MAIN_RAM : -1,
                                    is_mine ? (uintptr_t) at : 0, WORDS, sizeof *at);
        starpu_mpi_data_register(tiles[plane][t], i, t % size);
    }
    for (int i = 0; i < steps; i++) {
        starpu_data_handle_t *from = tiles[i % 2], *to = tiles[1 - i % 2];
        for (int t = 0; t < TILES; t++)
            must(starpu_mpi_task_insert(MPI_COMM_WORLD, &codelet, STARPU_W, to[t], STARPU_R,
                                        from[t], STARPU_R, from[(t + TILES - 1) % TILES], STARPU_R,
                                        from[(t + 1) % TILES], 0),
                 "starpu_mpi_task_insert");
        /* The number of tasks that wait stays bounded. */
        if (0 == (i + 1) % STEPS_AT_A_TIME || i + 1 == steps) {
            starpu_task_wait_for_all();
            starpu_mpi_wait_for_all(MPI_COMM_WORLD);
        }
    }
    for (int i = 0; i < 2 * TILES; i++)
        starpu_data_unregister(tiles[i / TILES][i % TILES]);
    /* Its communication thread is gone then. */
    starpu_mpi_shutdown();
    uint64_t mine = 0, all = 0;
    for (int t = me; t < TILES; t += size)
        mine += hash(memory[steps % 2][t], t);
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    int is_wrong = all != expected(steps);
    if (0 == me)
        printf("answer %016llx, %s\n", (unsigned long long) all, is_wrong ? "WRONG" : "right");
    MPI_Finalize();
    return is_wrong;
}

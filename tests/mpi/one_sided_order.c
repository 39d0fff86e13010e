/* ranks: 1,2,3 ; nodes: 1,2,3 ; stock args: --mca osc pt2pt */
/* Accumulates of one origin to one place are applied in the order of its program, whichever of the
 * calls they are and however large: read after write, write after read, write after write. Numbers
 * that depend on the order. Half of the programs mix operations; MPI may assume that those that are
 * not ordered do not (info key accumulate_ops), but all of these are. MPI 3.1 section 11.7.2. */
#include "windows.h"

enum { N = 4000, OPERATIONS = 60 };

static unsigned apply(unsigned was, unsigned x, int op)
{
    return op == 0 ? was + x : op == 1 ? was * x : op == 2 ? x : op == 3 ? was ^ x : was;
}

/* A random program of accumulates on random ranges of a part that is mine alone; nothing but the
 * last flush says when. Unless mixed, a flush is between different operations. */
static void random_program(struct window *w, uint64_t seed, int longest, bool mixed)
{
    const MPI_Op handle[] = {MPI_SUM, MPI_PROD, MPI_REPLACE, MPI_BXOR, MPI_NO_OP};
    int target = (me + (int)(seed % 3)) % np;
    unsigned *model = calloc(N, sizeof *model);
    unsigned *x = malloc((size_t)OPERATIONS * (size_t)longest * sizeof *x);
    unsigned *got = malloc((size_t)OPERATIONS * (size_t)longest * sizeof *got);
    unsigned *want = malloc((size_t)OPERATIONS * (size_t)longest * sizeof *want);
    MPI_Aint part = (MPI_Aint)me * N * 4;
    uint64_t random = mix64(seed * 64 + (uint64_t)me);
    int phase = 0;
    STEP("%s: random, seed %d, up to %d", flavour_name[w->flavour], (int)seed, longest);
    meet(w);
    memset(w->base, 0, (size_t)np * N * 4);
    meet(w);
    for (int k = 0; k < OPERATIONS; k++) {
        unsigned *mine = x + k * longest, *mine_got = got + k * longest, *w_k = want + k * longest;
        int n = 1 + (int)random_below(&random, longest), from = (int)random_below(&random, N - n);
        int op = (int)random_below(&random, 5), way = (int)random_below(&random, 3);
        if (!mixed && k % 12 == 0) {
            MPI_Win_flush(target, w->win);
            phase = (int)random_below(&random, 4);
        }
        if (!mixed && op != 4)
            op = phase;
        if (op == 4 && way == 0)
            way = 1; /* MPI_NO_OP fetches */
        if (way == 2)
            n = 1;
        for (int i = 0; i < longest; i++) {
            mine[i] = (unsigned)random_next(&random) | 1;
            mine_got[i] = w_k[i] = 0;
        }
        for (int i = 0; i < n; i++) {
            w_k[i] = way ? model[from + i] : 0;
            model[from + i] = apply(model[from + i], mine[i], op);
        }
        MPI_Aint there = at(w, target, part + 4 * from);
        if (way == 0)
            MPI_Accumulate(mine, n, MPI_UNSIGNED, target, there, n, MPI_UNSIGNED, handle[op],
                           w->win);
        else if (way == 1)
            MPI_Get_accumulate(mine, n, MPI_UNSIGNED, mine_got, n, MPI_UNSIGNED, target, there, n,
                               MPI_UNSIGNED, handle[op], w->win);
        else
            MPI_Fetch_and_op(mine, mine_got, MPI_UNSIGNED, target, there, handle[op], w->win);
        if (random_below(&random, 20) == 0)
            MPI_Win_flush_local(target, w->win);
    }
    MPI_Win_flush(target, w->win);
    for (int k = 0; k < OPERATIONS * longest; k++)
        CHECK_EQ(got[k], want[k], "what was fetched");
    unsigned *all = malloc(N * sizeof *all);
    MPI_Get(all, N, MPI_UNSIGNED, target, at(w, target, part), N, MPI_UNSIGNED, w->win);
    MPI_Win_flush(target, w->win);
    for (int i = 0; i < N; i++)
        CHECK_EQ(all[i], model[i], "in the end");
    free(model), free(x), free(got), free(want), free(all);
}

static void body(struct window *w)
{
    MPI_Win_lock_all(0, w->win);
    for (uint64_t seed = 0; seed < 6; seed++) {
        random_program(w, seed, 3, seed % 2);
        if (!stock_fails("osc/pt2pt: long accumulates and others overtake each other"))
            random_program(w, seed, 3000, seed % 2);
    }
    MPI_Win_unlock_all(w->win);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    on_all_flavours((MPI_Aint)np * N * 4, 4, body);
    return check_end();
}

/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; output: HASH .* */
/* Heat on a square grid cut into blocks: nonblocking halo exchange of rows and columns (a vector
 * type) with the interior computed meanwhile, a norm by allreduce. The result does not depend on
 * the number of ranks: integer arithmetic, HASH over the whole grid. */
#include "check.h"

enum { SIDE = 240 };

static uint32_t *now, *then;
static int rows, columns, row0, column0, pitch;
#define AT(a, i, j) ((a)[(i)*pitch + (j)])

static void step_cell(int i, int j)
{
    uint64_t s =
        (uint64_t)AT(now, i - 1, j) + AT(now, i + 1, j) + AT(now, i, j - 1) + AT(now, i, j + 1);
    AT(then, i, j) = (uint32_t)(s / 4 + (AT(now, i, j) >> 3));
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int dims[2] = {0, 0}, periods[2] = {1, 1}, at[2], peers[4];
    MPI_Comm grid;
    MPI_Datatype column;
    MPI_Dims_create(np, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_coords(grid, me, 2, at);
    MPI_Cart_shift(grid, 0, 1, &peers[0], &peers[1]); /* up, down */
    MPI_Cart_shift(grid, 1, 1, &peers[2], &peers[3]); /* left, right */
    row0 = SIDE * at[0] / dims[0], rows = SIDE * (at[0] + 1) / dims[0] - row0;
    column0 = SIDE * at[1] / dims[1], columns = SIDE * (at[1] + 1) / dims[1] - column0;
    pitch = columns + 2;
    now = calloc((size_t)((rows + 2) * pitch), sizeof *now);
    then = calloc((size_t)((rows + 2) * pitch), sizeof *then);
    MPI_Type_vector(rows, 1, pitch, MPI_UINT32_T, &column);
    MPI_Type_commit(&column);
    for (int i = 1; i <= rows; i++)
        for (int j = 1; j <= columns; j++)
            AT(now, i, j) = (uint32_t)mix64((uint64_t)((row0 + i) * SIDE + column0 + j)) >> 4;
    long steps = scaled(1500);
    for (long s = 0; s < steps; s++) {
        MPI_Request r[8];
        STEP("step %ld", s);
        MPI_Irecv(&AT(now, 0, 1), columns, MPI_UINT32_T, peers[0], 1, grid, &r[0]);
        MPI_Irecv(&AT(now, rows + 1, 1), columns, MPI_UINT32_T, peers[1], 2, grid, &r[1]);
        MPI_Irecv(&AT(now, 1, 0), 1, column, peers[2], 3, grid, &r[2]);
        MPI_Irecv(&AT(now, 1, columns + 1), 1, column, peers[3], 4, grid, &r[3]);
        MPI_Isend(&AT(now, rows, 1), columns, MPI_UINT32_T, peers[1], 1, grid, &r[4]);
        MPI_Isend(&AT(now, 1, 1), columns, MPI_UINT32_T, peers[0], 2, grid, &r[5]);
        MPI_Isend(&AT(now, 1, columns), 1, column, peers[3], 3, grid, &r[6]);
        MPI_Isend(&AT(now, 1, 1), 1, column, peers[2], 4, grid, &r[7]);
        for (int i = 2; i < rows; i++)
            for (int j = 2; j < columns; j++)
                step_cell(i, j);
        if (s % 2)
            MPI_Waitall(8, r, MPI_STATUSES_IGNORE);
        else
            for (int k = 0, index; k < 8; k++)
                MPI_Waitany(8, r, &index, MPI_STATUS_IGNORE);
        for (int j = 1; j <= columns; j++) {
            step_cell(1, j);
            step_cell(rows, j);
        }
        for (int i = 2; i < rows; i++) {
            step_cell(i, 1);
            step_cell(i, columns);
        }
        uint32_t *t = now;
        now = then, then = t;
        if (s % 100 == 99) {
            uint64_t sum = 0, all = 0;
            for (int i = 1; i <= rows; i++)
                for (int j = 1; j <= columns; j++)
                    sum += AT(now, i, j);
            MPI_Allreduce(&sum, &all, 1, MPI_UINT64_T, MPI_SUM, grid);
            CHECK(all > 0, "everything is cold");
        }
    }
    uint64_t hash = 0, total = 0;
    for (int i = 1; i <= rows; i++)
        for (int j = 1; j <= columns; j++)
            hash +=
                mix64((uint64_t)AT(now, i, j) << 24 ^ (uint64_t)((row0 + i) * SIDE + column0 + j));
    MPI_Reduce(&hash, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016" PRIx64 "\n", total);
    MPI_Type_free(&column);
    MPI_Comm_free(&grid);
    free(now), free(then);
    return check_end();
}

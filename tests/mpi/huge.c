/* ranks: 2 ; nodes: 1 ; args: 2 | 4 ; memory: 9000 */
/* Messages over 2 GiB and over 4 GiB (argument: GiB), contiguous, with count * size beyond int, and
 * as a derived type with gaps; up to 2 x 4.3 GiB of memory. Ends with OK (skipped) when there is
 * less. */
#include "check.h"

static long available_mib(void)
{
    char text[256];
    long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(text, sizeof text, f))
        if (sscanf(text, "MemAvailable: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib / 1024;
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    alarm((unsigned)environment_number("CHECK_SECONDS", 300));
    size_t gib = argc > 1 ? (size_t)atol(argv[1]) : 2;
    size_t ints = gib << 28, more = (100u << 20) / 4 + 77, bytes = (ints + more) * 4;
    int enough = available_mib() > (long)(3 * (bytes >> 20)), all = 0;
    MPI_Allreduce(&enough, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (skip_unless(all, "not enough memory"))
        return check_end();
    unsigned char *buffer = malloc(bytes + 64);
    MPI_Count count = -1;
    MPI_Status st;
    CHECK(buffer, "out of memory");
    memset(buffer + bytes, POISON, 64);

    STEP("%zu ints", ints + more); /* count fits an int, count * size does not */
    if (me == 0) {
        fill(buffer, bytes, key_of(0, 1, 0, (long)gib));
        MPI_Send(buffer, (int)(ints + more), MPI_INT, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(buffer, 1, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        memset(buffer, 0, bytes);
        MPI_Recv(buffer, (int)(ints + more), MPI_INT, 0, 1, MPI_COMM_WORLD, &st);
        MPI_Get_elements_x(&st, MPI_INT, &count);
        CHECK_EQ(count, ints + more, "elements");
        VERIFY(buffer, bytes, key_of(0, 1, 0, (long)gib), "huge");
        UNTOUCHED(buffer + bytes, 64, "behind");
        MPI_Send(buffer, 1, MPI_INT, 0, 9, MPI_COMM_WORLD);
    }

    STEP("one element of a huge type with gaps, the other way");
    MPI_Datatype row, rows;
    size_t pitch = 1 << 20, length = pitch - 4096, n = bytes / pitch;
    MPI_Type_vector((int)n, (int)length, (int)pitch, MPI_BYTE, &rows);
    MPI_Type_commit(&rows);
    if (me == 1) {
        for (size_t k = 0; k < n; k++)
            fill(buffer + k * pitch, length, key_of(1, 2, (long)k, 0));
        MPI_Request r;
        MPI_Issend(buffer, 1, rows, 0, 2, MPI_COMM_WORLD, &r);
        MPI_Wait(&r, MPI_STATUS_IGNORE);
    } else {
        for (size_t k = 0; k < n; k++)
            memset(buffer + k * pitch, POISON, pitch);
        MPI_Probe(1, 2, MPI_COMM_WORLD, &st);
        MPI_Get_elements_x(&st, MPI_BYTE, &count);
        CHECK_EQ(count, n * length, "probed bytes");
        MPI_Recv(buffer, 1, rows, 1, 2, MPI_COMM_WORLD, &st);
        MPI_Get_elements_x(&st, MPI_BYTE, &count);
        CHECK_EQ(count, n * length, "received bytes");
        for (size_t k = 0; k < n; k++) {
            VERIFY(buffer + k * pitch, length, key_of(1, 2, (long)k, 0), "row");
            UNTOUCHED(buffer + k * pitch + length, pitch - length, "gap");
        }
    }
    STEP("many elements of a large type");
    MPI_Type_contiguous(1 << 20, MPI_BYTE, &row);
    MPI_Type_commit(&row);
    if (me == 0) {
        fill(buffer, n << 20, key_of(0, 3, 0, 0));
        MPI_Send(buffer, (int)n, row, 1, 3, MPI_COMM_WORLD);
    } else {
        int got = -1;
        memset(buffer, 0, n << 20);
        MPI_Recv(buffer, (int)n, row, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
        MPI_Get_count(&st, row, &got);
        CHECK_EQ(got, n, "elements");
        VERIFY(buffer, n << 20, key_of(0, 3, 0, 0), "large type");
        UNTOUCHED(buffer + bytes, 64, "behind");
    }
    MPI_Type_free(&row);
    MPI_Type_free(&rows);
    free(buffer);
    return check_end();
}

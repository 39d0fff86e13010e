/* ranks: 1,2,3,4 ; nodes: 1,2,3 ; files: yes */
/* MPI-IO: explicit offsets, individual and shared pointers, collective and nonblocking, views with
 * gaps, ordered writes, atomic mode, sizes, errors. One file in the directory
 * named by CHECK_DIRECTORY (default: /tmp), which all nodes share. MPI 3.1 chapter 13. */
#include "check.h"

static char path[4096];

static MPI_File open_new(int more)
{
    MPI_File f;
    if (me == 0)
        MPI_File_delete(path, MPI_INFO_NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    int rc = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR | more,
                           MPI_INFO_NULL, &f);
    EXPECT_OK(rc);
    return f;
}

/* Everybody sees what everybody has written. fsync is slow, and on one machine not needed. */
static void settle(MPI_File f)
{
    static int times;
    if (times++ < 2)
        MPI_File_sync(f);
    MPI_Barrier(MPI_COMM_WORLD);
    if (times < 2)
        MPI_File_sync(f);
}

static void explicit_offsets(int n)
{
    MPI_File f = open_new(0);
    unsigned char *b = buffer_new((size_t)n);
    MPI_Status st;
    int next = (me + 1) % np, count;
    MPI_Offset size;
    STEP("explicit offsets, %d bytes", n);
    fill(b, (size_t)n, key_of(me, 1, n, 0));
    MPI_File_write_at(f, (MPI_Offset)me * n, b, n, MPI_BYTE, &st);
    MPI_Get_count(&st, MPI_BYTE, &count);
    CHECK_EQ(count, n, "written");
    settle(f);
    MPI_File_get_size(f, &size);
    CHECK_EQ(size, (long long)np * n, "file size");
    MPI_File_read_at(f, (MPI_Offset)next * n, b, n, MPI_BYTE, &st);
    VERIFY(b, n, key_of(next, 1, n, 0), "read_at");
    MPI_File_read_at(f, (MPI_Offset)np * n - 3, b, n, MPI_BYTE, &st);
    MPI_Get_count(&st, MPI_BYTE, &count);
    CHECK_EQ(count, 3, "read at the end of the file");
    STEP("collective, %d bytes", n);
    fill(b, (size_t)n, key_of(me, 2, n, 0));
    MPI_File_write_at_all(f, (MPI_Offset)(np - 1 - me) * n, b, n, MPI_BYTE, &st);
    settle(f);
    poison(b, (size_t)n);
    MPI_File_read_at_all(f, (MPI_Offset)me * n, b, n, MPI_BYTE, &st);
    VERIFY(b, n, key_of(np - 1 - me, 2, n, 0), "read_at_all");
    STEP("nonblocking, %d bytes", n);
    MPI_Request r;
    fill(b, (size_t)n, key_of(me, 3, n, 0));
    MPI_File_iwrite_at(f, (MPI_Offset)me * n, b, n, MPI_BYTE, &r);
    MPI_Wait(&r, &st);
    settle(f);
    MPI_File_iread_at(f, (MPI_Offset)next * n, b, n, MPI_BYTE, &r);
    MPI_Wait(&r, &st);
    VERIFY(b, n, key_of(next, 3, n, 0), "iread_at");
    buffer_free(b);
    MPI_File_close(&f);
}

/* Rank k owns every np-th block: the file is a weave of all ranks. */
static void views(int block, int blocks)
{
    MPI_File f = open_new(0);
    MPI_Datatype t, stripe;
    int n = block * blocks;
    unsigned char *b = buffer_new((size_t)n), *all = buffer_new((size_t)n * (size_t)np);
    STEP("views, %d blocks of %d", blocks, block);
    MPI_Type_contiguous(block, MPI_BYTE, &t);
    MPI_Type_create_resized(t, 0, (MPI_Aint)block * np, &stripe);
    MPI_Type_commit(&stripe);
    MPI_File_set_view(f, (MPI_Offset)me * block + 16, MPI_BYTE, stripe, "native", MPI_INFO_NULL);
    fill(b, (size_t)n, key_of(me, 4, n, 0));
    MPI_File_write_all(f, b, n / 2, MPI_BYTE, MPI_STATUS_IGNORE); /* by the individual pointer */
    MPI_File_write_all(f, b + n / 2, n - n / 2, MPI_BYTE, MPI_STATUS_IGNORE);
    poison(b, (size_t)n);
    MPI_File_seek(f, 0, MPI_SEEK_SET);
    MPI_File_read_all(f, b, n, MPI_BYTE, MPI_STATUS_IGNORE);
    VERIFY(b, n, key_of(me, 4, n, 0), "read through the view");
    settle(f);
    MPI_File_set_view(f, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL);
    MPI_File_read_at(f, 16, all, n * np, MPI_BYTE, MPI_STATUS_IGNORE);
    for (int i = 0; i < n * np; i++) {
        int rank = i / block % np, at = i / (block * np) * block + i % block;
        if (all[i] != pattern_byte(key_of(rank, 4, n, 0), (size_t)at))
            FAIL("byte %d of the file is not of rank %d", i, rank);
    }
    MPI_Type_free(&t);
    MPI_Type_free(&stripe);
    buffer_free(b);
    buffer_free(all);
    MPI_File_close(&f);
}

/* Shared pointer: each record is whole, none is lost; ordered: in the order of ranks. */
static void shared_pointer(void)
{
    enum { RECORD = 128, EACH = 20 };
    MPI_File f = open_new(0);
    unsigned char b[RECORD];
    bool seen[64][EACH] = {{false}};
    STEP("shared pointer");
    for (int k = 0; k < EACH; k++) {
        fill(b, RECORD, key_of(me, 5, k, 0));
        b[0] = (unsigned char)me;
        b[1] = (unsigned char)k;
        MPI_File_write_shared(f, b, RECORD, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    settle(f);
    for (int i = 0; i < np * EACH; i++) {
        unsigned char expected[RECORD];
        MPI_File_read_at(f, (MPI_Offset)i * RECORD, b, RECORD, MPI_BYTE, MPI_STATUS_IGNORE);
        CHECK(b[0] < np && b[1] < EACH && !seen[b[0]][b[1]], "record %d is rank %d number %d", i,
              b[0], b[1]);
        seen[b[0]][b[1]] = true;
        fill(expected, RECORD, key_of(b[0], 5, b[1], 0));
        CHECK(!memcmp(expected + 2, b + 2, RECORD - 2), "record %d is torn", i);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_seek_shared(f, 0, MPI_SEEK_SET);
    STEP("ordered");
    for (int k = 0; k < 3; k++) {
        fill(b, RECORD, key_of(me, 6, k, 0));
        MPI_File_write_ordered(f, b, me + 1, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    settle(f);
    MPI_File_seek_shared(f, 0, MPI_SEEK_SET);
    for (int k = 0; k < 3; k++) {
        poison(b, RECORD);
        MPI_File_read_ordered(f, b, me + 1, MPI_BYTE, MPI_STATUS_IGNORE);
        VERIFY(b, me + 1, key_of(me, 6, k, 0), "read_ordered");
    }
    MPI_File_close(&f);
}

static void rest(void)
{
    MPI_File f = open_new(0);
    MPI_Offset size = -1, at = -1;
    int x[4] = {me, 2, 3, 4}, atomic = -1, amode = -1;
    STEP("sizes");
    MPI_File_set_size(f, 5000);
    MPI_File_get_size(f, &size);
    CHECK_EQ(size, 5000, "set_size");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_set_size(f, 8000); /* no MPI_File_preallocate: stock ompio hangs in it now and then */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_seek(f, -100, MPI_SEEK_END);
    MPI_File_get_position(f, &at);
    CHECK_EQ(at, 7900, "seek from the end");
    MPI_File_get_amode(f, &amode);
    CHECK(amode & MPI_MODE_RDWR, "amode %d", amode);
    MPI_Barrier(MPI_COMM_WORLD);
    STEP("atomic");
    MPI_File_set_atomicity(f, 1);
    MPI_File_get_atomicity(f, &atomic);
    MPI_File_write_at(f, me * 16, x, 4, MPI_INT, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_read_at(f, (me + 1) % np * 16, x, 4, MPI_INT, MPI_STATUS_IGNORE);
    CHECK_EQ(x[0], (me + 1) % np, "atomic");
    MPI_File_close(&f);
    STEP("errors");
    EXPECT_CLASS(
        MPI_File_open(MPI_COMM_WORLD, "/nonexistent/file", MPI_MODE_RDONLY, MPI_INFO_NULL, &f),
        MPI_ERR_NO_SUCH_FILE);
    EXPECT_OK(MPI_File_open(MPI_COMM_SELF, path, MPI_MODE_RDONLY | MPI_MODE_UNIQUE_OPEN,
                            MPI_INFO_NULL, &f));
    CHECK(MPI_File_write_at(f, 0, x, 1, MPI_INT, MPI_STATUS_IGNORE) != MPI_SUCCESS,
          "write, read only");
    MPI_File_close(&f);
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    int length = 0;
    const char *directory = getenv("CHECK_DIRECTORY");
    if (me == 0) /* the same name on all nodes, another for each run */
        length = snprintf(path, sizeof path, "%s/io-test-%ld.bin", directory ? directory : "/tmp",
                          (long)getpid());
    (void)length;
    MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
    static const int sizes[] = {3, 100, 5000, 300000};
    for (int i = 0; i < LENGTH(sizes); i++)
        explicit_offsets(sizes[i]);
    views(8, 3);
    views(100, 200);
    views(4096, 60);
    shared_pointer();
    rest();
    if (me == 0)
        MPI_File_delete(path, MPI_INFO_NULL);
    return check_end();
}

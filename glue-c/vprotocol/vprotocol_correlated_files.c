/*
 * Functions of MPI-IO whose result depends on what a file holds when they are called. A set that is
 * rolled back alone would find what it and others have written since (docs/adr/0023). What is done
 * to files that ranks of several sets open together is repeated; else they are reported to the
 * coordinator (rustbtl_file). They are interposed (component/src/mpi/interpose.rs);
 * Open MPI checks the arguments.
 */
#include "glue_files.h"
#include "vprotocol_correlated.h"

#define INTERPOSED(function, own)                                                                  \
    {"MPI_" #function, "PMPI_" #function, (void (*)(void)) PMPI_##function, (void (*)(void)) own}

static void report(int32_t how, MPI_File file)
{
    MPI_Group group;
    int ranks = 1;
    if (NULL == file || MPI_FILE_NULL == file || MPI_SUCCESS != PMPI_File_get_group(file, &group)) {
        return;
    }
    PMPI_Group_size(group, &ranks);
    PMPI_Group_free(&group);
    rustbtl_file(how, (uint32_t) ranks, file);
}

/* The size of a file that is only read does not change. */
static void report_size_use(MPI_File file)
{
    int mode = 0;
    if (NULL != file && MPI_FILE_NULL != file && MPI_SUCCESS == PMPI_File_get_amode(file, &mode)
        && 0 == (mode & MPI_MODE_RDONLY)) {
        report(RUSTBTL_FILE_SIZE, file);
    }
}

/* Those that ranks of several sets open together are repeated call by call, if they can be. */
static int file_open(MPI_Comm comm, const char *name, int mode, MPI_Info info, MPI_File *file)
{
    int size = 0, code, is_inter = 0;
    int64_t before = -1;
    if (0 == (mode & MPI_MODE_RDONLY) && MPI_COMM_NULL != comm
        && MPI_SUCCESS == PMPI_Comm_test_inter(comm, &is_inter) && !is_inter
        && MPI_SUCCESS == PMPI_Comm_size(comm, &size)) {
        before = rustbtl_file_opens(comm, (uint32_t) size);
    }
    code = PMPI_File_open(comm, name, mode, info, file);
    if (0 <= before) {
        rustbtl_file_opened(before, MPI_SUCCESS == code ? *file : NULL);
    }
    return code;
}

static int file_close(MPI_File *file)
{
    const MPI_File closed = NULL == file ? MPI_FILE_NULL : *file;
    const int code = PMPI_File_close(file);
    if (MPI_SUCCESS == code) {
        rustbtl_file_closed(closed);
    }
    return code;
}

static int file_delete(const char *name, MPI_Info info)
{
    int code;
    rustbtl_file_deletes(1);
    code = PMPI_File_delete(name, info);
    rustbtl_file_deletes(0);
    return code;
}

static int get_size(MPI_File file, MPI_Offset *size)
{
    report_size_use(file);
    return PMPI_File_get_size(file, size);
}

static int set_size(MPI_File file, MPI_Offset size)
{
    report_size_use(file);
    return PMPI_File_set_size(file, size);
}

static int preallocate(MPI_File file, MPI_Offset size)
{
    report_size_use(file);
    return PMPI_File_preallocate(file, size);
}

static int seek(MPI_File file, MPI_Offset offset, int whence)
{
    if (MPI_SEEK_END == whence) {
        report_size_use(file);
    }
    return PMPI_File_seek(file, offset, whence);
}

/* The shared file pointer. */

static int seek_shared(MPI_File file, MPI_Offset offset, int whence)
{
    report(RUSTBTL_FILE_SHARED_POINTER, file);
    return PMPI_File_seek_shared(file, offset, whence);
}

static int get_position_shared(MPI_File file, MPI_Offset *offset)
{
    report(RUSTBTL_FILE_SHARED_POINTER, file);
    return PMPI_File_get_position_shared(file, offset);
}

#define READS_OR_WRITES(own, buffer_t, status_t)                                                   \
    static int own(MPI_File file, buffer_t buffer, int count, MPI_Datatype type, status_t status)  \
    {                                                                                              \
        report(RUSTBTL_FILE_SHARED_POINTER, file);                                                 \
        return PMPI_File_##own(file, buffer, count, type, status);                                 \
    }

READS_OR_WRITES(read_shared, void *, MPI_Status *)
READS_OR_WRITES(write_shared, const void *, MPI_Status *)
READS_OR_WRITES(iread_shared, void *, MPI_Request *)
READS_OR_WRITES(iwrite_shared, const void *, MPI_Request *)
READS_OR_WRITES(read_ordered, void *, MPI_Status *)
READS_OR_WRITES(write_ordered, const void *, MPI_Status *)

static int read_ordered_begin(MPI_File file, void *buffer, int count, MPI_Datatype type)
{
    report(RUSTBTL_FILE_SHARED_POINTER, file);
    return PMPI_File_read_ordered_begin(file, buffer, count, type);
}

static int write_ordered_begin(MPI_File file, const void *buffer, int count, MPI_Datatype type)
{
    report(RUSTBTL_FILE_SHARED_POINTER, file);
    return PMPI_File_write_ordered_begin(file, buffer, count, type);
}

/* The one table of all functions that are interposed: also those of
 * vprotocol_correlated_outcomes.c. */
const rustbtl_interposed_t mca_vprotocol_correlated_interposed[] = {
    INTERPOSED(Request_get_status, mca_vprotocol_correlated_get_status),
    INTERPOSED(File_open, file_open),
    INTERPOSED(File_close, file_close),
    INTERPOSED(File_delete, file_delete),
    INTERPOSED(File_get_size, get_size),
    INTERPOSED(File_set_size, set_size),
    INTERPOSED(File_preallocate, preallocate),
    INTERPOSED(File_seek, seek),
    INTERPOSED(File_seek_shared, seek_shared),
    INTERPOSED(File_get_position_shared, get_position_shared),
    INTERPOSED(File_read_shared, read_shared),
    INTERPOSED(File_write_shared, write_shared),
    INTERPOSED(File_iread_shared, iread_shared),
    INTERPOSED(File_iwrite_shared, iwrite_shared),
    INTERPOSED(File_read_ordered, read_ordered),
    INTERPOSED(File_write_ordered, write_ordered),
    INTERPOSED(File_read_ordered_begin, read_ordered_begin),
    INTERPOSED(File_write_ordered_begin, write_ordered_begin),
    {NULL, NULL, NULL, NULL},
};

/*
 * What C tells Rust of files that the program uses by MPI-IO (docs/adr/0023). See glue.h.
 */
#ifndef RUSTBTL_GLUE_FILES_H
#define RUSTBTL_GLUE_FILES_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* What the program does with a file that so many `ranks` have opened together cannot be replayed by
 * a set that is rolled back alone. */
#define RUSTBTL_FILE_SIZE 0           /* its size matters, and it is written to */
#define RUSTBTL_FILE_SHARED_POINTER 1 /* its shared pointer is used */
void rustbtl_file(int32_t how, uint32_t ranks, void *file);
/* Before and after a file is opened by the ranks of a communicator, to be written to. `before`:
 * what the first one gave; `file`: NULL if it could not be. What is done to it is repeated, if that
 * is possible. */
int64_t rustbtl_file_opens(void *comm, uint32_t size);
void rustbtl_file_opened(int64_t before, void *file);
void rustbtl_file_closed(void *file);
/* MPI_File_delete begins (not 0), or has ended. */
void rustbtl_file_deletes(int32_t begins);

#pragma GCC visibility pop

#endif

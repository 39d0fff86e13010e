/* To be preloaded: an Open MPI of another release. */
#include <mpi.h>
#include <string.h>

int PMPI_Get_library_version(char *version, int *length)
{
    strcpy(version, "Open MPI v9.8.7, package: of a test");
    *length = (int) strlen(version);
    return MPI_SUCCESS;
}

/* Opens libmpi for itself alone, as Python does for mpi4py: none of its symbols is shown to what
 * Open MPI loads. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*init)(int *, char ***) = (int (*)(int *, char ***)) dlsym(library, "MPI_Init");
    int (*finalize)(void) = (int (*)(void)) dlsym(library, "MPI_Finalize");
    return init == NULL || finalize == NULL || init(NULL, NULL) != 0 || finalize() != 0;
}

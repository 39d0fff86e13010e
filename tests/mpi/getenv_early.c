/* ranks: 1,2,4 ; nodes: 1,2 */
/* Threads that read the environment while MPI_Init runs, as Open MPI's own do: nobody takes the
 * array away from them. */
#include "check.h"
#include <pthread.h>

static volatile int over;

static void *look(void *unused)
{
    while (!over)
        if (getenv("THERE_IS_NO_SUCH_VARIABLE"))
            abort();
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, look, NULL))
            return 1;
    check_begin(&argc, &argv);
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return check_end();
}

/* Rank 0 seeds its random numbers with the date in each round, and sends all what it has drawn.
 * A rank 0 that reads another date in replay draws something else than others have received.
 * With ROOTS, one rank that was drawn sends to all, too: then ranks may wait for different ones.
 *
 * usage: by_date ROUNDS [FAILED CHECKPOINT] [roots|signals]
 *
 * When the file CHECKPOINT has been there for so many rounds as take two seconds, rank 1 kills
 * itself, if there is no file FAILED yet. The last rank polls for CHECKPOINT: what the others do
 * does not depend on files, and is the same in replay. With SIGNALS, handlers read the date,
 * wherever their thread is. */
#include <mpi.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/time.h>
#include <unistd.h>

enum { ROUND_US = 20000, ROUNDS_TO_FAILURE = 2200000 / ROUND_US, ROUNDS_AFTER = 60 };

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

static volatile time_t handled = 0;

static void on_timer(int number)
{
    (void) number;
    handled = time(NULL);
}

static void start_timer(void)
{
    struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_RESTART };
    struct itimerval each = { .it_interval.tv_usec = 1000, .it_value.tv_usec = 1000 };
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &each, NULL);
}

int main(int argc, char **argv)
{
    int me, np, roots = argc > 1 && 0 == strcmp(argv[argc - 1], "roots");
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    const char *failed = argc > 3 ? argv[2] : NULL, *checkpoint = argc > 3 ? argv[3] : NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (argc > 1 && 0 == strcmp(argv[argc - 1], "signals"))
        start_timer();
    uint64_t hash = 0;
    time_t last = 0;
    int backwards = 0, since = 0;
    for (int i = 0; i < rounds; i++) {
        uint64_t drawn = 0;
        if (me == 0) {
            time_t stored, now = time(&stored);
            backwards += now < last || stored != now;
            last = now;
            srand((unsigned) now);
            drawn = (uint64_t) rand();
        }
        MPI_Bcast(&drawn, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        hash = mix(hash, drawn);
        if (roots) {
            uint64_t word = mix(hash, (uint64_t) i);
            MPI_Bcast(&word, 1, MPI_UINT64_T, (int) (drawn % (uint64_t) np), MPI_COMM_WORLD);
            hash = mix(hash, word);
        }
        if (checkpoint) {
            if (since > 0 || (me == np - 1 && 0 == access(checkpoint, F_OK)))
                since++;
            MPI_Bcast(&since, 1, MPI_INT, np - 1, MPI_COMM_WORLD);
            if (since == ROUNDS_TO_FAILURE && me == 1 && open(failed, O_CREAT | O_EXCL, 0600) >= 0)
                raise(SIGKILL);
            if (since == ROUNDS_TO_FAILURE + ROUNDS_AFTER)
                break;
        }
        usleep(ROUND_US);
    }
    uint64_t first = hash;
    MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    int wrong = (first != hash) + 2 * (backwards > 0);
    if (wrong)
        fprintf(stderr, "rank %d: %s%s\n", me, wrong & 1 ? "rank 0 has drawn something else " : "",
                wrong & 2 ? "the date went backwards" : "");
    MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %s\n", wrong ? "contradicts itself" : "consistent");
    MPI_Finalize();
    return 0;
}

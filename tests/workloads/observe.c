/* Everybody sends to everybody and takes what comes first, in all the ways in which MPI tells a
 * program what came first; what is observed goes into what is sent. Each round is logged.
 * usage: observe ROUNDS FOLDER (the file of a rank: FOLDER/observed.RANK)
 * After an eighth of the rounds FOLDER/begun is there. Before the last quarter each rank waits for
 * FOLDER/complete, and before the last round for FOLDER/end: in no call of MPI, so that nothing is
 * to be observed meanwhile. */
#include <mpi.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { WAYS = 10, PEERS_MAX = 64, OTHER = 100 };

static int me, np, posted;
static uint64_t digest, got[PEERS_MAX];
static MPI_Request wanted[PEERS_MAX];

static void observe(uint64_t what)
{
    digest = (digest ^ what) * 0x9E3779B97F4A7C15ull;
    digest ^= digest >> 29;
}

/* A pause that the program does not notice but the network does. */
static void jitter(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t x = ((uint64_t) now.tv_nsec + (uint64_t) me * 7919) * 0x9E3779B97F4A7C15ull;
    if ((x >> 61) == 0)
        usleep((useconds_t) (x >> 32) % 300);
}

static void taken(int place, const MPI_Status *status)
{
    observe((uint64_t) place);
    observe((uint64_t) status->MPI_SOURCE);
    observe(got[place]);
}

static void by_waitany(void)
{
    for (int left = posted; left > 0; left--) {
        MPI_Status status;
        int place;
        MPI_Waitany(posted, wanted, &place, &status);
        taken(place, &status);
    }
}

static void by_testany(void)
{
    for (int left = posted; left > 0;) {
        MPI_Status status;
        int place, flag;
        MPI_Testany(posted, wanted, &place, &flag, &status);
        observe((uint64_t) flag);
        if (flag) {
            taken(place, &status);
            left--;
        }
    }
}

static void by_some(int wait)
{
    for (int left = posted; left > 0;) {
        MPI_Status statuses[PEERS_MAX];
        int places[PEERS_MAX], count;
        if (wait)
            MPI_Waitsome(posted, wanted, &count, places, statuses);
        else
            MPI_Testsome(posted, wanted, &count, places, statuses);
        observe((uint64_t) count);
        for (int i = 0; i < count; i++, left--)
            taken(places[i], &statuses[i]);
    }
}

static void by_test(void)
{
    for (int left = posted; left > 0;) {
        for (int place = 0; place < posted; place++) {
            MPI_Status status;
            int flag;
            if (wanted[place] == MPI_REQUEST_NULL)
                continue;
            MPI_Test(&wanted[place], &flag, &status);
            observe((uint64_t) flag);
            if (flag) {
                taken(place, &status);
                left--;
            }
        }
    }
}

static void by_get_status(void)
{
    for (int left = posted; left > 0;) {
        for (int place = 0; place < posted; place++) {
            MPI_Status status;
            int flag;
            if (wanted[place] == MPI_REQUEST_NULL)
                continue;
            MPI_Request_get_status(wanted[place], &flag, &status);
            observe((uint64_t) flag);
            if (flag) {
                MPI_Wait(&wanted[place], MPI_STATUS_IGNORE);
                taken(place, &status);
                left--;
            }
        }
    }
}

static void by_testall(void)
{
    MPI_Status statuses[PEERS_MAX];
    int flag = 0;
    while (!flag) {
        MPI_Testall(posted, wanted, &flag, statuses);
        observe((uint64_t) flag);
    }
    for (int place = 0; place < posted; place++)
        taken(place, &statuses[place]);
}

static void by_probe(int tag, int claim)
{
    for (int i = 0; i < np - 1; i++) {
        MPI_Status status;
        MPI_Message message;
        int flag = 0;
        while (!flag) {
            if (claim)
                MPI_Improbe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, &message, &status);
            else
                MPI_Iprobe(MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &flag, &status);
            observe((uint64_t) flag);
        }
        if (claim)
            MPI_Mrecv(&got[i], 1, MPI_UINT64_T, &message, &status);
        else
            MPI_Recv(&got[i], 1, MPI_UINT64_T, status.MPI_SOURCE, tag, MPI_COMM_WORLD, &status);
        taken(i, &status);
    }
}

/* Blocking receives, and one that is cancelled in time or not. */
static void by_receive(int tag)
{
    int before = (me + np - 1) % np, cancelled;
    MPI_Request sent, late;
    MPI_Status status;
    uint64_t value = digest, other = 0;
    for (int i = 0; i < np - 1; i++) {
        MPI_Recv(&got[i], 1, MPI_UINT64_T, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &status);
        taken(i, &status);
    }
    MPI_Irecv(&other, 1, MPI_UINT64_T, MPI_ANY_SOURCE, OTHER, MPI_COMM_WORLD, &late);
    jitter();
    MPI_Isend(&value, 1, MPI_UINT64_T, (me + 1) % np, OTHER, MPI_COMM_WORLD, &sent);
    jitter();
    MPI_Cancel(&late);
    MPI_Wait(&late, &status);
    MPI_Test_cancelled(&status, &cancelled);
    observe((uint64_t) cancelled);
    if (cancelled)
        MPI_Recv(&other, 1, MPI_UINT64_T, before, OTHER, MPI_COMM_WORLD, &status);
    observe(other);
    MPI_Wait(&sent, MPI_STATUS_IGNORE);
}

static void round_of(int round)
{
    int way = round % WAYS, tag = round % 5;
    MPI_Request sent[PEERS_MAX];
    uint64_t value = digest;
    posted = way < 7 ? np - 1 : 0;
    for (int place = 0; place < posted; place++)
        MPI_Irecv(&got[place], 1, MPI_UINT64_T, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD,
                  &wanted[place]);
    for (int i = 1; i < np; i++) {
        jitter();
        MPI_Isend(&value, 1, MPI_UINT64_T, (me + i) % np, tag, MPI_COMM_WORLD, &sent[i - 1]);
    }
    switch (way) {
    case 0: by_waitany(); break;
    case 1: by_testany(); break;
    case 2: by_some(1); break;
    case 3: by_some(0); break;
    case 4: by_test(); break;
    case 5: by_testall(); break;
    case 6: by_get_status(); break;
    case 7: by_probe(tag, 0); break;
    case 8: by_probe(tag, 1); break;
    default: by_receive(tag); break;
    }
    MPI_Waitall(np - 1, sent, MPI_STATUSES_IGNORE);
}

static const char *in_folder(const char *folder, const char *file)
{
    static char name[4096];
    snprintf(name, sizeof name, "%s/%s", folder, file);
    return name;
}

static void wait_for(const char *file)
{
    while (access(file, F_OK))
        usleep(1000);
}

int main(int argc, char **argv)
{
    const char *folder = argc > 2 ? argv[2] : "/tmp";
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    char name[4096], line[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    digest = (uint64_t) me;
    snprintf(name, sizeof name, "%s/observed.%d", folder, me);
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || np > PEERS_MAX)
        MPI_Abort(MPI_COMM_WORLD, 3);
    for (int round = 0; round < rounds; round++) {
        if (me == 0 && round == rounds / 8)
            close(open(in_folder(folder, "begun"), O_WRONLY | O_CREAT, 0600));
        if (round == rounds - rounds / 4)
            wait_for(in_folder(folder, "complete"));
        if (round == rounds - 1)
            wait_for(in_folder(folder, "end"));
        round_of(round);
        int length = snprintf(line, sizeof line, "%d %016llx\n", round,
                              (unsigned long long) digest);
        if (write(file, line, (size_t) length) != length)
            MPI_Abort(MPI_COMM_WORLD, 4);
        /* Now and then something that is the library's own. */
        if (round % 50 == 49) {
            uint64_t sum, mine = digest;
            MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_BXOR, MPI_COMM_WORLD);
            observe(sum);
        }
    }
    close(file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        printf("OK\n");
    MPI_Finalize();
    return 0;
}

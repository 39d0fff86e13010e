/*
 * torn_set GATE DONE: ranks send to the next one and receive from the one before, as far as the
 * gate lets them. Once, at iteration 100, rank 1 makes the file DONE and shuts down its connections
 * to other machines; if the file is there it does not.
 */
#define _GNU_SOURCE
#include "gate.h"
#include "hash.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { ITERATIONS = 300, TORN_AT = 100, DESCRIPTORS = 1024, WORDS = 512 };

static void tear(const char *done)
{
    /* Not by the C library: a rollback would put back that it is not there. */
    int mark = (int) syscall(SYS_openat, AT_FDCWD, done, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (mark < 0)
        return;
    close(mark);
    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        struct sockaddr_in here, there;
        socklen_t length = sizeof here, other = sizeof there;
        if (getsockname(fd, (struct sockaddr *) &here, &length) || AF_INET != here.sin_family)
            continue;
        if (getpeername(fd, (struct sockaddr *) &there, &other))
            continue;
        if (here.sin_addr.s_addr != there.sin_addr.s_addr)
            shutdown(fd, SHUT_RDWR);
    }
}

int main(int argc, char **argv)
{
    static uint64_t mine[WORDS], next[WORDS];
    int me, np, limit = 0;
    uint64_t hash = 0, all = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (argc < 3) {
        fprintf(stderr, "usage: torn_set GATE DONE\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int k = 0; k < ITERATIONS; k++) {
        wait_at(argv[1], k, &limit);
        if (TORN_AT == k && 1 == me)
            tear(argv[2]);
        for (int i = 0; i < WORDS; i++)
            mine[i] = mix(hash + (uint64_t) (k * WORDS + i + me));
        MPI_Sendrecv(mine, WORDS, MPI_UINT64_T, (me + 1) % np, 1, next, WORDS, MPI_UINT64_T,
                     (me + np - 1) % np, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        hash = mix(hash ^ next[k % WORDS]);
    }
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (0 == me)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

/* What TCP itself takes between two nodes: a socket of our own, nothing of MPI on the way.
 *
 * usage: wire latency SIZES REPEATS     half a round trip, in microseconds (at least 1 byte)
 *        wire bandwidth SIZES REPEATS   one way, 16 messages and an answer: megabytes (10^6) a
 *                                       second
 * Two ranks; MPI only gives the one the address of the other. Receivers poll, as MPI does. Prints
 * two lines a size: wire BYTES MEDIAN, and wire-best BYTES BEST.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPEATS_MAX = 1001, WINDOW = 16 };

static int peer = -1, me;
static char *buffer;

static void fail(const char *what)
{
    perror(what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void receive_all(size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        ssize_t n = recv(peer, buffer + got, bytes - got, MSG_DONTWAIT);
        if (n > 0) got += n;
        else if (0 == n || (errno != EAGAIN && errno != EINTR)) fail("wire: recv");
    }
}

static void send_all(size_t bytes)
{
    for (size_t put = 0; put < bytes;) {
        ssize_t n = send(peer, buffer + put, bytes - put, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) put += n;
        else if (errno != EAGAIN && errno != EINTR) fail("wire: send");
    }
}

/* The first address that is not the loopback's: where the emulated nodes see each other. */
static struct in_addr own_address(void)
{
    struct in_addr address = { htonl(INADDR_LOOPBACK) };
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) fail("wire: getifaddrs");
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET) continue;
        if (one->ifa_flags & IFF_LOOPBACK) continue;
        address = ((struct sockaddr_in *) one->ifa_addr)->sin_addr;
        break;
    }
    freeifaddrs(all);
    return address;
}

static void connect_both(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t length = sizeof address;
    int one = 1, own = socket(AF_INET, SOCK_STREAM, 0);
    if (own < 0) fail("wire: socket");
    if (0 == me) {
        address.sin_addr = own_address();
        if (bind(own, (struct sockaddr *) &address, sizeof address) != 0) fail("wire: bind");
        if (listen(own, 1) != 0) fail("wire: listen");
        if (getsockname(own, (struct sockaddr *) &address, &length) != 0) fail("wire: name");
        MPI_Send(&address, sizeof address, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        peer = accept(own, NULL, NULL);
        if (peer < 0) fail("wire: accept");
        close(own);
    } else {
        MPI_Recv(&address, sizeof address, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (connect(own, (struct sockaddr *) &address, sizeof address) != 0) fail("wire: connect");
        peer = own;
    }
    if (setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) fail("wire: nodelay");
}

/* Seconds for half a round trip, or for a message of a window. */
static double each(int window, size_t bytes, int rounds)
{
    double start = MPI_Wtime();
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < (window ? window : 1); k++) {
            if (0 == me) send_all(bytes);
            else receive_all(bytes);
        }
        if (0 == me) receive_all(window ? 1 : bytes);
        else send_all(window ? 1 : bytes);
    }
    return (MPI_Wtime() - start) / rounds / (window ? window : 2);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int repeats = argc > 3 ? atoi(argv[3]) : 0;
    if (size != 2 || repeats < 1 || repeats > REPEATS_MAX) {
        if (0 == me) fprintf(stderr, "usage: wire latency|bandwidth SIZES REPEATS, two ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int window = strcmp(argv[1], "latency") ? WINDOW : 0;
    connect_both();
    for (char *at = argv[2]; *at;) {
        size_t bytes = strtoul(at, &at, 10), sent = bytes ? bytes : 1;
        double values[REPEATS_MAX];
        if (*at) at++;
        buffer = malloc(sent);
        memset(buffer, 1, sent);
        MPI_Barrier(MPI_COMM_WORLD);
        /* Both sides take the rounds from the first one's measurement: some 20 ms a repeat. */
        int rounds = (int) (0.02 / each(window, sent, 20) / (window ? window : 2)) + 3;
        MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
        for (int i = 0; i < repeats; i++) {
            double seconds = each(window, sent, rounds);
            values[i] = window ? bytes / seconds / 1e6 : 1e6 * seconds;
        }
        qsort(values, repeats, sizeof values[0], by_value);
        if (0 == me) {
            printf("wire %zu %.6g\n", bytes, values[repeats / 2]);
            printf("wire-best %zu %.6g\n", bytes, values[window ? repeats - 1 : 0]);
            fflush(stdout);
        }
        free(buffer);
    }
    close(peer);
    MPI_Finalize();
    return 0;
}

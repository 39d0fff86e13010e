/* ranks: 2,4 ; nodes: 1,2 ; files: yes */
/* A rank sends a long message and is then away from MPI for as long as its receiver has not got it:
 * MPI_Send (or MPI_Wait) waited for that, or somebody goes on in its place. MPI 3.1 section
 * 3.7.4 asks for no more than that a call ends; a receiver must not wait for the sender's
 * next call although its last one has ended. It comes back to MPI only for sends that are complete
 * at once, and so never looks for requests: that is to be away, too. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>

#define ROUNDS 3

static char place[400];

static void name_of(char *name, size_t size, int round)
{
    snprintf(name, size, "%s/%d.%d", place, round, me / 2);
}

enum away { OUTSIDE, SENDING };

/* Until there is a file of this name. Returns the number of messages that were sent meanwhile. */
static int be_away(enum away away, const char *name, int peer)
{
    int sent = 0;
    while (access(name, F_OK) != 0) {
        usleep(1000);
        if (away == SENDING) {
            char byte = (char)sent++;
            MPI_Send(&byte, 1, MPI_CHAR, peer, 2, MPI_COMM_WORLD);
        }
    }
    unlink(name);
    return sent;
}

static void send_and_be_away(int n, int nonblocking, int late_ms, enum away away, int round)
{
    unsigned char *b = buffer_new((size_t)n);
    int peer = me ^ 1;
    char name[500];
    int sent = 0;
    STEP("away (%d), %d bytes, nonblocking %d, receiver late by %d ms", away, n, nonblocking,
         late_ms);
    name_of(name, sizeof name, round);
    if (me % 2 == 0) {
        fill(b, (size_t)n, key_of(me, 1, n, round));
        if (nonblocking) {
            MPI_Request r;
            MPI_Isend(b, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD, &r);
            MPI_Wait(&r, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(b, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
        }
        memset(b, 0, (size_t)n); /* it is the program's again */
        sent = be_away(away, name, peer);
        MPI_Send(&sent, 1, MPI_INT, peer, 3, MPI_COMM_WORLD);
    } else {
        usleep((useconds_t)late_ms * 1000);
        MPI_Recv(b, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        VERIFY(b, n, key_of(peer, 1, n, round), "while the sender was away");
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        CHECK(file >= 0, "%s: %s", name, strerror(errno));
        close(file);
        MPI_Recv(&sent, 1, MPI_INT, peer, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < sent; i++) {
            char byte;
            MPI_Recv(&byte, 1, MPI_CHAR, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(byte == (char)i, "message %d of those sent meanwhile is %d", i, byte);
        }
    }
    buffer_free(b);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {100, 70000, 1 << 20, 12 << 20};
    check_begin(&argc, &argv);
    if (me == 0) {
        const char *directory = getenv("CHECK_DIRECTORY");
        snprintf(place, sizeof place, "%s/away.XXXXXX", directory ? directory : "/tmp");
        CHECK(mkdtemp(place) != NULL, "%s: %s", place, strerror(errno));
    }
    MPI_Bcast(place, sizeof place, MPI_CHAR, 0, MPI_COMM_WORLD);
    int round = 0;
    for (int repeat = 0; repeat < ROUNDS; repeat++)
        for (int i = 0; i < LENGTH(sizes); i++)
            for (int nonblocking = 0; nonblocking < 2; nonblocking++)
                for (int late_ms = 0; late_ms <= 10; late_ms += 10)
                    for (enum away away = OUTSIDE; away <= SENDING; away++)
                        send_and_be_away(sizes[i], nonblocking, late_ms, away, round++);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        CHECK(rmdir(place) == 0, "%s: %s", place, strerror(errno));
    return check_end();
}

/* ranks: 2,3,4 ; nodes: 1,2,3 ; args: send | bsend | free | large | tree */
/* A rank that is in MPI_Finalize, or has only that before it, still delivers what it has sent: to
 * receivers that come late. MPI 3.1 section 8.7, examples 8.3 to 8.7. Rank 0 is the late one. */
#include "check.h"

enum { EACH = 50 };
static int size_of(int source, int k)
{
    return (source * 37 + k * 111) % 3000;
}

static void small_sends(bool buffered)
{
    static char attached[EACH * (3000 + MPI_BSEND_OVERHEAD)];
    unsigned char *b = buffer_new(3000);
    if (buffered)
        MPI_Buffer_attach(attached, sizeof attached);
    for (int k = 0; k < EACH; k++) {
        int n = size_of(me, k);
        fill(b, (size_t)n, key_of(me, k, n, 0));
        if (buffered)
            MPI_Bsend(b, n, MPI_BYTE, 0, k, MPI_COMM_WORLD);
        else
            MPI_Send(b, n, MPI_BYTE, 0, k, MPI_COMM_WORLD);
    }
    buffer_free(b); /* no detach: MPI_Finalize does it */
}

static void receive_small(void)
{
    unsigned char *b = buffer_new(3000);
    for (int source = np - 1; source > 0; source--)
        for (int k = EACH - 1; k >= 0; k--) {
            int n = size_of(source, k);
            MPI_Recv(b, n, MPI_BYTE, source, k, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            VERIFY(b, n, key_of(source, k, n, 0), "from a rank that finalizes");
        }
    buffer_free(b);
}

/* Sends that are freed at once; the memory stays until the barrier, which is after the receives. */
static void freed(int n)
{
    unsigned char *b = buffer_new((size_t)n);
    if (me) {
        MPI_Request r;
        fill(b, (size_t)n, key_of(me, 1, n, 0));
        MPI_Isend(b, n, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &r);
        MPI_Request_free(&r);
    } else {
        sleep_ms(200);
        for (int source = 1; source < np; source++) {
            MPI_Recv(b, n, MPI_BYTE, source, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            VERIFY(b, n, key_of(source, 1, n, 0), "from a freed send");
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        buffer_free(b); /* the others' may be in use to the very end */
}

/* The last message of each rank goes along a chain: everybody but one is in MPI_Finalize already.
 */
static void chain(void)
{
    int x = 0;
    if (me == np - 1) {
        MPI_Send(&me, 1, MPI_INT, me - 1, 3, MPI_COMM_WORLD);
        return;
    }
    sleep_ms(60 * (np - me));
    MPI_Recv(&x, 1, MPI_INT, me + 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQ(x, me + 1, "chain");
    if (me)
        MPI_Send(&me, 1, MPI_INT, me - 1, 3, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    const char *how = argc > 1 ? argv[1] : "send";
    STEP("%s", how);
    if (!strcmp(how, "free")) {
        freed(100);
    } else if (!strcmp(how, "large")) {
        freed(2000000);
    } else if (!strcmp(how, "tree")) {
        chain();
    } else if (me) {
        small_sends(!strcmp(how, "bsend"));
    } else {
        sleep_ms(300);
        receive_small();
    }
    if (me == 0) {
        printf("OK\n");
        fflush(stdout);
    }
    STEP("MPI_Finalize");
    MPI_Finalize();
    return 0;
}

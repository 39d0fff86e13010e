/* ranks: 1,2,3,4,5,7 ; nodes: 1,2,3 */
/* Nonblocking collectives: all of them outstanding at once, on several communicators, completed in
 * orders that differ between the ranks, with point-to-point between. MPI 3.1 section 5.12. */
#include "check.h"

enum { KINDS = 15, MAX = 16384 };

struct operation {
    int kind, n, root;
    long *out, *in;
    int counts[64], at[64];
};

static void start(struct operation *o, int kind, int n, int root, MPI_Comm comm, MPI_Request *r)
{
    size_t all = (size_t)(n * np + np + 1);
    *o = (struct operation){.kind = kind, .n = n, .root = root};
    o->out = malloc(all * sizeof(long));
    o->in = malloc(all * sizeof(long));
    for (size_t k = 0; k < all; k++) {
        o->out[k] = me * 1000003 + (long)k;
        o->in[k] = -1;
    }
    for (int k = 0; k < np; k++) {
        o->counts[k] = n;
        o->at[k] = k * n;
    }
    switch (kind) {
    case 0: MPI_Ibarrier(comm, r); break;
    case 1: MPI_Ibcast(o->out, n, MPI_LONG, root, comm, r); break;
    case 2: MPI_Igather(o->out, n, MPI_LONG, o->in, n, MPI_LONG, root, comm, r); break;
    case 3:
        MPI_Igatherv(o->out, n, MPI_LONG, o->in, o->counts, o->at, MPI_LONG, root, comm, r);
        break;
    case 4: MPI_Iscatter(o->out, n, MPI_LONG, o->in, n, MPI_LONG, root, comm, r); break;
    case 5:
        MPI_Iscatterv(o->out, o->counts, o->at, MPI_LONG, o->in, n, MPI_LONG, root, comm, r);
        break;
    case 6: MPI_Iallgather(o->out, n, MPI_LONG, o->in, n, MPI_LONG, comm, r); break;
    case 7: MPI_Iallgatherv(o->out, n, MPI_LONG, o->in, o->counts, o->at, MPI_LONG, comm, r); break;
    case 8: MPI_Ialltoall(o->out, n, MPI_LONG, o->in, n, MPI_LONG, comm, r); break;
    case 9:
        MPI_Ialltoallv(o->out, o->counts, o->at, MPI_LONG, o->in, o->counts, o->at, MPI_LONG, comm,
                       r);
        break;
    case 10: MPI_Ireduce(o->out, o->in, n, MPI_LONG, MPI_SUM, root, comm, r); break;
    case 11: MPI_Iallreduce(o->out, o->in, n, MPI_LONG, MPI_SUM, comm, r); break;
    case 12: MPI_Ireduce_scatter_block(o->out, o->in, n, MPI_LONG, MPI_SUM, comm, r); break;
    case 13: MPI_Iscan(o->out, o->in, n, MPI_LONG, MPI_SUM, comm, r); break;
    default: MPI_Iexscan(o->out, o->in, n, MPI_LONG, MPI_SUM, comm, r); break;
    }
}

static void finish(struct operation *o)
{
    long sum = 1000003l * np * (np - 1) / 2;
    for (int p = 0; p < np; p++)
        for (int k = 0; k < o->n; k++) {
            long got = o->in[p * o->n + k], i = (long)p * o->n + k, none = -1, expected = none;
            bool first = p == 0, root = me == o->root;
            switch (o->kind) {
            case 1:
                got = o->out[k];
                expected = o->root * 1000003l + k;
                break;
            case 2:
            case 3: expected = root ? p * 1000003l + k : none; break;
            case 4:
            case 5: expected = first ? o->root * 1000003l + (long)me * o->n + k : none; break;
            case 6:
            case 7: expected = p * 1000003l + k; break;
            case 8:
            case 9: expected = p * 1000003l + (long)me * o->n + k; break;
            case 10: expected = first && root ? sum + (long)np * k : none; break;
            case 11: expected = first ? sum + (long)np * k : none; break;
            case 12: expected = first ? sum + (long)np * ((long)me * o->n + k) : none; break;
            case 13: expected = first ? 1000003l * me * (me + 1) / 2 + (me + 1l) * k : none; break;
            case 14:
                expected = first && me ? 1000003l * me * (me - 1) / 2 + (long)me * k : none;
                break;
            }
            if (o->kind == 14 && me == 0)
                continue; /* undefined */
            if (got != expected)
                FAIL("kind %d, %d longs, root %d: element %ld: expected %ld, got %ld", o->kind,
                     o->n, o->root, i, expected, got);
        }
    free(o->out);
    free(o->in);
}

static void all_at_once(uint64_t *seed, MPI_Comm *comm, int comms, int largest)
{
    enum { N = 60 };
    static struct operation o[N];
    MPI_Request r[N + 2];
    uint64_t mine = *seed * 31 + (uint64_t)me;
    int in = -1, next = (me + 1) % np, previous = (me + np - 1) % np;
    for (int k = 0; k < N; k++) {
        int kind = (int)random_below(seed, KINDS), n = (int)random_below(seed, largest);
        int root = (int)random_below(seed, np), c = (int)random_below(seed, comms);
        start(&o[k], kind, n, root, comm[c], &r[k]);
        if (random_below(&mine, 8) == 0) {
            int flag;
            MPI_Test(&r[random_below(&mine, k + 1)], &flag, MPI_STATUS_IGNORE);
        }
    }
    MPI_Irecv(&in, 1, MPI_INT, previous, 4, MPI_COMM_WORLD, &r[N]);
    MPI_Isend(&me, 1, MPI_INT, next, 4, MPI_COMM_WORLD, &r[N + 1]);
    int way = (int)random_below(&mine, 4);
    if (way == 0) {
        MPI_Waitall(N + 2, r, MPI_STATUSES_IGNORE);
    } else if (way == 1) { /* an order of one's own */
        for (int k = 0; k < N + 2; k++) {
            int other = (k * 37 + me * 11) % (N + 2);
            MPI_Wait(&r[other], MPI_STATUS_IGNORE);
        }
        MPI_Waitall(N + 2, r, MPI_STATUSES_IGNORE);
    } else if (way == 2) {
        for (int flag = 0; !flag;)
            MPI_Testall(N + 2, r, &flag, MPI_STATUSES_IGNORE);
    } else {
        for (int k = 0; k < N + 2; k++) {
            int index;
            MPI_Waitany(N + 2, r, &index, MPI_STATUS_IGNORE);
        }
        MPI_Waitall(N + 2, r, MPI_STATUSES_IGNORE);
    }
    CHECK_EQ(in, previous, "point-to-point among the collectives");
    for (int k = 0; k < N; k++)
        finish(&o[k]);
}

/* Ibarrier completes nowhere before all have started it. */
static void ibarrier_waits(void)
{
    STEP("ibarrier waits");
    for (int late = 0; late < np && np > 1; late++) {
        MPI_Request r;
        int flag = 0;
        if (me == late) {
            sleep_ms(5);
            MPI_Iprobe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
            CHECK(!flag, "an Ibarrier ended before all had started");
        }
        MPI_Ibarrier(MPI_COMM_WORLD, &r);
        while (!flag)
            MPI_Test(&r, &flag, MPI_STATUS_IGNORE);
        if (me != late)
            MPI_Send(NULL, 0, MPI_BYTE, late, 9, MPI_COMM_WORLD);
        else
            for (int k = 1; k < np; k++)
                MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    uint64_t seed = (uint64_t)environment_number("CHECK_SEED", 1);
    MPI_Comm comm[3] = {MPI_COMM_WORLD};
    MPI_Comm_dup(MPI_COMM_WORLD, &comm[1]);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm[2]);
    for (int round = 0; round < (int)scaled(40); round++) {
        STEP("round %d", round);
        all_at_once(&seed, comm, 1 + round % 3, round % 8 == 7 ? MAX : 200);
    }
    ibarrier_waits();
    MPI_Comm_free(&comm[1]);
    MPI_Comm_free(&comm[2]);
    return check_end();
}

/* Nonblocking collectives that overlap: eight at a time of all ranks, of each node and of each
 * half, of several sizes, while messages go round and the program computes. They are completed by
 * one of the calls that wait or test, in whatever order these say; the hash has every bit of every
 * result in a fixed one.
 * usage: collectives_overlap ITERATIONS [GATE]; PACE_US: hash.h */
#include "folds.h"
#include "gate.h"

enum { WORDS = 1 << 12, CALLS = 8, ALL = CALLS + 2, RANKS = 16 };

static double from[CALLS][WORDS], into[CALLS][WORDS];
static int lengths[CALLS][RANKS], places[CALLS][RANKS];
static MPI_Op op;
static MPI_Datatype matrix;
static uint64_t hash;

static int count_of(uint64_t draw)
{
    static const int counts[] = { 0, 1, 3, 16, 100, 500, 1024, WORDS };
    return counts[draw % (sizeof counts / sizeof *counts)];
}

/* Begins one of the kinds. */
static void begin(int call, int kind, MPI_Comm comm, int count, int root, MPI_Request *request)
{
    double *gives = from[call], *gets = into[call];
    int np, share, *length = lengths[call], *place = places[call];
    MPI_Comm_size(comm, &np);
    share = count / np;
    root %= np;
    for (int rank = 0, at = 0; rank < np; at += length[rank++]) {
        /* The same between each two ranks. */
        length[rank] = share;
        place[rank] = at;
    }
    switch (kind) {
    case 0:
        MPI_Iallreduce(gives, gets, count, MPI_DOUBLE, MPI_SUM, comm, request);
        break;
    case 1:
        memcpy(gets, gives, (size_t) count * sizeof *gets);
        MPI_Ibcast(gets, count, MPI_DOUBLE, root, comm, request);
        break;
    case 2:
        MPI_Ialltoallv(gives, length, place, MPI_DOUBLE, gets, length, place, MPI_DOUBLE, comm,
                       request);
        break;
    case 3:
        MPI_Iscan(gives, gets, count, MPI_DOUBLE, MPI_SUM, comm, request);
        break;
    case 4:
        MPI_Igatherv(gives, share, MPI_DOUBLE, gets, length, place, MPI_DOUBLE, root, comm,
                     request);
        break;
    case 5:
        MPI_Ireduce_scatter_block(gives, gets, share, MPI_DOUBLE, MPI_SUM, comm, request);
        break;
    case 6:
        MPI_Iallreduce(gives, gets, count / 2, matrix, op, comm, request);
        break;
    case 7:
        MPI_Iallgather(gives, share, MPI_DOUBLE, gets, share, MPI_DOUBLE, comm, request);
        break;
    default:
        MPI_Ibarrier(comm, request);
        break;
    }
}

/* By each call that completes some. */
static void complete(int how, MPI_Request requests[ALL])
{
    int done = 0, found = 0, at, which[ALL];
    switch (how) {
    case 0:
        MPI_Waitall(ALL, requests, MPI_STATUSES_IGNORE);
        return;
    case 1:
        for (int i = ALL - 1; i >= 0; i--)
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        return;
    case 2:
        while (!done)
            MPI_Testall(ALL, requests, &done, MPI_STATUSES_IGNORE);
        return;
    case 3:
        for (MPI_Waitany(ALL, requests, &at, MPI_STATUS_IGNORE); MPI_UNDEFINED != at;)
            MPI_Waitany(ALL, requests, &at, MPI_STATUS_IGNORE);
        return;
    case 4:
        while (MPI_UNDEFINED != found)
            MPI_Waitsome(ALL, requests, &found, which, MPI_STATUSES_IGNORE);
        return;
    default:
        while (MPI_UNDEFINED != found)
            MPI_Testsome(ALL, requests, &found, which, MPI_STATUSES_IGNORE);
    }
}

static void one_round(int k, MPI_Comm comms[3], int me, int np)
{
    MPI_Request requests[ALL];
    uint64_t mine = mix(hash + (uint64_t) k), theirs = 0;
    for (int call = 0; call < CALLS; call++) {
        uint64_t draw = mix((uint64_t) k * CALLS + (uint64_t) call);
        for (int i = 0; i < WORDS; i++)
            from[call][i] = number(hash + (uint64_t) (i + call * me));
        memset(into[call], 0, sizeof into[call]);
        begin(call, (int) (draw % 9), comms[draw / 9 % 3], count_of(draw / 27), (int) (draw >> 40),
              &requests[call]);
    }
    MPI_Irecv(&theirs, 1, MPI_UINT64_T, (me + np - 1) % np, 5, MPI_COMM_WORLD, &requests[CALLS]);
    MPI_Isend(&mine, 1, MPI_UINT64_T, (me + 1) % np, 5, MPI_COMM_WORLD, &requests[CALLS + 1]);
    pace();
    complete(k % 6, requests);
    for (int call = 0; call < CALLS; call++)
        eat(&hash, into[call], sizeof into[call] / 8);
    eat(&hash, into[k % CALLS], sizeof into[0]);
    hash = mix(hash ^ theirs);
}

int main(int argc, char **argv)
{
    int me, np, iterations = argc > 1 ? atoi(argv[1]) : 400, limit = 0, here;
    const char *gate = argc > 2 ? argv[2] : NULL;
    MPI_Comm comms[3] = { MPI_COMM_WORLD };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    if (np > RANKS)
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comms[1]);
    MPI_Comm_rank(comms[1], &here);
    MPI_Comm_split(MPI_COMM_WORLD, here % 2, np - me, &comms[2]);
    MPI_Type_contiguous(4, MPI_UINT32_T, &matrix);
    MPI_Type_commit(&matrix);
    MPI_Op_create(multiply, 0, &op);
    for (int k = 0; k < iterations; k++) {
        wait_at(gate, k, &limit);
        one_round(k, comms, me, np);
    }
    print_hash(hash, 0);
    MPI_Op_free(&op);
    MPI_Type_free(&matrix);
    MPI_Comm_free(&comms[2]);
    MPI_Comm_free(&comms[1]);
    MPI_Finalize();
    return 0;
}

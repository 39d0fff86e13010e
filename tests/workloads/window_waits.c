/* What the program is told by calls that wait for messages, and windows. The last rank of each set
 * adds to the window of its first one and tells the last one of the next set, which tells that
 * first one. It has posted its receive long before, has begun to send something since, and reads
 * its window as soon as it is told: by MPI_Wait and its like, by tests, probes, and by other ways.
 * (In a replay what it is told is there at once, and what is added comes late.)
 * Sets are ranks next to each other, two and more; as many as there are ranks a node.
 * WAITS: only by calls that wait; else by those that ask whether it is there, too, and the
 * program says first that it asks again and again (docs/limits.md: what neighbours write comes by
 * messages then).
 * usage: window_waits ITERATIONS [GATE [RANKS_A_NODE [WAITS]]]; PACE_US: hash.h */
#include "hash.h"
#include "gate.h"

enum {
    WAIT, WAITALL, WAITANY, WAITSOME, TEST, TESTALL, TESTANY, TESTSOME, GET_STATUS, PERSISTENT,
    PROBE, IPROBE, MPROBE, IMPROBE, RECEIVE, SENDRECV, SYNCHRONOUS, RGET, BARRIER, BARRIER_TESTED,
    WAYS
};
enum { TOLD = 1, PASSED, BEGUN, MATCHED };

static int is_asking(int way)
{
    return way == TEST || way == TESTALL || way == TESTANY || way == TESTSOME ||
           way == GET_STATUS || way == IPROBE || way == IMPROBE || way == BARRIER_TESTED;
}

static int np, each, first, last, other_last;
static MPI_Win window;
static uint64_t *shared, got;

/* Everybody's iteration begins. */
static void begin(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What is added to the window of this set's first rank. */
static uint64_t part(int k, int set)
{
    return mix((uint64_t) k * 64 + (uint64_t) set);
}

static void add(int k)
{
    uint64_t one = part(k, first / each);
    usleep(500);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, first, 0, window);
    MPI_Accumulate(&one, 1, MPI_UINT64_T, first, 0, 1, MPI_UINT64_T, MPI_SUM, window);
    MPI_Win_unlock(first, window);
}

static void of_last(int k, int way)
{
    uint64_t data = 0;
    int passed;
    const int before = (last + np - each) % np, first_before = (first + np - each) % np;
    if (way == RGET) {
        /* Who gets something from there waits for this lock. */
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, other_last, 0, window);
        MPI_Get(&data, 1, MPI_UINT64_T, other_last, 1, 1, MPI_UINT64_T, window);
        MPI_Win_flush(other_last, window);
    }
    begin();
    add(k);
    if (way == RGET) {
        MPI_Win_unlock(other_last, window);
        return;
    }
    if (way == BARRIER || way == BARRIER_TESTED) {
        MPI_Request request;
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        return;
    }
    MPI_Sendrecv(&k, 1, MPI_INT, other_last, PASSED, &passed, 1, MPI_INT, before, PASSED,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (way == SYNCHRONOUS)
        MPI_Recv(&passed, 1, MPI_INT, first_before, MATCHED, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&k, 1, MPI_INT, first_before, TOLD, MPI_COMM_WORLD);
}

/* By requests: it is told when they are complete. */
static void await_requests(int way, MPI_Request *request)
{
    MPI_Request both[2] = {MPI_REQUEST_NULL, *request};
    int done = 0, which[2];
    switch (way) {
    case WAITALL:
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
        break;
    case WAITANY:
        MPI_Waitany(2, both, which, MPI_STATUS_IGNORE);
        break;
    case WAITSOME:
        MPI_Waitsome(2, both, &done, which, MPI_STATUSES_IGNORE);
        break;
    case TEST:
    case BARRIER_TESTED:
        while (!done)
            MPI_Test(&both[1], &done, MPI_STATUS_IGNORE);
        break;
    case TESTALL:
        while (!done)
            MPI_Testall(2, both, &done, MPI_STATUSES_IGNORE);
        break;
    case TESTANY:
        while (!done)
            MPI_Testany(2, both, which, &done, MPI_STATUS_IGNORE);
        break;
    case TESTSOME:
        while (!done)
            MPI_Testsome(2, both, &done, which, MPI_STATUSES_IGNORE);
        break;
    case GET_STATUS:
        while (!done)
            MPI_Request_get_status(both[1], &done, MPI_STATUS_IGNORE);
        break;
    default:
        MPI_Wait(&both[1], MPI_STATUS_IGNORE);
    }
    *request = both[1];
}

/* By a message that nothing was posted for; the window is read before it is received. */
static uint64_t await_message(int way)
{
    MPI_Message message = MPI_MESSAGE_NULL;
    uint64_t seen;
    int there = 0, k;
    while (way == IPROBE && !there)
        MPI_Iprobe(other_last, TOLD, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
    while (way == IMPROBE && !there)
        MPI_Improbe(other_last, TOLD, MPI_COMM_WORLD, &there, &message, MPI_STATUS_IGNORE);
    if (way == PROBE)
        MPI_Probe(other_last, TOLD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (way == MPROBE)
        MPI_Mprobe(other_last, TOLD, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
    seen = *(volatile uint64_t *) shared;
    if (message == MPI_MESSAGE_NULL)
        MPI_Recv(&k, 1, MPI_INT, other_last, TOLD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Mrecv(&k, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    return seen;
}

/* What is read as soon as the first rank is told. */
static uint64_t of_first(int k, int way)
{
    const int next = (first + each) % np, before = (first + np - each) % np;
    const int posts = way < PROBE, probes = way >= PROBE && way <= IMPROBE;
    int told, begun;
    uint64_t seen;
    MPI_Request request = MPI_REQUEST_NULL, begins;
    if (way == PERSISTENT) {
        MPI_Recv_init(&told, 1, MPI_INT, other_last, TOLD, MPI_COMM_WORLD, &request);
        MPI_Start(&request);
    } else if (posts)
        MPI_Irecv(&told, 1, MPI_INT, other_last, TOLD, MPI_COMM_WORLD, &request);
    begin();
    if (way == SYNCHRONOUS)
        MPI_Issend(&k, 1, MPI_INT, other_last, MATCHED, MPI_COMM_WORLD, &request);
    if (way == BARRIER || way == BARRIER_TESTED)
        MPI_Ibarrier(MPI_COMM_WORLD, &request);
    if (way == RGET) {
        MPI_Win_lock(MPI_LOCK_SHARED, other_last, 0, window);
        MPI_Rget(&got, 1, MPI_UINT64_T, other_last, 1, 1, MPI_UINT64_T, window, &request);
    }
    /* An action that waits for nothing. */
    MPI_Isend(&k, 1, MPI_INT, next, BEGUN, MPI_COMM_WORLD, &begins);
    if (probes)
        seen = await_message(way);
    else {
        if (way == RECEIVE)
            MPI_Recv(&told, 1, MPI_INT, other_last, TOLD, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else if (way == SENDRECV)
            MPI_Sendrecv(&k, 1, MPI_INT, first, BEGUN + 9, &told, 1, MPI_INT, other_last, TOLD,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            await_requests(way, &request);
        seen = *(volatile uint64_t *) shared;
    }
    if (way == SENDRECV)
        MPI_Recv(&told, 1, MPI_INT, first, BEGUN + 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (way == RGET)
        MPI_Win_unlock(other_last, window);
    if (way == PERSISTENT || way == GET_STATUS)
        MPI_Request_free(&request);
    MPI_Recv(&begun, 1, MPI_INT, before, BEGUN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&begins, MPI_STATUS_IGNORE);
    return seen;
}

int main(int argc, char **argv)
{
    int me, iterations = argc > 1 ? atoi(argv[1]) : 40, limit = 0;
    const char *gate = argc > 2 && argv[2][0] ? argv[2] : NULL;
    uint64_t hash = 0, sum = 0;
    long wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    each = argc > 3 ? atoi(argv[3]) : 2;
    first = me - me % each;
    last = first + each - 1;
    other_last = (last + each) % np;
    MPI_Win_allocate(2 * sizeof *shared, sizeof *shared, MPI_INFO_NULL, MPI_COMM_WORLD, &shared,
                     &window);
    shared[0] = shared[1] = 0;
    const int asks = argc <= 4;
    if (asks)
        MPI_Win_sync(window);
    for (int k = 0; k < iterations; k++) {
        int way = k % WAYS;
        while (!asks && is_asking(way))
            way = (way + 1) % WAYS;
        wait_at(gate, k, &limit);
        pace();
        if (me == last)
            of_last(k, way);
        else if (me == first) {
            uint64_t seen = of_first(k, way);
            sum += part(k, first / each);
            if (seen != sum) {
                wrong++;
                fprintf(stderr, "rank %d, iteration %d: wrong by way %d\n", me, k, way);
            }
            hash = mix(hash ^ seen ^ got);
        } else {
            MPI_Request request = MPI_REQUEST_NULL;
            begin();
            if (way == BARRIER || way == BARRIER_TESTED)
                MPI_Ibarrier(MPI_COMM_WORLD, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
    }
    int right = print_hash(hash, wrong);
    MPI_Win_free(&window);
    MPI_Finalize();
    return right ? 0 : 1;
}

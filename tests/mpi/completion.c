/* ranks: 2,3,4 ; nodes: 1,2,3 */
/* Wait and Test: one, any, some, all; null and inactive requests; statuses; Request_get_status;
 * generalized requests among them. MPI 3.1 sections 3.7.3 to 3.7.6, 12.2. */
#include "check.h"

enum { N = 40 };
static int in[N], out[N];
static MPI_Request r[N];
static MPI_Status st[N];

static void null_requests(void)
{
    int index = 7, flag = 0, count = 7, indices[4];
    MPI_Status one;
    MPI_Request null[4] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    STEP("null requests");
    MPI_Wait(&null[0], &one);
    EMPTY_STATUS(&one);
    MPI_Test(&null[0], &flag, &one);
    CHECK(flag, "test of null");
    EMPTY_STATUS(&one);
    MPI_Waitany(4, null, &index, &one);
    CHECK_EQ(index, MPI_UNDEFINED, "waitany of nulls");
    EMPTY_STATUS(&one);
    flag = 0;
    MPI_Testany(4, null, &index, &flag, &one);
    CHECK(flag && index == MPI_UNDEFINED, "testany of nulls");
    EMPTY_STATUS(&one);
    MPI_Waitsome(4, null, &count, indices, st);
    CHECK_EQ(count, MPI_UNDEFINED, "waitsome of nulls");
    MPI_Testsome(4, null, &count, indices, st);
    CHECK_EQ(count, MPI_UNDEFINED, "testsome of nulls");
    MPI_Waitall(4, null, st);
    for (int k = 0; k < 4; k++)
        EMPTY_STATUS(&st[k]);
    flag = 0;
    MPI_Testall(4, null, &flag, st);
    CHECK(flag, "testall of nulls");
    flag = 0;
    MPI_Request_get_status(MPI_REQUEST_NULL, &flag, &one);
    CHECK(flag, "get_status of null");
    MPI_Waitall(0, NULL, MPI_STATUSES_IGNORE);
    MPI_Waitany(0, NULL, &index, MPI_STATUS_IGNORE);
    CHECK_EQ(index, MPI_UNDEFINED, "waitany of nothing");
}

/* Rank 0 has N receives; the messages come in a scrambled order, each when rank 0 asks for it. */
static int order_of(int k, int way)
{
    return way == 0 ? k : way == 1 ? N - 1 - k : (k * 17 + 5) % N;
}

static void post(int way)
{
    for (int k = 0; k < N; k++) {
        in[k] = -1;
        MPI_Irecv(&in[k], 1, MPI_INT, k % (np - 1) + 1, k, MPI_COMM_WORLD, &r[k]);
    }
    (void)way;
}

static void ask(int k)
{
    MPI_Send(&k, 1, MPI_INT, k % (np - 1) + 1, 1000, MPI_COMM_WORLD);
}

static void serve(int way)
{
    for (int k = 0; k < N; k++) {
        int which = order_of(k, way);
        if (which % (np - 1) + 1 != me)
            continue;
        int asked = -1, value = which * 3 + way;
        MPI_Recv(&asked, 1, MPI_INT, 0, 1000, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK_EQ(asked, which, "asked for");
        MPI_Send(&value, 1, MPI_INT, 0, which, MPI_COMM_WORLD);
    }
}

static void done_one(int k, int way, const MPI_Status *s)
{
    STATUS(s, k % (np - 1) + 1, k, 4);
    CHECK_EQ(in[k], k * 3 + way, "value");
    CHECK(r[k] == MPI_REQUEST_NULL, "request %d not null after completion", k);
}

static void any_one_by_one(int way)
{
    STEP("any, way %d", way);
    post(way);
    for (int k = 0; k < N; k++) {
        int which = order_of(k, way), index = -5, flag = 0;
        MPI_Status one;
        MPI_Testany(N, r, &index, &flag, &one);
        CHECK(!flag && index == MPI_UNDEFINED, "testany found %d before it was sent", index);
        MPI_Testall(N, r, &flag, st);
        CHECK(!flag, "testall before everything was sent");
        ask(which);
        if (k % 2)
            MPI_Waitany(N, r, &index, &one);
        else
            while (!flag)
                MPI_Testany(N, r, &index, &flag, &one);
        CHECK_EQ(index, which, "index");
        done_one(which, way, &one);
    }
}

static void some(int way)
{
    int indices[N], count, seen = 0;
    STEP("some, way %d", way);
    post(way);
    MPI_Testsome(N, r, &count, indices, st);
    CHECK_EQ(count, 0, "testsome before anything was sent");
    for (int k = 0; k < N; k++)
        ask(order_of(k, way));
    bool got[N] = {false};
    while (seen < N) {
        if (seen % 2)
            MPI_Testsome(N, r, &count, indices, st);
        else
            MPI_Waitsome(N, r, &count, indices, st);
        CHECK(count >= 0 && count <= N - seen, "count %d after %d", count, seen);
        for (int j = 0; j < count; j++) {
            CHECK(indices[j] >= 0 && indices[j] < N && !got[indices[j]], "index %d", indices[j]);
            got[indices[j]] = true;
            done_one(indices[j], way, &st[j]);
        }
        seen += count;
    }
    MPI_Waitsome(N, r, &count, indices, st);
    CHECK_EQ(count, MPI_UNDEFINED, "waitsome at the end");
}

static void all(int way)
{
    int flag = 0;
    STEP("all, way %d", way);
    post(way);
    for (int k = 0; k < N; k++)
        ask(order_of(k, way));
    if (way == 1) {
        MPI_Waitall(N, r, st);
    } else {
        while (!flag) {
            MPI_Testall(N, r, &flag, st);
            for (int k = 0; !flag && k < N; k++) /* all or nothing */
                CHECK(r[k] != MPI_REQUEST_NULL, "testall without flag took request %d", k);
        }
    }
    for (int k = 0; k < N; k++)
        done_one(k, way, &st[k]);
}

/* get_status does not free; test after it does. */
static void get_status(int way)
{
    STEP("get_status");
    post(way);
    for (int k = 0; k < N; k++) {
        int which = order_of(k, way), flag = 0;
        MPI_Status one;
        MPI_Request_get_status(r[which], &flag, &one);
        CHECK(!flag, "complete before it was sent");
        ask(which);
        while (!flag)
            MPI_Request_get_status(r[which], &flag, &one);
        STATUS(&one, which % (np - 1) + 1, which, 4);
        CHECK(r[which] != MPI_REQUEST_NULL, "get_status must keep the request");
        flag = 0;
        MPI_Test(&r[which], &flag, &one);
        CHECK(flag, "test after get_status");
        done_one(which, way, &one);
    }
}

/* Generalized requests: completed by the program, mixed with receives in one waitall. */
static int query(void *state, MPI_Status *s)
{
    MPI_Status_set_elements(s, MPI_INT, *(int *)state);
    MPI_Status_set_cancelled(s, 0);
    s->MPI_SOURCE = MPI_UNDEFINED;
    s->MPI_TAG = 12;
    return MPI_SUCCESS;
}
static int released;
static int release(void *state)
{
    (void)state;
    released++;
    return MPI_SUCCESS;
}
static int cancel(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

static void generalized(void)
{
    int state[3] = {1, 2, 3}, peer = (me + 1) % np, previous = (me + np - 1) % np, x = me, y = -1,
        flag;
    MPI_Request q[5];
    MPI_Status s[5];
    STEP("generalized requests");
    for (int k = 0; k < 3; k++)
        MPI_Grequest_start(query, release, cancel, &state[k], &q[k]);
    MPI_Irecv(&y, 1, MPI_INT, previous, 44, MPI_COMM_WORLD, &q[3]);
    MPI_Isend(&x, 1, MPI_INT, peer, 44, MPI_COMM_WORLD, &q[4]);
    MPI_Testall(5, q, &flag, s);
    CHECK(!flag, "testall with open generalized requests");
    for (int k = 0; k < 3; k++)
        MPI_Grequest_complete(q[k]);
    MPI_Waitall(5, q, s);
    for (int k = 0; k < 3; k++) {
        int count = -1;
        MPI_Get_count(&s[k], MPI_INT, &count);
        CHECK_EQ(count, k + 1, "count set by the query function");
    }
    CHECK_EQ(released, 3, "free callbacks");
    STATUS(&s[3], previous, 44, 4);
    CHECK_EQ(y, previous, "value");
}

/* Sends in all the completion calls, with a large one that is not complete at once. */
static void sends_too(void)
{
    int n = LARGE_BYTES, peer = me ^ 1, index, flag = 0;
    STEP("sends in any and all");
    if (peer >= np)
        return;
    unsigned char *a = buffer_new((size_t)n), *b = buffer_new((size_t)n);
    for (int k = 0; k < 20; k++) {
        MPI_Request q[4] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
        fill(a, (size_t)n, key_of(me, 3, 0, k));
        MPI_Isend(a, n, MPI_BYTE, peer, 3, MPI_COMM_WORLD, &q[1]);
        MPI_Irecv(b, n, MPI_BYTE, peer, 3, MPI_COMM_WORLD, &q[3]);
        if (k % 3 == 0) {
            MPI_Waitany(4, q, &index, MPI_STATUS_IGNORE);
            CHECK(index == 1 || index == 3, "index %d", index);
            MPI_Waitany(4, q, &index, MPI_STATUS_IGNORE);
            CHECK(index == 1 || index == 3, "index %d", index);
            MPI_Waitany(4, q, &index, MPI_STATUS_IGNORE);
            CHECK_EQ(index, MPI_UNDEFINED, "third");
        } else if (k % 3 == 1) {
            for (flag = 0; !flag;)
                MPI_Testall(4, q, &flag, MPI_STATUSES_IGNORE);
        } else {
            for (flag = 0; !flag;)
                MPI_Test(&q[1], &flag, MPI_STATUS_IGNORE);
            MPI_Waitall(4, q, MPI_STATUSES_IGNORE);
        }
        VERIFY(b, n, key_of(peer, 3, 0, k), "large");
    }
    buffer_free(a);
    buffer_free(b);
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    null_requests();
    for (int way = 0; way < 3; way++) {
        void (*const each[])(int) = {any_one_by_one, some, all, get_status};
        for (int k = 0; k < LENGTH(each); k++) {
            if (me == 0)
                each[k](way);
            else
                serve(way);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    (void)out;
    generalized();
    sends_too();
    return check_end();
}

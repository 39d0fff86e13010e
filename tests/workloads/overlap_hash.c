/* The reply is awaited in the buffer of the request, as ScaLAPACK's BLACS does it: it cannot come
 * before the request was sent. A replaying rank has it already, and must not send it in place of
 * the request: then the other side, if it is rolled back later, gets another request.
 * The upper half of the ranks asks the lower one; the next round's request is made of the reply.
 * usage: overlap_hash ROUNDS [GATE [WORDS [WAYS [late]]]] (see gate.h): words of 8 bytes a message,
 * the first so many ways to await the reply: 1 names its sender; late: each rank waits before its
 * first message until the gate lets through any round, and says so when it comes to the gate. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "gate.h"

enum { QUESTION = 2, ANSWER = 3, LOOK_EVERY = 30 };

static int words = 1, ways = 3;
static uint64_t *text;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
    hash *= 0xFF51AFD7ED558CCDull;
    return hash ^ (hash >> 33);
}

static void write_text(uint64_t hash)
{
    for (int i = 0; i < words; i++)
        text[i] = hash + (uint64_t) i;
}

static uint64_t read_text(uint64_t hash)
{
    uint64_t sum = 0;
    for (int i = 0; i < words; i++)
        sum += text[i] * (2 * (uint64_t) i + 1);
    return mix(hash, sum);
}

static uint64_t ask(int round, int whom, uint64_t hash, MPI_Request *again)
{
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    write_text(hash);
    if (round % ways == 0) {
        if (*again == MPI_REQUEST_NULL)
            MPI_Recv_init(text, words, MPI_UINT64_T, whom, ANSWER, MPI_COMM_WORLD, again);
        MPI_Start(again);
        MPI_Send(text, words, MPI_UINT64_T, whom, QUESTION, MPI_COMM_WORLD);
        MPI_Wait(again, MPI_STATUS_IGNORE);
    } else if (round % ways == 1) {
        MPI_Irecv(text, words, MPI_UINT64_T, MPI_ANY_SOURCE, ANSWER, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(text, words, MPI_UINT64_T, whom, QUESTION, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    } else {
        int flag = 0;
        MPI_Irecv(text, words, MPI_UINT64_T, whom, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
        MPI_Send(text, words, MPI_UINT64_T, whom, QUESTION, MPI_COMM_WORLD);
        while (!flag)
            MPI_Test(&requests[0], &flag, MPI_STATUS_IGNORE);
    }
    return read_text(hash);
}

int main(int argc, char **argv)
{
    int me, np, rounds = argc > 1 ? atoi(argv[1]) : 1000;
    uint64_t all = 0, before = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    words = argc > 3 ? atoi(argv[3]) : words;
    ways = argc > 4 ? atoi(argv[4]) : ways;
    int late = argc > 5, noted = -1;
    gate_is_not_read = late; /* it is changed after the checkpoint of the rollback */
    text = malloc((size_t) words * sizeof *text);
    long limit = 0;
    MPI_Request again = MPI_REQUEST_NULL;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    uint64_t hash = mix(0, (uint64_t) me);
    int other = (me + np / 2) % np;
    while (late && limit_in(gate) == 0)
        usleep(1000);
    for (int round = 0; round < rounds; round++) {
        if (round % LOOK_EVERY == 0)
            before = hash;
        if (me >= np / 2) {
            hash = ask(round, other, hash, &again);
        } else {
            MPI_Recv(text, words, MPI_UINT64_T, other, QUESTION, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
            hash = read_text(hash);
            write_text(hash);
            MPI_Send(text, words, MPI_UINT64_T, other, ANSWER, MPI_COMM_WORLD);
        }
        if (round % LOOK_EVERY == LOOK_EVERY - 1 && is_to_repeat(gate, round, &limit)) {
            if (late && noted != round)
                note_reached(gate, noted = round);
            hash = before;
            round -= LOOK_EVERY;
        }
    }
    if (again != MPI_REQUEST_NULL)
        MPI_Request_free(&again);
    free(text);
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

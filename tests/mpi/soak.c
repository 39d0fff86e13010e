/* ranks: 2,3,4 ; nodes: 1,2,3 ; args: 5 ; output: HASH .* */
/* Everybody to everybody, random sizes, modes, receives and waits from a seed; about as many
 * seconds as the argument says on two cores. The hash over all received messages depends on the
 * seed and the number of ranks only, so it must be the same over any PML. */
#include "check.h"

enum { WINDOW = 24, LARGEST = 300000 };

/* The shape of message `k` of round `round` from a to b: known to both ends. */
static int size_of(uint64_t seed, int round, int a, int b, int k)
{
    uint64_t h = mix64(
        seed ^ mix64((uint64_t)round << 40 | (uint64_t)a << 30 | (uint64_t)b << 20 | (uint64_t)k));
    uint64_t m = mix64(h);
    switch (h % 16) {
    case 0: return 0;
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 6: return (int)(m % 64);
    case 7:
    case 8:
    case 9: return (int)(m % 4200);
    case 10:
    case 11: return (int)(m % 9000);
    case 12:
    case 13:
    case 14: return (int)(m % 70000);
    default: return (int)(m % LARGEST);
    }
}

static int count_of(uint64_t seed, int round, int a, int b)
{
    return (int)(mix64(seed + (uint64_t)(round * 10007 + a * 101 + b)) % 6);
}

static uint64_t hash_of(const unsigned char *b, int n)
{
    uint64_t h = (uint64_t)n + 0xcbf29ce484222325u, w;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&w, b + i, 8);
        h = mix64(h ^ w);
    }
    for (; i < n; i++)
        h = mix64(h ^ b[i]);
    return h;
}

int main(int argc, char **argv)
{
    check_begin(&argc, &argv);
    uint64_t seed = (uint64_t)environment_number("CHECK_SEED", 1);
    int rounds = (int)scaled(260 * (argc > 1 ? atoi(argv[1]) : 5));
    uint64_t mine = mix64(seed ^ (uint64_t)(me + 1)); /* this rank's own choices */
    uint64_t hash = 0, total = 0, *chain = calloc((size_t)np, sizeof *chain);
    MPI_Request r[2 * 64 * 6];
    unsigned char *buffer[2 * 64 * 6];
    struct {
        int peer, k, n;
        bool receive;
    } what[2 * 64 * 6];
    for (int round = 0; round < rounds; round++) {
        int open = 0;
        STEP("round %d", round);
        for (int shift = 0; shift < np; shift++) {
            int from = (me + shift) % np, to = (me - shift + np) % np;
            bool exact = random_below(&mine, 2);
            for (int k = 0; k < count_of(seed, round, from, me); k++, open++) {
                int n = size_of(seed, round, from, me, k),
                    room = exact ? n : n + (int)random_below(&mine, 5000);
                buffer[open] = buffer_new((size_t)room);
                what[open].peer = from, what[open].k = k, what[open].n = n,
                what[open].receive = true;
                MPI_Irecv(buffer[open], room, MPI_BYTE, from, k, MPI_COMM_WORLD, &r[open]);
            }
            for (int k = 0; k < count_of(seed, round, me, to); k++, open++) {
                int n = size_of(seed, round, me, to, k);
                buffer[open] = buffer_new((size_t)n);
                what[open].peer = to, what[open].k = k, what[open].n = n,
                what[open].receive = false;
                /* the contents carry the history: what I have received so far from him */
                fill(buffer[open], (size_t)n, key_of(me, k, to, round));
                switch (random_below(&mine, 6)) {
                case 0:
                    MPI_Issend(buffer[open], n, MPI_BYTE, to, k, MPI_COMM_WORLD, &r[open]);
                    break;
                case 1:
                    if (n < 1000 && to != me) {
                        MPI_Send(buffer[open], n, MPI_BYTE, to, k, MPI_COMM_WORLD);
                        r[open] = MPI_REQUEST_NULL;
                        poison(buffer[open], (size_t)n);
                        break;
                    } /* fall through */
                default: MPI_Isend(buffer[open], n, MPI_BYTE, to, k, MPI_COMM_WORLD, &r[open]);
                }
            }
            if (random_below(&mine, 50) == 0)
                sleep_ms(1);
        }
        switch (random_below(&mine, 4)) {
        case 0: MPI_Waitall(open, r, MPI_STATUSES_IGNORE); break;
        case 1:
            for (int k = open - 1; k >= 0; k--)
                MPI_Wait(&r[k], MPI_STATUS_IGNORE);
            break;
        case 2:
            for (int index = 0; index != MPI_UNDEFINED;)
                MPI_Waitany(open, r, &index, MPI_STATUS_IGNORE);
            break;
        default:
            for (int count = 0, indices[2 * 64 * 6]; count != MPI_UNDEFINED;)
                MPI_Waitsome(open, r, &count, indices, MPI_STATUSES_IGNORE);
        }
        for (int k = 0; k < open; k++) {
            if (what[k].receive) {
                VERIFY(buffer[k], what[k].n, key_of(what[k].peer, what[k].k, me, round), "soak");
                chain[what[k].peer] = mix64(chain[what[k].peer] ^ hash_of(buffer[k], what[k].n));
            }
            buffer_free(buffer[k]);
        }
    }
    for (int p = 0; p < np; p++)
        hash += mix64(chain[p] + (uint64_t)(p * 64 + me));
    STEP("hash");
    MPI_Reduce(&hash, &total, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016" PRIx64 "\n", total);
    free(chain);
    return check_end();
}

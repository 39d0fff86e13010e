/*
 * Ranks in a ring that use MPI and, beside it, libibverbs: sends (inline, unsignalled, with
 * immediate data, before their receives), a ring of written slots with credits, fetch-and-add.
 * Order, contents, duplicates and counters are checked. One connection of each rank leads to a
 * queue pair that is gone; programs that a rank starts must not get the library of shadow verbs.
 * Usage: verbs_ring ITERATIONS DEVICES GID-INDEX [GATE] (DEVICES: names with commas, one a rank,
 * again from the first; GID-INDEX: -1 for LIDs; GATE: see gate.h; GATE.connected is made when all
 * have used their connections)
 */
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "gate.h"

#define MUST(x)                                                                        \
    do {                                                                               \
        if (!(x)) {                                                                    \
            fprintf(stderr, "rank %d, line %d: %s is not so\n", rank, __LINE__, #x);   \
            exit(3);                                                                   \
        }                                                                              \
    } while (0)
#define MESSAGES 6
#define SLOTS 8
#define BYTES 1500

struct name {
    uint32_t left, right, key;
    uint64_t address;
    uint16_t lid;
    union ibv_gid gid;
};

static struct area {
    char out[MESSAGES][BYTES], in[MESSAGES][BYTES];
    volatile uint8_t slots[SLOTS];
    uint8_t slot_out, pad[7];
    uint64_t counter, old;
} area __attribute__((aligned(4096)));

static int rank, size, gid_index = -1;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *left, *right, *dangling;

static struct ibv_sge at(volatile void *start, uint32_t bytes)
{
    return (struct ibv_sge){ (uintptr_t) start, bytes, mr->lkey };
}

static void open_device(char *names)
{
    int count = 1, known;
    for (char *c = names; *c; c++) count += ',' == *c;
    char *mine = strtok(names, ",");
    for (int i = rank % count; 0 < i; i--) mine = strtok(NULL, ",");
    struct ibv_device **list = ibv_get_device_list(&known);
    for (int i = 0; i < known; i++) {
        if (0 == strcmp(ibv_get_device_name(list[i]), mine)) context = ibv_open_device(list[i]);
    }
    MUST(context);
    ibv_free_device_list(list);
    MUST(pd = ibv_alloc_pd(context));
    MUST(mr = ibv_reg_mr(pd, &area, sizeof area,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
    MUST(cq = ibv_create_cq(context, 128, NULL, NULL, 0));
}

static struct ibv_qp *make(void)
{
    struct ibv_qp_init_attr init = { .send_cq = cq,
                                     .recv_cq = cq,
                                     .cap = { 32, 16, 1, 1, 64 },
                                     .qp_type = IBV_QPT_RC };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
                                .port_num = 1,
                                .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
                                                   IBV_ACCESS_REMOTE_READ |
                                                   IBV_ACCESS_REMOTE_ATOMIC };
    MUST(!ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    return qp;
}

static void join(struct ibv_qp *qp, uint32_t number, const struct name *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = number,
                                .rq_psn = 5,
                                .max_dest_rd_atomic = 2,
                                .min_rnr_timer = 12,
                                .ah_attr = { .port_num = 1, .dlid = peer->lid } };
    if (0 <= gid_index) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.sgid_index = (uint8_t) gid_index;
        attr.ah_attr.grh.hop_limit = 4;
        attr.ah_attr.grh.dgid = peer->gid;
    }
    MUST(!ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr send = { .qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .sq_psn = 5,
                                .max_rd_atomic = 2 };
    MUST(!ibv_modify_qp(qp, &send,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct name connect_ring(void)
{
    struct ibv_port_attr port;
    struct name mine = { .key = mr->rkey, .address = (uintptr_t) &area };
    struct name before, next;
    left = make(), right = make();
    mine.left = left->qp_num, mine.right = right->qp_num;
    MUST(!ibv_query_port(context, 1, &port));
    mine.lid = port.lid;
    if (0 <= gid_index) MUST(!ibv_query_gid(context, 1, gid_index, &mine.gid));
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Sendrecv(&mine, sizeof mine, MPI_BYTE, to, 1, &before, sizeof before, MPI_BYTE, from, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&mine, sizeof mine, MPI_BYTE, from, 2, &next, sizeof next, MPI_BYTE, to, 2,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    join(left, before.right, &before);
    join(right, next.left, &next);
    // Who sends to one that cannot receive yet tries again for ever (rnr_retry) only on the way.
    MPI_Barrier(MPI_COMM_WORLD);
    return next;
}

/* A connection to the next rank, which has destroyed its end. */
static void dangle(const struct name *next)
{
    struct ibv_qp *gone = make();
    uint32_t mine = gone->qp_num, theirs;
    int to = (rank + 1) % size, from = (rank + size - 1) % size;
    MPI_Sendrecv(&mine, 1, MPI_UINT32_T, from, 3, &theirs, 1, MPI_UINT32_T, to, 3, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    dangling = make();
    join(dangling, theirs, next);
    MPI_Barrier(MPI_COMM_WORLD);
    MUST(!ibv_destroy_qp(gone));
}

static void start_program(void)
{
    const char *check = "case \"$LD_PRELOAD\" in *librustbtl_verbs.so*) exit 1;; esac; "
                        "test -z \"$RUSTBTL_VERBS_JOB\"";
    MUST(0 == system(check));
}

static void post(struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    MUST(!ibv_post_send(right, wr, &bad));
}

/* All have used their connections: GATE.connected is there from now on. */
static void note_connected(const char *gate)
{
    char name[4096];
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(name, sizeof name, "%s.connected", gate);
    FILE *file = 0 == rank ? fopen(name, "w") : NULL;
    MUST(file || rank);
    if (file) fclose(file);
}

static uint32_t length(uint64_t turn, int m)
{
    return 24 + (uint32_t) ((turn * 7 + (uint64_t) m * 331) % (BYTES - 24));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(4 <= argc);
    long iterations = atol(argv[1]), limit = 0;
    gid_index = atoi(argv[3]);
    const char *gate = 4 < argc ? argv[4] : NULL;
    start_program();
    open_device(argv[2]);
    struct name next = connect_ring();
    dangle(&next);
    uint64_t hash = 1, turn = 0, seen = 0, adds = 0;
    for (long i = 0; i < iterations; i++, turn++) {
        struct ibv_sge sge;
        for (int m = 0; m < MESSAGES; m++) {
            uint64_t head[3] = { turn * MESSAGES + (uint64_t) m, (uint64_t) i,
                                 (uint64_t) rank * 1000003 + (uint64_t) i };
            uint32_t bytes = m % 3 ? length(turn, m) : 24;
            memcpy(area.out[m], head, 24);
            for (uint32_t b = 24; b < bytes; b++) area.out[m][b] = (char) (head[0] + b);
            sge = at(area.out[m], bytes);
            struct ibv_send_wr wr = { .wr_id = turn,
                                      .sg_list = &sge,
                                      .num_sge = 1,
                                      .imm_data = (uint32_t) head[0],
                                      .opcode = m % 2 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM,
                                      .send_flags = m % 3 ? 0 : IBV_SEND_INLINE };
            post(&wr);
        }
        // The slot is empty: the next rank has sent the message that says so, a turn ago.
        area.slot_out = (uint8_t) (1 + turn % 255);
        uint64_t slots = next.address + offsetof(struct area, slots);
        sge = at(&area.slot_out, 1);
        struct ibv_send_wr write = { .wr_id = turn,
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_WRITE,
                                     .send_flags = IBV_SEND_INLINE,
                                     .wr.rdma = { slots + turn % SLOTS, next.key } };
        post(&write);
        uint64_t counter = next.address + offsetof(struct area, counter);
        sge = at(&area.old, 8);
        struct ibv_send_wr add = { .wr_id = turn,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                   .send_flags = IBV_SEND_SIGNALED,
                                   .wr.atomic = { counter, 1, 0, next.key } };
        post(&add);
        // Late: at a checkpoint messages come for which there is no receive.
        usleep(turn % 4 ? 0 : 300);
        for (int m = 0; m < MESSAGES; m++) {
            sge = at(area.in[m], BYTES);
            struct ibv_recv_wr wr = { .wr_id = 1000 + (uint64_t) m, .sg_list = &sge, .num_sge = 1 };
            struct ibv_recv_wr *bad;
            MUST(!ibv_post_recv(left, &wr, &bad));
        }
        int received = 0, sent = 0;
        uint64_t got[3] = { 0 };
        while (received < MESSAGES || !sent) {
            struct ibv_wc wc[4];
            int count = ibv_poll_cq(cq, 4, wc);
            MUST(0 <= count);
            for (int c = 0; c < count; c++) {
                if (wc[c].status != IBV_WC_SUCCESS)
                    fprintf(stderr, "rank %d, turn %llu, request %llu: status %d\n", rank,
                            (unsigned long long) turn, (unsigned long long) wc[c].wr_id,
                            wc[c].status);
                MUST(IBV_WC_SUCCESS == wc[c].status);
                if (wc[c].wr_id == turn && wc[c].qp_num == right->qp_num) {
                    MUST(area.old == adds++);
                    MUST(!sent++);
                    continue;
                }
                MUST(wc[c].qp_num == left->qp_num);
                MUST(wc[c].wr_id == 1000 + (uint64_t) received);
                char *message = area.in[received];
                memcpy(got, message, 24);
                MUST(got[0] == turn * MESSAGES + (uint64_t) received);
                MUST(wc[c].byte_len == (received % 3 ? length(turn, received) : 24));
                for (uint32_t b = 24; b < wc[c].byte_len; b++) {
                    MUST(message[b] == (char) (got[0] + b));
                }
                MUST(received % 2 || wc[c].imm_data == (uint32_t) got[0]);
                received++;
            }
            if (0 == count) usleep(0);
        }
        // Behind its messages.
        while (!area.slots[seen % SLOTS]) usleep(0);
        MUST(area.slots[seen % SLOTS] == (uint8_t) (1 + seen % 255));
        area.slots[seen % SLOTS] = 0;
        seen++;
        // All have seen theirs, and messages of MPI go beside those of verbs.
        uint64_t mine = got[2], other = 0;
        MPI_Sendrecv(&mine, 1, MPI_UINT64_T, (rank + size - 1) % size, 7, &other, 1, MPI_UINT64_T,
                     (rank + 1) % size, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MUST(other == (uint64_t) rank * 1000003 + (uint64_t) i);
        if (0 == turn && gate) note_connected(gate);
        if (is_to_repeat(gate, i, &limit)) {
            i--;
            continue;
        }
        hash = hash * 1099511628211u ^ got[1] ^ got[2];
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* A new connection does not wait for long, also where nobody knows names any more. */
    double begin = MPI_Wtime();
    MUST(!ibv_destroy_qp(dangling));
    dangle(&next);
    MUST(MPI_Wtime() - begin < 45);
    MUST(area.counter == turn);
    uint64_t sum = 0;
    MPI_Reduce(&hash, &sum, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (0 == rank) printf("HASH %016llx\n", (unsigned long long) sum);
    MUST(!ibv_destroy_qp(left) && !ibv_destroy_qp(right) && !ibv_destroy_qp(dangling));
    MUST(!ibv_destroy_cq(cq));
    MUST(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    MPI_Finalize();
    return 0;
}

// Two queue pairs of one process that do everything at once, while the shadow is ordered to drain
// and to make all objects again: sends (inline, unsignalled, with immediate data, two elements,
// before their receives), a ring of writes with credits, fetch-and-add, reads. Order, contents,
// doubled writes, counters and completions are checked.
//
//   torture FOLDER CYCLES DEVICE DEVICE [GID-INDEX]       0: all is well; anything else says what
//   is not
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            printf("line %d: %s is not so (%s)\n", __LINE__, #x, strerror(errno));                 \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)
#define RECEIVES 6
#define DEPTH 24
#define SLOTS 8
#define BYTES 2048

struct area {
    char send[DEPTH][BYTES], receive[RECEIVES][BYTES], pattern[512], read[512];
    // One byte each: an adapter may copy longer ones in parts.
    volatile uint8_t in[SLOTS], credit;
    uint8_t out[SLOTS], credit_out;
    uint64_t counter, old;
};
enum kind { SEND = 1, WRITE, CREDIT, ADD, READ };
struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct area *a, *there;
    struct end *other;
    uint64_t posted, done, sent, got, written, seen, credited, adds, adds_done, reads, reads_done,
        receives, received;
    uint64_t used[DEPTH], order[DEPTH];
    unsigned quiet;
};
static struct end ends[2];
static uint64_t seed = 88172645463325252ul;
static unsigned r(unsigned n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static int post(struct end *e, enum kind kind, struct ibv_send_wr *w, int tell) {
    struct ibv_send_wr *bad;
    if (e->posted - e->done >= DEPTH) return 0;
    tell = tell || e->quiet >= 5 || r(3) == 0;
    w->wr_id = (uint64_t)kind << 48 | e->posted;
    if (tell) w->send_flags |= IBV_SEND_SIGNALED;
    int error = ibv_post_send(e->qp, w, &bad);
    if (error) printf("post: %s\n", strerror(error)), exit(4);
    e->order[e->posted % DEPTH] = (uint64_t)tell << 32 | kind;
    e->posted++, e->quiet = tell ? 0 : e->quiet + 1;
    return 1;
}
static void completed(struct end *e, struct ibv_wc *w) {
    if (w->status) printf("completion: status %d\n", w->status), exit(5);
    MUST(w->qp_num == e->qp->qp_num);
    if (w->wr_id >> 63) {
        MUST((w->wr_id & ~(1ul << 63)) == e->received);
        char *m = e->a->receive[e->received++ % RECEIVES];
        uint32_t head[2];
        memcpy(head, m, 8);
        MUST(head[0] == ++e->got && head[1] == w->byte_len);
        for (uint32_t j = 8; j < head[1]; j++) MUST(m[j] == (char)(head[0] + j));
        if (w->wc_flags & IBV_WC_WITH_IMM) MUST(w->imm_data == head[0]);
        memset(m, 0xee, BYTES);
        return;
    }
    uint64_t number = w->wr_id & 0xffffffffffff;
    MUST(number >= e->done && number < e->posted);
    for (; e->done <= number; e->done++) {
        uint64_t order = e->order[e->done % DEPTH];
        MUST((order >> 32) == (e->done == number));
        if ((uint32_t)order == ADD) MUST(e->a->old == e->adds_done++);
        if ((uint32_t)order == READ) {
            for (int j = 0; j < 512; j++) MUST(e->a->read[j] == (char)(j * 7));
            e->reads_done++;
        }
    }
}
static void look(struct end *e) {
    struct ibv_wc w[8];
    int n = ibv_poll_cq(e->cq, 1 + r(8), w);
    MUST(n >= 0);
    for (int i = 0; i < n; i++) completed(e, w + i);
    for (unsigned s = 0; s < SLOTS; s++) {
        uint8_t flag = e->a->in[s], next = 1 + e->seen % 255;
        if (!flag) continue;
        if (s == e->seen % SLOTS && flag == next) {
            e->a->in[s] = 0;
            e->seen++;
            continue;
        }
        // A slot that was seen stays empty until its next turn.
        uint8_t ahead = (uint8_t)(flag - next + (flag < next ? 255 : 0));
        MUST(ahead < SLOTS && (e->seen + ahead) % SLOTS == s);
    }
}
static struct ibv_sge at(struct end *e, void *p, uint32_t n) {
    return (struct ibv_sge){(uintptr_t)p, n, e->mr->lkey};
}

static void act(struct end *e, int produce) {
    // Others want a processor, too.
    if (r(20) == 0) usleep(1);
    struct ibv_sge g[2];
    look(e);
    while (e->receives - e->received < RECEIVES && r(3) == 0) {
        struct ibv_recv_wr w = {.wr_id = 1ul << 63 | e->receives, .sg_list = g, .num_sge = 2}, *bad;
        char *into = e->a->receive[e->receives++ % RECEIVES];
        uint32_t cut = 1 + r(BYTES - 2);
        g[0] = at(e, into, cut), g[1] = at(e, into + cut, BYTES - cut);
        MUST(!ibv_post_recv(e->qp, &w, &bad));
    }
    if (e->credited != e->seen) {
        e->a->credit_out = e->seen;
        g[0] = at(e, &e->a->credit_out, 1);
        struct ibv_send_wr w = {.sg_list = g,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_INLINE,
                                .wr.rdma = {(uintptr_t)&e->there->credit, e->other->mr->rkey}};
        uint64_t now = e->seen;
        if (post(e, CREDIT, &w, 0)) e->credited = now;
    }
    if (!produce) return;
    unsigned choice = r(6), slot = e->sent % DEPTH;
    if (choice < 2 && e->used[slot] <= e->done) {
        uint32_t bytes = r(2) ? 8 + r(50) : 8 + r(BYTES - 8), head[2] = {e->sent + 1, bytes},
                 cut = r(bytes);
        char *m = e->a->send[slot];
        memcpy(m, head, 8);
        for (uint32_t j = 8; j < bytes; j++) m[j] = (char)(head[0] + j);
        g[0] = at(e, m, cut), g[1] = at(e, m + cut, bytes - cut);
        struct ibv_send_wr w = {.sg_list = g,
                                .num_sge = 2,
                                .opcode = r(2) ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM,
                                .imm_data = head[0]};
        int is_inline = bytes <= 60;
        if (is_inline) w.send_flags = IBV_SEND_INLINE, g[0].lkey = g[1].lkey = 0xdead;
        if (post(e, SEND, &w, 0)) {
            e->sent++;
            if (is_inline) memset(m, 0xcc, bytes);
            else
                e->used[slot] = e->posted;
        }
    } else if (choice == 2 && (uint8_t)(e->written - e->a->credit) < SLOTS) {
        unsigned s = e->written % SLOTS;
        e->a->out[s] = 1 + e->written % 255;
        g[0] = at(e, &e->a->out[s], 1);
        struct ibv_send_wr w = {.sg_list = g,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .wr.rdma = {(uintptr_t)&e->there->in[s], e->other->mr->rkey}};
        e->written += post(e, WRITE, &w, 0);
    } else if (choice == 3 && e->adds == e->adds_done) {
        g[0] = at(e, &e->a->old, 8);
        struct ibv_send_wr w = {
            .sg_list = g,
            .num_sge = 1,
            .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
            .wr.atomic = {(uintptr_t)&e->there->counter, 1, 0, e->other->mr->rkey}};
        e->adds += post(e, ADD, &w, 1);
    } else if (choice == 4 && e->reads == e->reads_done) {
        memset(e->a->read, 0, 512);
        g[0] = at(e, e->a->read, 512);
        struct ibv_send_wr w = {.sg_list = g,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_READ,
                                .wr.rdma = {(uintptr_t)e->there->pattern, e->other->mr->rkey}};
        e->reads += post(e, READ, &w, 1);
    }
}
static void make(struct end *e, const char *name) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n), *device = 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name)) device = list[i];
    MUST(device && (e->context = ibv_open_device(device)));
    ibv_free_device_list(list);
    MUST(e->pd = ibv_alloc_pd(e->context));
    MUST(e->a = aligned_alloc(4096, (sizeof *e->a + 4095) & ~4095ul));
    memset(e->a, 0, sizeof *e->a);
    for (int j = 0; j < 512; j++) e->a->pattern[j] = (char)(j * 7);
    MUST(e->mr = ibv_reg_mr(e->pd, e->a, sizeof *e->a,
                            IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
    MUST(e->mr->lkey != e->mr->rkey);
    MUST(e->cq = ibv_create_cq(e->context, DEPTH + RECEIVES, 0, 0, 0));
    struct ibv_qp_init_attr q = {.send_cq = e->cq,
                                 .recv_cq = e->cq,
                                 .cap = {DEPTH, RECEIVES, 2, 2, 64},
                                 .qp_type = IBV_QPT_RC};
    MUST(e->qp = ibv_create_qp(e->pd, &q));
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT,
                            .port_num = 1,
                            .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                               IBV_ACCESS_REMOTE_ATOMIC};
    MUST(!ibv_modify_qp(e->qp, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}
static void join(struct end *e, int gid_index) {
    struct ibv_port_attr port;
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTR,
                            .path_mtu = IBV_MTU_1024,
                            .dest_qp_num = e->other->qp->qp_num,
                            .rq_psn = 5,
                            .max_dest_rd_atomic = 2,
                            .min_rnr_timer = 12,
                            .ah_attr.port_num = 1};
    MUST(!ibv_query_port(e->other->context, 1, &port));
    a.ah_attr.dlid = port.lid;
    if (gid_index >= 0) {
        a.ah_attr.is_global = 1, a.ah_attr.grh.sgid_index = gid_index, a.ah_attr.grh.hop_limit = 4;
        MUST(!ibv_query_gid(e->other->context, 1, gid_index, &a.ah_attr.grh.dgid));
    } else
        MUST(port.lid);
    MUST(!ibv_modify_qp(e->qp, &a,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr b = {.qp_state = IBV_QPS_RTS,
                            .timeout = 14,
                            .retry_cnt = 7,
                            .rnr_retry = 7,
                            .sq_psn = 5,
                            .max_rd_atomic = 2};
    MUST(!ibv_modify_qp(e->qp, &b,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}
static int complete(struct end *e) {
    struct end *o = e->other;
    return e->sent == o->got && e->written == o->seen && e->adds == e->adds_done &&
           o->a->counter == e->adds && e->reads == e->reads_done && e->credited == e->seen;
}
int main(int c, char **v) {
    MUST(c >= 5);
    setvbuf(stdout, 0, _IOLBF, 0);
    const char *folder = v[1];
    int cycles = atoi(v[2]), gid_index = c > 5 ? atoi(v[5]) : -1, ordered = 0;
    char name[500], part[600];
    for (int i = 0; i < 2; i++) make(&ends[i], v[3 + i]);
    for (int i = 0; i < 2; i++) ends[i].other = &ends[1 - i], ends[i].there = ends[1 - i].a;
    for (int i = 0; i < 2; i++) join(&ends[i], gid_index);
    uint32_t qpn = ends[0].qp->qp_num;
    while (ends[0].got < 100 || ends[1].seen < 100 || ends[0].adds < 20) act(&ends[r(2)], 1);
    for (int cycle = 0; cycle < cycles;) {
        for (int i = 300 + r(700); i; i--) act(&ends[r(2)], 1);
        if (!ordered) {
            snprintf(name, 500, "%s/order.%d", folder, cycle),
                snprintf(part, sizeof part, "%s.part", name);
            FILE *f = fopen(part, "w");
            MUST(f && fputs(cycle % 3 ? "rebuild" : "keep", f) >= 0 && !fclose(f) &&
                 !rename(part, name));
            ordered = 1;
        }
        snprintf(name, 500, "%s/result.%d.0", folder, cycle);
        FILE *f = fopen(name, "r");
        if (!f) continue;
        MUST(fgets(part, 500, f) && !fclose(f));
        printf("cycle %d: %s\n", cycle++, part);
        MUST(!strncmp(part, "ok", 2));
        ordered = 0;
    }
    time_t end = time(0) + 60;
    while (!complete(&ends[0]) || !complete(&ends[1])) {
        act(&ends[r(2)], 0);
        if (time(0) > end) {
            for (int i = 0; i < 2; i++)
                printf("lost: sent %lu got %lu written %lu seen %lu adds %lu/%lu\n", ends[i].sent,
                       ends[i].got, ends[i].written, ends[i].seen, ends[i].adds_done, ends[i].adds);
            return 7;
        }
    }
    MUST(ends[0].qp->qp_num == qpn && ends[0].got > 10 && ends[1].seen > 10 && ends[0].adds > 3);
    printf("all is well: %lu and %lu messages, %lu writes, %lu atomics\n", ends[0].got, ends[1].got,
           ends[0].seen, ends[0].adds);
    for (int i = 0; i < 2; i++) {
        MUST(!ibv_destroy_qp(ends[i].qp));
        MUST(!ibv_destroy_cq(ends[i].cq));
        MUST(!ibv_dereg_mr(ends[i].mr));
        MUST(!ibv_dealloc_pd(ends[i].pd));
        MUST(!ibv_close_device(ends[i].context));
    }
    return 0;
}

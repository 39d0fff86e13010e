// A libibverbs in memory, for one process: adapters "fake0" and "fake1" reach each other. The
// shadow opens it in place of the real one, so programs run through the shadow on any machine. A
// thread moves the queue pairs: requests are executed in order, acknowledged later; a send that
// finds no receive waits. What the specification forbids ends the process. Numbers and keys of a
// queue pair or region are never used twice, and old objects are freed: a rebuild that mixes them
// up is noticed.
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_get_device_list

#define DIE(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "fake libibverbs: " __VA_ARGS__);                                          \
        fputc('\n', stderr);                                                                       \
        abort();                                                                                   \
    } while (0)
#define EXPORT __attribute__((visibility("default")))
#define NEW(type) ((struct type *)calloc(1, sizeof(struct type)))

struct wqe {
    uint64_t id;
    enum ibv_wr_opcode op;
    int flags, n, done;
    uint32_t imm, rkey;
    uint64_t addr, add, swap;
    struct ibv_sge g[4];
    char inl[256];
    uint32_t inl_bytes;
};
struct rqe {
    uint64_t id;
    int n;
    struct ibv_sge g[4];
};
struct mr {
    struct ibv_mr u;
    uint64_t iova;
    struct mr *next;
};
struct cq {
    struct ibv_cq u;
    struct ibv_wc *w;
    unsigned head, tail, size;
    int armed;
};
struct channel {
    struct ibv_comp_channel u;
    struct cq *events[64];
    unsigned head, tail;
};
struct qp {
    struct ibv_qp u;
    struct ibv_qp_init_attr a;
    struct wqe *s;
    struct rqe *r;
    unsigned sh, st, rh, rt;
    uint32_t peer;
    struct qp *next;
};

static struct ibv_device devices[2];
static struct mr *mrs;
static struct qp *qps;
static uint32_t next_qpn = 0x11, next_key = 0x100;
static unsigned long seed = 88172645463325252ul;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned r(unsigned n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static struct mr *local(uint32_t key) {
    for (struct mr *m = mrs; m; m = m->next)
        if (m->u.lkey == key) return m;
    return 0;
}
static char *remote(uint64_t at, uint64_t bytes, uint32_t key) {
    for (struct mr *m = mrs; m; m = m->next)
        if (m->u.rkey == key && at >= m->iova && at + bytes <= m->iova + m->u.length)
            return (char *)m->u.addr + (at - m->iova);
    return 0;
}
static char *place(struct ibv_sge *g) {
    struct mr *m = local(g->lkey);
    if (!m || g->addr < m->iova || g->addr + g->length > m->iova + m->u.length)
        DIE("element %#lx+%u with key %#x", g->addr, g->length, g->lkey);
    return (char *)m->u.addr + (g->addr - m->iova);
}
static void push(struct ibv_cq *u, struct ibv_wc w) {
    struct cq *q = (struct cq *)u;
    if (q->tail - q->head >= q->size) DIE("a completion queue is full");
    q->w[q->tail++ % q->size] = w;
    struct channel *c = (struct channel *)u->channel;
    if (c && q->armed) {
        q->armed = 0;
        c->events[c->tail++ % 64] = q;
        uint64_t one = 1;
        if (write(c->u.fd, &one, 8) != 8) DIE("eventfd");
    }
}
static void complete(struct qp *q, enum ibv_wc_status status) {
    struct wqe *w = &q->s[q->sh++ % q->a.cap.max_send_wr];
    if (status || q->a.sq_sig_all || w->flags & IBV_SEND_SIGNALED)
        push(q->a.send_cq,
             (struct ibv_wc){.wr_id = w->id, .status = status, .qp_num = q->u.qp_num});
}
static void fail(struct qp *q, enum ibv_wc_status status) {
    q->u.state = IBV_QPS_ERR;
    if (status != IBV_WC_SUCCESS) complete(q, status);
    while (q->sh != q->st) complete(q, IBV_WC_WR_FLUSH_ERR);
    while (q->rh != q->rt) {
        struct ibv_wc w = {.wr_id = q->r[q->rh++ % q->a.cap.max_recv_wr].id,
                           .status = IBV_WC_WR_FLUSH_ERR,
                           .qp_num = q->u.qp_num};
        push(q->a.recv_cq, w);
    }
}
static void execute(struct qp *q, struct wqe *w) {
    struct qp *p = qps;
    while (p && (p->u.qp_num != q->peer || p->peer != q->u.qp_num)) p = p->next;
    if (!p || (p->u.state != IBV_QPS_RTR && p->u.state != IBV_QPS_RTS)) return;
    uint32_t bytes = w->inl_bytes;
    for (int i = 0; i < w->n; i++) bytes += w->g[i].length;
    char *data = malloc(bytes + 1), *at = data, *there = 0;
    memcpy(at, w->inl, w->inl_bytes), at += w->inl_bytes;
    int reads = w->op == IBV_WR_RDMA_READ, atomic = w->op >= IBV_WR_ATOMIC_CMP_AND_SWP;
    int sends = w->op == IBV_WR_SEND || w->op == IBV_WR_SEND_WITH_IMM, consumes = sends;
    consumes |= w->op == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (!reads && !atomic)
        for (int i = 0; i < w->n; i++)
            memcpy(at, place(&w->g[i]), w->g[i].length), at += w->g[i].length;
    if (!sends && bytes && !(there = remote(w->addr, bytes, w->rkey))) {
        free(data);
        return fail(q, IBV_WC_REM_ACCESS_ERR);
    }
    if (consumes) {
        if (p->rh == p->rt) {
            free(data);
            return;
        } // not ready
        struct rqe *e = &p->r[p->rh++ % p->a.cap.max_recv_wr];
        struct ibv_wc wc = {.wr_id = e->id,
                            .byte_len = bytes,
                            .qp_num = p->u.qp_num,
                            .imm_data = w->imm,
                            .opcode = sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
                            .wc_flags = w->op == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM};
        uint32_t put = 0;
        for (int i = 0; sends && i < e->n && put < bytes; i++) {
            uint32_t now = bytes - put < e->g[i].length ? bytes - put : e->g[i].length;
            memcpy(place(&e->g[i]), data + put, now), put += now;
        }
        if (sends && put < bytes) DIE("a receive is too short");
        if (!sends && bytes) memcpy(there, data, bytes);
        push(p->a.recv_cq, wc);
    } else if (reads) {
        for (int i = 0; i < w->n; there += w->g[i++].length)
            memcpy(place(&w->g[i]), there, w->g[i].length);
    } else if (atomic) {
        uint64_t old;
        memcpy(&old, there, 8), memcpy(place(&w->g[0]), &old, 8);
        if (w->op == IBV_WR_ATOMIC_FETCH_AND_ADD || old == w->add) {
            uint64_t new = w->op == IBV_WR_ATOMIC_FETCH_AND_ADD ? old + w->add : w->swap;
            memcpy(there, &new, 8);
        }
    } else if (bytes) {
        memcpy(there, data, bytes);
    }
    free(data);
    w->done = 1;
}
static void *move(void *unused) {
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        for (struct qp *q = qps; q; q = q->next) {
            if (q->sh == q->st || r(3) == 0) continue;
            struct wqe *first = &q->s[q->sh % q->a.cap.max_send_wr];
            unsigned at = q->sh;
            while (at != q->st && q->s[at % q->a.cap.max_send_wr].done) at++;
            if (first->done && r(2)) complete(q, IBV_WC_SUCCESS);
            else if (at != q->st)
                execute(q, &q->s[at % q->a.cap.max_send_wr]);
        }
        pthread_mutex_unlock(&lock);
        sched_yield();
    }
    return 0;
}
__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    for (int i = 0; i < 2; i++) snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
    if (pthread_create(&thread, 0, move, 0)) DIE("no thread");
}
#define LOCKED(statements)                                                                         \
    do {                                                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        statements;                                                                                \
        pthread_mutex_unlock(&lock);                                                               \
    } while (0)

static int post_send(struct ibv_qp *u, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *q = (struct qp *)u;
    int error = 0;
    pthread_mutex_lock(&lock);
    for (; wr; wr = wr->next) {
        if (q->st - q->sh >= q->a.cap.max_send_wr) {
            error = ENOMEM;
            *bad = wr;
            break;
        }
        if (u->state != IBV_QPS_RTS && u->state != IBV_QPS_ERR) DIE("a send in state %d", u->state);
        struct wqe *w = &q->s[q->st++ % q->a.cap.max_send_wr];
        memset(w, 0, sizeof *w);
        w->id = wr->wr_id, w->op = wr->opcode, w->flags = wr->send_flags, w->imm = wr->imm_data;
        if (wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP)
            w->addr = wr->wr.atomic.remote_addr, w->rkey = wr->wr.atomic.rkey,
            w->add = wr->wr.atomic.compare_add, w->swap = wr->wr.atomic.swap;
        else
            w->addr = wr->wr.rdma.remote_addr, w->rkey = wr->wr.rdma.rkey;
        for (int i = 0; i < wr->num_sge; i++)
            if (wr->send_flags & IBV_SEND_INLINE) {
                memcpy(w->inl + w->inl_bytes, (void *)wr->sg_list[i].addr, wr->sg_list[i].length);
                w->inl_bytes += wr->sg_list[i].length;
            } else
                w->g[w->n++] = wr->sg_list[i];
    }
    pthread_mutex_unlock(&lock);
    return error;
}
static int post_recv(struct ibv_qp *u, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct qp *q = (struct qp *)u;
    int error = 0;
    pthread_mutex_lock(&lock);
    for (; wr; wr = wr->next) {
        if (q->rt - q->rh >= q->a.cap.max_recv_wr) {
            error = ENOMEM;
            *bad = wr;
            break;
        }
        struct rqe *e = &q->r[q->rt++ % q->a.cap.max_recv_wr];
        e->id = wr->wr_id, e->n = wr->num_sge;
        memcpy(e->g, wr->sg_list, wr->num_sge * sizeof *e->g);
    }
    pthread_mutex_unlock(&lock);
    return error;
}
static int poll_cq(struct ibv_cq *u, int n, struct ibv_wc *w) {
    struct cq *q = (struct cq *)u;
    int k = 0;
    LOCKED(while (k < n && q->head != q->tail) w[k++] = q->w[q->head++ % q->size]);
    return k;
}
static int req_notify(struct ibv_cq *u, int solicited) {
    (void)solicited;
    LOCKED(((struct cq *)u)->armed = 1);
    return 0;
}
EXPORT struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list = calloc(3, sizeof *list);
    list[0] = devices, list[1] = devices + 1;
    if (n) *n = 2;
    return list;
}
EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }
EXPORT const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
EXPORT struct ibv_context *ibv_open_device(struct ibv_device *d) {
    struct ibv_context *c = NEW(ibv_context);
    c->device = d, c->async_fd = eventfd(0, 0), c->cmd_fd = -1, c->num_comp_vectors = 1;
    c->ops.post_send = post_send, c->ops.post_recv = post_recv, c->ops.poll_cq = poll_cq;
    c->ops.req_notify_cq = req_notify;
    return c;
}
EXPORT int ibv_close_device(struct ibv_context *c) {
    close(c->async_fd);
    free(c);
    return 0;
}
EXPORT int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a) {
    (void)c;
    memset(a, 0, sizeof *a);
    a->max_qp_wr = 1000, a->max_cqe = 1000, a->max_srq_wr = 1000, a->phys_port_cnt = 1;
    return 0;
}
EXPORT int ibv_query_port(struct ibv_context *c, uint8_t p, struct _compat_ibv_port_attr *compat) {
    struct ibv_port_attr *a = (struct ibv_port_attr *)compat;
    (void)p;
    a->state = IBV_PORT_ACTIVE, a->lid = 0x20 + (c->device - devices), a->gid_tbl_len = 1;
    a->link_layer = IBV_LINK_LAYER_INFINIBAND;
    return 0;
}
EXPORT int ibv_query_gid(struct ibv_context *c, uint8_t p, int i, union ibv_gid *g) {
    memset(g, 0, sizeof *g);
    g->raw[0] = 0xfe, g->raw[15] = 1 + (c->device - devices), g->raw[14] = p + i;
    return 0;
}
EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) {
    struct ibv_pd *p = NEW(ibv_pd);
    p->context = c;
    return p;
}
EXPORT int ibv_dealloc_pd(struct ibv_pd *p) {
    free(p);
    return 0;
}
EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *a, size_t n, uint64_t iova,
                                       unsigned access) {
    struct mr *m = NEW(mr);
    (void)access;
    m->u = (struct ibv_mr){.context = p->context, .pd = p, .addr = a, .length = n};
    m->iova = iova;
    LOCKED(m->u.lkey = next_key += 0x100; m->u.rkey = m->u.lkey + 7; m->next = mrs; mrs = m);
    return &m->u;
}
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *a, size_t n, int access) {
    return ibv_reg_mr_iova2(p, a, n, (uintptr_t)a, access);
}
EXPORT int ibv_dereg_mr(struct ibv_mr *u) {
    LOCKED(struct mr **m = &mrs; while (*m && &(*m)->u != u) m = &(*m)->next;
           if (!*m) DIE("no such region"); *m = (*m)->next);
    free(u);
    return 0;
}
EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *x) {
    struct channel *c = NEW(channel);
    c->u.context = x, c->u.fd = eventfd(0, EFD_SEMAPHORE);
    return &c->u;
}
EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *c) {
    close(c->fd);
    free(c);
    return 0;
}
EXPORT int ibv_get_cq_event(struct ibv_comp_channel *u, struct ibv_cq **cq, void **context) {
    struct channel *c = (struct channel *)u;
    uint64_t one;
    if (read(u->fd, &one, 8) != 8) return -1;
    LOCKED(*cq = &c->events[c->head++ % 64]->u);
    *context = (*cq)->cq_context;
    return 0;
}
EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) { (void)cq, (void)n; }
EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *x, int n, void *context,
                                    struct ibv_comp_channel *c, int v) {
    struct cq *q = NEW(cq);
    (void)v;
    q->u.context = x, q->u.cq_context = context, q->u.channel = c, q->u.cqe = q->size = n;
    q->w = calloc(n, sizeof *q->w);
    return &q->u;
}
EXPORT int ibv_destroy_cq(struct ibv_cq *u) {
    for (struct qp *q = qps; q; q = q->next)
        if (q->a.send_cq == u || q->a.recv_cq == u) return EBUSY;
    free(((struct cq *)u)->w), free(u);
    return 0;
}
EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a) {
    struct qp *q = NEW(qp);
    q->a = *a;
    q->u.context = p->context, q->u.pd = p, q->u.qp_context = a->qp_context,
    q->u.qp_type = a->qp_type;
    q->s = calloc(a->cap.max_send_wr, sizeof *q->s),
    q->r = calloc(a->cap.max_recv_wr + 1, sizeof *q->r);
    LOCKED(q->u.qp_num = next_qpn++; q->next = qps; qps = q);
    return &q->u;
}
EXPORT int ibv_modify_qp(struct ibv_qp *u, struct ibv_qp_attr *a, int mask) {
    struct qp *q = (struct qp *)u;
    if (mask & IBV_QP_DEST_QPN) {
        if (a->dest_qp_num >> 23) DIE("a virtual number reached the adapter");
        if (a->ah_attr.dlid != 0x20 && a->ah_attr.dlid != 0x21) DIE("LID %#x", a->ah_attr.dlid);
    }
    LOCKED(if (mask & IBV_QP_DEST_QPN) q->peer = a->dest_qp_num;
           if (mask & IBV_QP_STATE) u->state = a->qp_state;
           if (u->state == IBV_QPS_ERR) fail(q, IBV_WC_SUCCESS));
    return 0;
}
EXPORT int ibv_query_qp(struct ibv_qp *u, struct ibv_qp_attr *a, int m,
                        struct ibv_qp_init_attr *i) {
    (void)m;
    memset(a, 0, sizeof *a);
    a->qp_state = u->state, *i = ((struct qp *)u)->a;
    return 0;
}
EXPORT int ibv_destroy_qp(struct ibv_qp *u) {
    LOCKED(struct qp **q = &qps; while (*q && &(*q)->u != u) q = &(*q)->next;
           if (!*q) DIE("no such queue pair"); *q = (*q)->next);
    free(((struct qp *)u)->s), free(((struct qp *)u)->r), free(u);
    return 0;
}
// What the shadow looks for, and the test does not use.
#define ABSENT(name)                                                                               \
    EXPORT void absent_##name(void) __asm__(#name);                                                \
    void absent_##name(void) { DIE(#name " is not there"); }
ABSENT(ibv_query_pkey)
ABSENT(ibv_get_pkey_index) ABSENT(_ibv_query_gid_ex) ABSENT(_ibv_query_gid_table)
    ABSENT(ibv_get_async_event) ABSENT(ibv_ack_async_event) ABSENT(ibv_rereg_mr)
        ABSENT(ibv_create_ah) ABSENT(ibv_destroy_ah) ABSENT(ibv_init_ah_from_wc)
            ABSENT(ibv_resize_cq) ABSENT(ibv_create_srq) ABSENT(ibv_modify_srq)
                ABSENT(ibv_query_srq) ABSENT(ibv_destroy_srq) ABSENT(ibv_attach_mcast)
                    ABSENT(ibv_detach_mcast) ABSENT(ibv_qp_to_qp_ex) ABSENT(ibv_query_ece)
                        ABSENT(ibv_set_ece)

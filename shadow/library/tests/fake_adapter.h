// What the adapter of fake_ibverbs.c is: what all processes share of it, whose that is, and how
// requests are executed. Part of that file.
#define NEW(type) ((struct type *)calloc(1, sizeof(struct type)))
#define REQUESTS 128
#define ENTRIES 1024
#define MANY 64

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
// A process: its id, and when it was born, since a restored one has the id of the one before.
typedef uint64_t owner_t;
// What all processes share: everything by number, and whose it is.
struct mr {
    owner_t owner;
    uint64_t addr, length, iova;
    uint32_t lkey, rkey;
};
struct cq {
    owner_t owner;
    struct ibv_wc w[ENTRIES];
    unsigned head, tail, size;
    int armed, fd, number;
    void *channel;
};
struct qp {
    owner_t owner;
    enum ibv_qp_state state;
    struct ibv_qp_cap cap;
    int signal_all;
    struct cq_at {
        int send, recv;
    } cq;
    struct wqe s[REQUESTS];
    struct rqe r[REQUESTS];
    unsigned sh, st, rh, rt;
    uint32_t qpn, peer;
};
static struct world {
    pthread_mutex_t lock;
    int ready;
    uint32_t next_qpn, next_key;
    unsigned long seed;
    struct mr mrs[256];
    struct cq cqs[MANY];
    struct qp qps[MANY];
} *world;

// What the program holds.
struct channel {
    struct ibv_comp_channel u;
    struct ibv_cq *events[64];
    unsigned head, tail;
};
struct my_mr {
    struct ibv_mr u;
    struct mr *at;
};
struct my_cq {
    struct ibv_cq u;
    struct cq *at;
};
struct my_qp {
    struct ibv_qp u;
    struct ibv_qp_init_attr a;
    struct qp *at;
};

static unsigned r(unsigned n) {
    world->seed ^= world->seed << 13;
    world->seed ^= world->seed >> 7;
    world->seed ^= world->seed << 17;
    return world->seed % n;
}
static void enter(void) {
    // Who had it was killed: every step leaves a world that can be used.
    if (pthread_mutex_lock(&world->lock) == EOWNERDEAD) pthread_mutex_consistent(&world->lock);
}
#define LOCKED(statements)                                                                         \
    do {                                                                                           \
        enter();                                                                                   \
        statements;                                                                                \
        pthread_mutex_unlock(&world->lock);                                                        \
    } while (0)

static pid_t pid_of(owner_t owner) { return (pid_t)(owner & UINT32_MAX); }
// The process that has this id now; 0: none.
static owner_t owner_with(pid_t pid) {
    char name[40], text[1000], state = 'Z', *rest;
    unsigned long long born = 0;
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
    long got = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0) syscall(SYS_close, fd);
    text[got > 0 ? got : 0] = 0;
    if (!(rest = strrchr(text, ')'))) return 0;
    if (sscanf(rest, ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                     "%*s %llu", &state, &born) != 2) return 0;
    return state == 'Z' || state == 'X' ? 0 : (owner_t)born << 32 | (owner_t)pid;
}
// To or from memory of a process. 0: it is gone.
static int copy(owner_t owner, uint64_t there, void *here, size_t n, int to_it) {
    pid_t pid = pid_of(owner);
    if (pid == getpid()) {
        if (to_it) memcpy((void *)there, here, n);
        else
            memcpy(here, (void *)there, n);
        return 1;
    }
    struct iovec own = {here, n}, its = {(void *)there, n};
    ssize_t done = to_it ? process_vm_writev(pid, &own, 1, &its, 1, 0)
                         : process_vm_readv(pid, &own, 1, &its, 1, 0);
    return done == (ssize_t)n;
}
static uint64_t remote(owner_t owner, uint64_t at, uint64_t bytes, uint32_t key) {
    for (struct mr *m = world->mrs; m < world->mrs + 256; m++)
        if (m->owner == owner && m->rkey == key && at >= m->iova &&
            at + bytes <= m->iova + m->length)
            return m->addr + (at - m->iova);
    return 0;
}
static uint64_t place(owner_t owner, struct ibv_sge *g) {
    for (struct mr *m = world->mrs; m < world->mrs + 256; m++)
        if (m->owner == owner && m->lkey == g->lkey && g->addr >= m->iova &&
            g->addr + g->length <= m->iova + m->length)
            return m->addr + (g->addr - m->iova);
    DIE("element %#lx+%u with key %#x", g->addr, g->length, g->lkey);
}
static void push(struct cq *q, struct ibv_wc w) {
    if (q->tail - q->head >= q->size) DIE("a completion queue is full");
    q->w[q->tail++ % ENTRIES] = w;
    // Events are for one process.
    if (q->channel && q->armed && pid_of(q->owner) == getpid()) {
        struct channel *c = q->channel;
        q->armed = 0;
        for (unsigned i = 0; i < 64; i++)
            if (c->events[i] && ((struct my_cq *)c->events[i])->at == q) c->head = i;
        uint64_t one = 1;
        if (write(q->fd, &one, 8) != 8) DIE("eventfd");
    }
}
static void complete(struct qp *q, enum ibv_wc_status status) {
    struct wqe *w = &q->s[q->sh++ % REQUESTS];
    if (status || q->signal_all || w->flags & IBV_SEND_SIGNALED)
        push(world->cqs + q->cq.send,
             (struct ibv_wc){.wr_id = w->id, .status = status, .qp_num = q->qpn});
}
static void fail(struct qp *q, enum ibv_wc_status status) {
    q->state = IBV_QPS_ERR;
    if (status != IBV_WC_SUCCESS) complete(q, status);
    while (q->sh != q->st) complete(q, IBV_WC_WR_FLUSH_ERR);
    while (q->rh != q->rt) {
        struct ibv_wc w = {.wr_id = q->r[q->rh++ % REQUESTS].id,
                           .status = IBV_WC_WR_FLUSH_ERR,
                           .qp_num = q->qpn};
        push(world->cqs + q->cq.recv, w);
    }
}
// 0: a process is gone.
static int gather(struct qp *q, struct wqe *w, char *at) {
    memcpy(at, w->inl, w->inl_bytes), at += w->inl_bytes;
    for (int i = 0; i < w->n; at += w->g[i++].length)
        if (!copy(q->owner, place(q->owner, &w->g[i]), at, w->g[i].length, 0)) return 0;
    return 1;
}
static int scatter(owner_t owner, struct ibv_sge *g, int n, char *data, uint32_t bytes) {
    uint32_t put = 0;
    for (int i = 0; i < n && put < bytes; i++) {
        uint32_t now = bytes - put < g[i].length ? bytes - put : g[i].length;
        if (!copy(owner, place(owner, &g[i]), data + put, now, 1)) return 0;
        put += now;
    }
    if (put < bytes) DIE("a receive is too short");
    return 1;
}
#ifdef SERVER
static void bury(owner_t owner) {
    for (struct qp *q = world->qps; q < world->qps + MANY; q++)
        if (q->owner == owner) q->owner = 0;
    for (struct cq *q = world->cqs; q < world->cqs + MANY; q++)
        if (q->owner == owner) q->owner = 0;
    for (struct mr *m = world->mrs; m < world->mrs + 256; m++)
        if (m->owner == owner) m->owner = 0;
}
// Nothing of a process that was killed is executed: who has its id now has other memory there.
static int is_there(owner_t owner) {
    if (owner_with(pid_of(owner)) == owner) return 1;
    bury(owner);
    return 0;
}
#else
static int is_there(owner_t owner) { return owner != 0; }
#endif
static void execute(struct qp *q, struct wqe *w) {
    struct qp *p = world->qps;
    while (p < world->qps + MANY && (!p->owner || p->qpn != q->peer || p->peer != q->qpn)) p++;
    if (p == world->qps + MANY || (p->state != IBV_QPS_RTR && p->state != IBV_QPS_RTS)) return;
    if (!is_there(p->owner)) return;
    uint32_t bytes = w->inl_bytes;
    for (int i = 0; i < w->n; i++) bytes += w->g[i].length;
    int reads = w->op == IBV_WR_RDMA_READ, atomic = w->op >= IBV_WR_ATOMIC_CMP_AND_SWP;
    int sends = w->op == IBV_WR_SEND || w->op == IBV_WR_SEND_WITH_IMM, consumes = sends;
    consumes |= w->op == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (consumes && p->rh == p->rt) return; // not ready
    uint64_t there = sends ? 0 : remote(p->owner, w->addr, bytes, w->rkey);
    if (!sends && bytes && !there) return fail(q, IBV_WC_REM_ACCESS_ERR);
    char *data = malloc(bytes + 1);
    int done = reads || atomic || gather(q, w, data);
    if (consumes && done) {
        struct rqe *e = &p->r[p->rh % REQUESTS];
        struct ibv_wc wc = {.wr_id = e->id,
                            .byte_len = bytes,
                            .qp_num = p->qpn,
                            .imm_data = w->imm,
                            .opcode = sends ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
                            .wc_flags = w->op == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM};
        done = sends ? scatter(p->owner, e->g, e->n, data, bytes)
                     : !bytes || copy(p->owner, there, data, bytes, 1);
        if (done) p->rh++, push(world->cqs + p->cq.recv, wc);
    } else if (reads) {
        done = copy(p->owner, there, data, bytes, 0) && scatter(q->owner, w->g, w->n, data, bytes);
    } else if (atomic) {
        uint64_t old, new;
        done = copy(p->owner, there, &old, 8, 0);
        new = w->op == IBV_WR_ATOMIC_FETCH_AND_ADD ? old + w->add : w->swap;
        if (done && (w->op == IBV_WR_ATOMIC_FETCH_AND_ADD || old == w->add))
            done = copy(p->owner, there, &new, 8, 1);
        done = done && copy(q->owner, place(q->owner, &w->g[0]), &old, 8, 1);
    } else if (bytes && done) {
        done = copy(p->owner, there, data, bytes, 1);
    }
    free(data);
    w->done = done;
}
static void move_all(void) {
    enter();
    for (struct qp *q = world->qps; q < world->qps + MANY; q++) {
        if (!q->owner || q->sh == q->st || r(3) == 0) continue;
        if (!is_there(q->owner)) continue; // It was killed: its requests are dead.
        unsigned at = q->sh;
        while (at != q->st && q->s[at % REQUESTS].done) at++;
        if (at != q->sh && r(2)) complete(q, IBV_WC_SUCCESS);
        else if (at != q->st)
            execute(q, &q->s[at % REQUESTS]);
    }
    pthread_mutex_unlock(&world->lock);
}

// A libibverbs in memory: adapters "fake0" and "fake1" reach each other. The shadow opens it in
// place of the real one, so programs run through the shadow on any machine. Something moves the
// queue pairs: requests are executed in order, acknowledged later; a send that finds no receive
// waits. What the specification forbids ends the process. Numbers and keys of a queue pair or
// region are never used twice: a rebuild that mixes them up is noticed.
//
// One process: its own thread moves. Several: FAKE_IBVERBS_WORLD is a file below
// /dev/shm/infiniband/, which they share, and FAKE_IBVERBS_SERVER a program made of this file with
// -DSERVER, which whoever comes first starts: it is the adapter, and copies between processes. What
// a process has mapped of it is device memory: it is in no image.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
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
#include "fake_adapter.h"

static void begin(struct world *fresh) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh->lock, &a);
    fresh->next_qpn = 0x11, fresh->next_key = 0x100, fresh->seed = 88172645463325252ul;
    world = fresh;
    __atomic_store_n(&fresh->ready, 1, __ATOMIC_RELEASE);
}
static struct world *map(int fd) {
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *at = mmap(0, sizeof(struct world), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) DIE("no memory");
    return at;
}
static int file(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) DIE("%s: %s", name, strerror(errno));
    return fd;
}
#ifdef SERVER
// The adapter: `server FILE`. Ends when nobody has used it for a while.
int main(int c, char **v) {
    int fd = c == 2 ? file(v[1]) : -1;
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB)) return 1;
    if (ftruncate(fd, 0) || ftruncate(fd, sizeof(struct world))) return 1;
    begin(map(fd));
    for (unsigned turn = 0, idle = 0; idle < 6000; turn++) {
        move_all();
        if (turn % 1000 == 0) {
            int used = 0;
            enter();
            for (struct mr *m = world->mrs; m < world->mrs + 256; m++) {
                used |= m->owner && is_there(m->owner);
            }
            pthread_mutex_unlock(&world->lock);
            idle = used ? 0 : idle + 1;
        }
        usleep(turn % 8 ? 0 : 50);
    }
    return 0;
}
#else
static void *move(void *unused) {
    (void)unused;
    for (;;) move_all(), sched_yield();
    return 0;
}
static int is_mapped(const char *name) {
    char line[1000];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found |= strstr(line, name) != 0;
    if (maps) fclose(maps);
    return found;
}
static void start(const char *server, const char *name) {
    pid_t child = fork();
    if (child == 0) {
        for (int fd = 0; fd < 1024; fd++) close(fd);
        open("/dev/null", O_RDWR), dup(0), dup(0);
        setsid();
        char *arguments[] = {(char *)server, (char *)name, 0}, *nothing[] = {0};
        if (fork() == 0) execve(server, arguments, nothing);
        _exit(0);
    }
    waitpid(child, 0, 0);
}
static struct ibv_device devices[2];
static void attach(void) {
    const char *name = getenv("FAKE_IBVERBS_WORLD"), *server = getenv("FAKE_IBVERBS_SERVER");
    for (int i = 0; i < 2; i++) snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
    if (!name || !server) {
        pthread_t thread;
        if (world) return;
        begin(map(-1));
        if (pthread_create(&thread, 0, move, 0)) DIE("no thread");
        return;
    }
    if (world && is_mapped(name)) return;
    mkdir("/dev/shm/infiniband", 0700);
    for (int tries = 0; tries < 1000; tries++) {
        struct stat s;
        int fd = file(name);
        if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
            flock(fd, LOCK_UN);
            if (tries % 50 == 0) start(server, name);
        } else if (!fstat(fd, &s) && s.st_size == sizeof(struct world)) {
            world = map(fd);
            close(fd);
            while (!__atomic_load_n(&world->ready, __ATOMIC_ACQUIRE)) usleep(1000);
            return;
        }
        close(fd);
        usleep(10000);
    }
    DIE("no adapter");
}

static int post_send(struct ibv_qp *u, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    struct qp *q = ((struct my_qp *)u)->at;
    int error = 0;
    enter();
    for (; wr; wr = wr->next) {
        if (q->st - q->sh >= q->cap.max_send_wr) {
            error = ENOMEM;
            *bad = wr;
            break;
        }
        if (q->state != IBV_QPS_RTS && q->state != IBV_QPS_ERR) DIE("a send in state %d", q->state);
        struct wqe *w = &q->s[q->st % REQUESTS];
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
        q->st++;
    }
    pthread_mutex_unlock(&world->lock);
    return error;
}
static int post_recv(struct ibv_qp *u, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    struct qp *q = ((struct my_qp *)u)->at;
    int error = 0;
    enter();
    for (; wr; wr = wr->next) {
        if (q->rt - q->rh >= q->cap.max_recv_wr) {
            error = ENOMEM;
            *bad = wr;
            break;
        }
        struct rqe *e = &q->r[q->rt % REQUESTS];
        e->id = wr->wr_id, e->n = wr->num_sge;
        memcpy(e->g, wr->sg_list, wr->num_sge * sizeof *e->g);
        q->rt++;
    }
    pthread_mutex_unlock(&world->lock);
    return error;
}
static int poll_cq(struct ibv_cq *u, int n, struct ibv_wc *w) {
    struct cq *q = ((struct my_cq *)u)->at;
    int k = 0;
    LOCKED(while (k < n && q->head != q->tail) w[k++] = q->w[q->head++ % ENTRIES]);
    return k;
}
static int req_notify(struct ibv_cq *u, int solicited) {
    (void)solicited;
    LOCKED(((struct my_cq *)u)->at->armed = 1);
    return 0;
}
EXPORT struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list = calloc(3, sizeof *list);
    attach();
    list[0] = devices, list[1] = devices + 1;
    if (n) *n = 2;
    return list;
}
EXPORT void ibv_free_device_list(struct ibv_device **list) { free(list); }
EXPORT const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
EXPORT struct ibv_context *ibv_open_device(struct ibv_device *d) {
    struct ibv_context *c = NEW(ibv_context);
    attach();
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
EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status) {
    return status == IBV_WC_SUCCESS ? "success" : "failed";
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
    struct my_mr *m = NEW(my_mr);
    owner_t owner = owner_with(getpid());
    (void)access;
    m->u = (struct ibv_mr){.context = p->context, .pd = p, .addr = a, .length = n};
    enter();
    for (m->at = world->mrs; m->at->owner;)
        if (++m->at == world->mrs + 256) DIE("too many regions");
    *m->at = (struct mr){owner, (uintptr_t)a, n, iova, world->next_key += 0x100, 0};
    m->u.lkey = m->at->lkey, m->u.rkey = m->at->rkey = m->at->lkey + 7;
    pthread_mutex_unlock(&world->lock);
    return &m->u;
}
EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *a, size_t n, int access) {
    return ibv_reg_mr_iova2(p, a, n, (uintptr_t)a, access);
}
EXPORT int ibv_dereg_mr(struct ibv_mr *u) {
    LOCKED(((struct my_mr *)u)->at->owner = 0);
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
    LOCKED(*cq = c->events[c->head]);
    *context = (*cq)->cq_context;
    return 0;
}
EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) { (void)cq, (void)n; }
EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *x, int n, void *context,
                                    struct ibv_comp_channel *c, int v) {
    struct my_cq *q = NEW(my_cq);
    owner_t owner = owner_with(getpid());
    (void)v;
    if (n > ENTRIES) DIE("%d entries", n);
    enter();
    for (q->at = world->cqs; q->at->owner;)
        if (++q->at == world->cqs + MANY) DIE("too many queues");
    q->u = (struct ibv_cq){.context = x, .cq_context = context, .channel = c, .cqe = n};
    memset(q->at, 0, sizeof *q->at);
    q->at->owner = owner, q->at->size = n, q->at->channel = c, q->at->fd = c ? c->fd : -1;
    if (c) ((struct channel *)c)->events[((struct channel *)c)->tail++ % 64] = &q->u;
    pthread_mutex_unlock(&world->lock);
    return &q->u;
}
EXPORT int ibv_destroy_cq(struct ibv_cq *u) {
    struct cq *at = ((struct my_cq *)u)->at;
    int number = at - world->cqs, busy = 0;
    enter();
    for (struct qp *q = world->qps; q < world->qps + MANY; q++)
        busy |= q->owner && (q->cq.send == number || q->cq.recv == number);
    if (!busy) at->owner = 0;
    pthread_mutex_unlock(&world->lock);
    if (!busy) free(u);
    return busy ? EBUSY : 0;
}
EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a) {
    struct my_qp *q = NEW(my_qp);
    owner_t owner = owner_with(getpid());
    if (a->cap.max_send_wr > REQUESTS || a->cap.max_recv_wr > REQUESTS) DIE("too many requests");
    q->a = *a;
    q->u.context = p->context, q->u.pd = p, q->u.qp_context = a->qp_context,
    q->u.qp_type = a->qp_type;
    enter();
    for (q->at = world->qps; q->at->owner;)
        if (++q->at == world->qps + MANY) DIE("too many queue pairs");
    memset(q->at, 0, sizeof *q->at);
    q->at->owner = owner, q->at->cap = a->cap, q->at->signal_all = a->sq_sig_all;
    q->at->cq.send = ((struct my_cq *)a->send_cq)->at - world->cqs;
    q->at->cq.recv = ((struct my_cq *)a->recv_cq)->at - world->cqs;
    q->u.qp_num = q->at->qpn = world->next_qpn++;
    pthread_mutex_unlock(&world->lock);
    return &q->u;
}
EXPORT int ibv_modify_qp(struct ibv_qp *u, struct ibv_qp_attr *a, int mask) {
    struct qp *q = ((struct my_qp *)u)->at;
    if (mask & IBV_QP_DEST_QPN) {
        if (a->dest_qp_num >> 23) DIE("a virtual number reached the adapter");
        if (a->ah_attr.dlid != 0x20 && a->ah_attr.dlid != 0x21) DIE("LID %#x", a->ah_attr.dlid);
    }
    LOCKED(if (mask & IBV_QP_DEST_QPN) q->peer = a->dest_qp_num;
           if (mask & IBV_QP_STATE) u->state = q->state = a->qp_state;
           if (q->state == IBV_QPS_ERR) fail(q, IBV_WC_SUCCESS));
    return 0;
}
EXPORT int ibv_query_qp(struct ibv_qp *u, struct ibv_qp_attr *a, int m,
                        struct ibv_qp_init_attr *i) {
    (void)m;
    memset(a, 0, sizeof *a);
    a->qp_state = ((struct my_qp *)u)->at->state, *i = ((struct my_qp *)u)->a;
    return 0;
}
EXPORT int ibv_destroy_qp(struct ibv_qp *u) {
    LOCKED(((struct my_qp *)u)->at->owner = 0);
    free(u);
    return 0;
}
// So that it can be told from a refusal.
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *p, uint64_t offset, size_t bytes,
                                        uint64_t iova, int fd, int access) {
    (void)p, (void)offset, (void)bytes, (void)iova, (void)fd, (void)access;
    errno = EBADF;
    return NULL;
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
                        ABSENT(ibv_set_ece) ABSENT(ibv_import_device)
#endif

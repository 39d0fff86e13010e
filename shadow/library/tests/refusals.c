// What a shadow refuses, each twice: prints a line for each with what was returned and errno. What
// is not refused works before and after.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static char memory[64];

static struct ibv_qp_init_attr plain_pair(enum ibv_qp_type type) {
    struct ibv_qp_cap cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
                             .max_recv_sge = 1};
    return (struct ibv_qp_init_attr){.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = type};
}

static struct ibv_qp_init_attr_ex extended_pair(uint32_t mask, enum ibv_qp_type type) {
    struct ibv_qp_init_attr plain = plain_pair(type);
    return (struct ibv_qp_init_attr_ex){.send_cq = cq, .recv_cq = cq, .cap = plain.cap,
                                        .qp_type = type, .comp_mask = mask, .pd = pd};
}

static const void *memory_window(void) { return ibv_alloc_mw(pd, IBV_MW_TYPE_1); }
static const void *extended_sends(void) {
    struct ibv_qp_init_attr_ex want =
        extended_pair(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_QPT_RC);
    want.send_ops_flags = IBV_QP_EX_WITH_SEND;
    return ibv_create_qp_ex(context, &want);
}
static const void *xrc_receiver(void) {
    struct ibv_qp_init_attr_ex want = extended_pair(IBV_QP_INIT_ATTR_XRCD, IBV_QPT_XRC_RECV);
    return ibv_create_qp_ex(context, &want);
}
static const void *opened_pair(void) {
    struct ibv_qp_open_attr want = {.comp_mask = IBV_QP_OPEN_ATTR_NUM, .qp_num = 1};
    return ibv_open_qp(context, &want);
}
static const void *extended_srq(void) {
    struct ibv_srq_init_attr_ex want = {
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_XRC,
        .pd = pd};
    return ibv_create_srq_ex(context, &want);
}
static const void *xrc_domain(void) {
    struct ibv_xrcd_init_attr want = {.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1};
    return ibv_open_xrcd(context, &want);
}
static const void *device_memory(void) {
    struct ibv_alloc_dm_attr want = {.length = 64};
    return ibv_alloc_dm(context, &want);
}
static const void *work_queue(void) {
    struct ibv_wq_init_attr want = {.wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = pd,
                                    .cq = cq};
    return ibv_create_wq(context, &want);
}
static const void *thread_domain(void) {
    struct ibv_td_init_attr want = {0};
    return ibv_alloc_td(context, &want);
}
static const void *parent_domain(void) {
    struct ibv_parent_domain_init_attr want = {.pd = pd};
    return ibv_alloc_parent_domain(context, &want);
}
static const void *dmabuf(void) { return ibv_reg_dmabuf_mr(pd, 0, 64, 0, -1, 0); }
static const void *unreliable_pair(void) {
    struct ibv_qp_init_attr want = plain_pair(IBV_QPT_UC);
    return ibv_create_qp(pd, &want);
}
static const void *imported(void) { return ibv_import_device(-1); }
// Functions that return numbers: a null pointer for a refusal, which errno describes.
static const void *changed_region(void) {
    return ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) ? NULL : mr;
}
static const void *returned(int error) {
    errno = error;
    return error ? NULL : memory;
}
static const void *multicast(void) {
    union ibv_gid gid = {{0}};
    return returned(ibv_attach_mcast(qp, &gid, 0));
}
static const void *operation(void) {
    struct ibv_send_wr request = {.wr_id = 7, .opcode = IBV_WR_LOCAL_INV}, *bad = NULL;
    int error = ibv_post_send(qp, &request, &bad);
    return bad == &request ? returned(error) : memory;
}
static const void *vendor(void) {
    bool (*is_supported)(void *) = dlsym(RTLD_DEFAULT, "mlx5dv_is_supported");
    int (*query)(void *, void *) = dlsym(RTLD_DEFAULT, "mlx5dv_query_device");
    if (!is_supported || !query || is_supported(context->device)) return memory;
    return returned(query(context, memory));
}

static const struct {
    const char *name;
    const void *(*call)(void);
} refused[] = {
    {"memory window", memory_window},
    {"extended sends", extended_sends},
    {"XRC receiver", xrc_receiver},
    {"opened pair", opened_pair},
    {"extended SRQ", extended_srq},
    {"XRC domain", xrc_domain},
    {"device memory", device_memory},
    {"work queue", work_queue},
    {"thread domain", thread_domain},
    {"parent domain", parent_domain},
    {"dmabuf", dmabuf},
    {"unreliable pair", unreliable_pair},
    {"imported", imported},
    {"changed region", changed_region},
    {"multicast", multicast},
    {"operation", operation},
    {"vendor", vendor},
};

// Also through the extended function where that is but another name of the plain one.
static void works(void) {
    struct ibv_qp_init_attr want = plain_pair(IBV_QPT_RC);
    struct ibv_qp_init_attr_ex more = extended_pair(IBV_QP_INIT_ATTR_PD, IBV_QPT_RC);
    struct ibv_qp *made = ibv_create_qp(pd, &want), *as_well = ibv_create_qp_ex(context, &more);
    if (!made || !as_well || ibv_destroy_qp(made) || ibv_destroy_qp(as_well))
        printf("a plain queue pair does not work: %s\n", strerror(errno)), exit(3);
}

int main(int argc, char **argv) {
    int number;
    struct ibv_device **all = ibv_get_device_list(&number);
    bool only_dmabuf = argc > 1 && !strcmp(argv[1], "dmabuf");
    if (!all || !number || !(context = ibv_open_device(all[0])) || !(pd = ibv_alloc_pd(context))
        || !(cq = ibv_create_cq(context, 8, NULL, NULL, 0))
        || !(mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)))
        printf("no device: %s\n", strerror(errno)), exit(2);
    struct ibv_qp_init_attr want = plain_pair(IBV_QPT_RC);
    qp = ibv_create_qp(pd, &want);
    for (int time = 0; time < 2; time++)
        for (size_t at = 0; at < sizeof refused / sizeof *refused; at++) {
            if (only_dmabuf && refused[at].call != dmabuf) continue;
            errno = 0;
            const void *got = refused[at].call();
            printf("%s: %s, errno %d\n", refused[at].name, got ? "made" : "refused", errno);
        }
    works();
    puts("all is well");
    return 0;
}

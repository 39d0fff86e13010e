/*
 * MCA variables. The names below get the prefix btl_rustbtl_.
 */
#include "btl_rustbtl.h"

#include "opal/mca/base/base.h"

mca_btl_rustbtl_params_t mca_btl_rustbtl_params = {
    .settings = {
        .shm_directory = "/dev/shm",
        .tcp_if_include = "",
        .tcp_if_exclude = "",
        .shm_ring = 0,
        .tcp_socket_buffer = 0,
        .tcp_max_bytes = 128 << 10,
        .tcp_connect_timeout = 30000,
        .tcp_silence_timeout = 30000,
    },
    /* Stock: self and vader 65536, tcp 100. */
    .exclusivity = MCA_BTL_EXCLUSIVITY_LOW + 50,
    .shm_eager_limit = (16 << 10) + 64,
    .tcp_eager_limit = 64 << 10,
    .peer_loss_timeout = 5000,
    .shm = true,
    .single_copy = true,
    .ipv4 = true,
    .ipv6 = true,
    .encrypt = false,
    .tcp_put = true,
    /* osc/rdma of 4.1 has faults that osc/pt2pt has not. That of 5.0 has none that we know, but
     * in what it makes of messages itself: MPI_Fetch_and_op with MPI_BXOR, over sm and tcp too. */
    .one_sided = CORRELATED_OMPI_5,
};

static int add(const char *name, const char *help, mca_base_var_type_t type, int level, void *store)
{
    return mca_base_component_var_register(&mca_btl_rustbtl_component.btl_version, name, help, type,
                                           NULL, 0, 0, (mca_base_var_info_lvl_t) (level - 1),
                                           MCA_BASE_VAR_SCOPE_READONLY, store);
}

int mca_btl_rustbtl_register(void)
{
    mca_btl_rustbtl_params_t *all = &mca_btl_rustbtl_params;
    rustbtl_btl_settings_t *settings = &all->settings;
    (void) add("exclusivity",
               "Where two BTLs reach a process, the one with the higher number is used. This one "
               "is only opened in jobs whose parameter btl names it. It protects nothing: for "
               "fault tolerance use `--mca pml v --mca vprotocol correlated`",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 7, &all->exclusivity);
    (void) add("shm", "Use shared memory between the ranks of a node (else TCP)",
               MCA_BASE_VAR_TYPE_BOOL, 3, &all->shm);
    (void) add("shm_directory", "Memory file system for the memory that the ranks of a node share",
               MCA_BASE_VAR_TYPE_STRING, 5, &settings->shm_directory);
    (void) add("shm_ring",
               "Bytes of the ring in shared memory from one rank to another, a power of two; 0: by "
               "the number of ranks on the node (128 KiB to 16 KiB). The same for all ranks",
               MCA_BASE_VAR_TYPE_UNSIGNED_LONG, 5, &settings->shm_ring);
    (void) add("shm_eager_limit",
               "Messages within a node up to this size, with Open MPI's header, are sent at once",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 4, &all->shm_eager_limit);
    (void) add("single_copy",
               "Longer ones within a node are read from where they lie, by cross-memory attach. "
               "Where the kernel does not permit that they are sent through the ring",
               MCA_BASE_VAR_TYPE_BOOL, 4, &all->single_copy);
    (void) add("tcp_if_include",
               "Network interfaces to use: names and networks (eth0,10.0.0.0/8). Empty: all that "
               "tcp_if_exclude leaves",
               MCA_BASE_VAR_TYPE_STRING, 2, &settings->tcp_if_include);
    (void) add("tcp_if_exclude",
               "Network interfaces not to use. Empty: the loopback, unless there is nothing else",
               MCA_BASE_VAR_TYPE_STRING, 2, &settings->tcp_if_exclude);
    (void) add("tcp_ipv4", "Use IPv4", MCA_BASE_VAR_TYPE_BOOL, 4, &all->ipv4);
    (void) add("tcp_ipv6", "Use IPv6", MCA_BASE_VAR_TYPE_BOOL, 4, &all->ipv6);
    (void) add("tcp_encrypt",
               "Encrypt connections between nodes. The same for all ranks. (They are authenticated "
               "always)",
               MCA_BASE_VAR_TYPE_BOOL, 3, &all->encrypt);
    (void) add("tcp_eager_limit",
               "Messages over TCP up to this size, with Open MPI's header, are sent at once",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 4, &all->tcp_eager_limit);
    (void) add("tcp_max_send_size", "Longer ones are sent in pieces of this size",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 4, &settings->tcp_max_bytes);
    (void) add("tcp_put",
               "Write long messages straight into the memory of the receiver, once it has said "
               "where",
               MCA_BASE_VAR_TYPE_BOOL, 4, &all->tcp_put);
    (void) add("one_sided",
               "Offer put, get and atomics on the memory of all ranks, between nodes, too: then "
               "Open MPI's one-sided component rdma is chosen for windows. Without it they are "
               "served by the component pt2pt (4.1), or by rdma over messages (5.0). By default on "
               "with 5.0, off with 4.1, whose rdma has faults (see rustbtl's user guide)",
               MCA_BASE_VAR_TYPE_BOOL, 4, &all->one_sided);
    (void) add("tcp_socket_buffer", "SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them",
               MCA_BASE_VAR_TYPE_UNSIGNED_LONG, 4, &settings->tcp_socket_buffer);
    (void) add("tcp_connect_timeout",
               "Milliseconds in which a process must be reached, all its addresses together",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 4, &settings->tcp_connect_timeout);
    (void) add("tcp_silence_timeout",
               "Milliseconds after which a process is lost whose node acknowledges nothing; 0: the "
               "kernel's limits",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 4, &settings->tcp_silence_timeout);
    (void) add("peer_loss_timeout",
               "Milliseconds that mpirun has to end a job of which a process is lost, before this "
               "BTL does",
               MCA_BASE_VAR_TYPE_UNSIGNED_INT, 5, &all->peer_loss_timeout);
    return OPAL_SUCCESS;
}

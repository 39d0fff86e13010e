/*
 * MCA variables. The names below get the prefix vprotocol_correlated_.
 */
#include "vprotocol_correlated.h"

#include "compat.h"
#include "opal/mca/base/base.h"

#if CORRELATED_OMPI_5
/* Those of protection, which mpirun reads: for ompi_info (errmgr_correlated_params.c). */
void mca_errmgr_correlated_register_params(void);
#endif

rustbtl_config_t mca_vprotocol_correlated_config = {
    .sets = "node",
    .log_budget = "auto",
    .log_spill_dir = "",
    .single_copy = "auto",
    .shm_directory = "/dev/shm",
    .tcp_if_include = "",
    .tcp_if_exclude = "",
    .report = "",
    .verbs = "0",
    .verbs_if_include = "",
    .verbs_gid_index = "auto",
    .log_segment_max = 4ull << 20,
    .shm_ring = 0,
    .tcp_socket_buffer = 0,
    .tcp_receive_buffer = 256 << 10,
    .file_undo_max = 1ull << 30,
    .shm_eager_limit = 0,
    .tcp_eager_limit = 0,
    .tcp_chunk = 0,
    .verbs_read_min = 32768,
    .tcp_connect_timeout = 30000,
    .spin = 20000,
    .spin_oversubscribed = 0,
    .tcp_poll_interval = 64,
    .peer_loss_timeout = 5000,
    .verbose = 0,
    .shm = 1,
    .tcp_ipv4 = 1,
    .tcp_ipv6 = 1,
    .summary = 0,
    .huge_pages = 0,
    .record_clock = 1,
    .verify_sends = 1,
    .piggyback = 1,
    .trim_received = 1,
    .overhead_max = 30,
    .log_full = RUSTBTL_LOG_SUSPEND,
};

static bool use_shm = true, use_ipv4 = true, use_ipv6 = true, want_encryption = false,
            want_summary = false,
            want_huge_pages = false, record_clock = true, verify_sends = true,
            piggyback = true, trim_received = true;
static double overhead_max = 3;
static uint8_t one_sided, collectives, over_sets, over_sets_all;

bool mca_vprotocol_correlated_one_sided = true;
uint64_t mca_vprotocol_correlated_window_mapped_max = 8 << 20;
/* With 5.0 these were not tried enough. */
bool mca_vprotocol_correlated_collectives = OMPI_MAJOR_VERSION < 5;
bool mca_vprotocol_correlated_collectives_over_sets = true;
bool mca_vprotocol_correlated_collectives_over_sets_all = false;
uint64_t mca_vprotocol_correlated_collectives_memory = 256ull << 20;
uint32_t mca_vprotocol_correlated_collectives_ranks_max = 16;
static int log_full = RUSTBTL_LOG_SUSPEND;

int mca_vprotocol_correlated_priority = 100;
int mca_vprotocol_correlated_stream = -1;

/* The name that a variable had in 0.1.0: still valid; ompi_info shows it as deprecated. */
static void renamed(int variable, const char *old)
{
    if (0 <= variable) {
        (void) mca_base_var_register_synonym(variable, "ompi", "vprotocol", "correlated", old,
                                             MCA_BASE_VAR_SYN_FLAG_DEPRECATED);
    }
}

static void text(const char *name, const char **where, int level, mca_base_var_scope_t scope,
                 const char *help)
{
    (void) mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version, name,
                                           help, MCA_BASE_VAR_TYPE_STRING, NULL, 0, 0, level - 1,
                                           scope, where);
}

static int bytes(const char *name, uint64_t *where, int level, const char *help)
{
    return mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version, name,
                                           help, MCA_BASE_VAR_TYPE_UINT64_T, NULL, 0, 0,
                                           level - 1, MCA_BASE_VAR_SCOPE_READONLY, where);
}

static int number(const char *name, uint32_t *where, int level, const char *help)
{
    return mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version, name,
                                           help, MCA_BASE_VAR_TYPE_UINT32_T, NULL, 0, 0,
                                           level - 1, MCA_BASE_VAR_SCOPE_READONLY, where);
}

/* bool variables have bool storage; the value is copied after registration */
static void flag_that_was(const char *old, const char *name, bool *where, uint8_t *copy, int level,
                          const char *help)
{
    int variable
        = mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version, name,
                                           help, MCA_BASE_VAR_TYPE_BOOL, NULL, 0, 0, level - 1,
                                           MCA_BASE_VAR_SCOPE_READONLY, where);
    if (NULL != old) {
        renamed(variable, old);
    }
    *copy = *where ? 1 : 0;
}

static void flag(const char *name, bool *where, uint8_t *copy, int level, const char *help)
{
    flag_that_was(NULL, name, where, copy, level, help);
}

static void register_log(rustbtl_config_t *c)
{
    text("sets", &c->sets, 2, MCA_BASE_VAR_SCOPE_ALL_EQ,
         "Which processes are expected to fail together (correlated set): node, core or none "
         "(every process its own: plain message logging), numa, socket, l3, all, or file:PATH (one "
         "set of world ranks a line, e.g. 0-3,8; every rank exactly once). Payloads of messages "
         "that leave a set are kept in the sender's memory.");
    text("log_budget", &c->log_budget, 3, MCA_BASE_VAR_SCOPE_READONLY,
         "Memory in bytes that a process' payload log may take (suffixes k, m, g). Past it, the "
         "log goes to a file (see log_spill_dir). auto: an eighth of the node's memory (or of the "
         "job's limit there, if it has one) divided by the job's processes on the node, 64m at "
         "least and 4g at most. 0: all of it goes to the file. -1: no limit.");
    text("log_spill_dir", &c->log_spill_dir, 3, MCA_BASE_VAR_SCOPE_READONLY,
         "Directory for the part of the payload log that exceeds log_budget. Empty: the process' "
         "session directory. \"none\": never spill; a send that finds no room fails with "
         "MPI_ERR_NO_MEM.");
    int prefault = bytes("log_prefault", &c->log_prefault, 5,
          "Memory in bytes of the payload log whose pages are made in MPI_Init (suffixes k, m, g; "
          "within log_budget). Pages that are made when they are needed make long messages to "
          "other nodes slower until the log is first trimmed; memory that was trimmed is used "
          "again. 0: none.");
    renamed(prefault, "log_ready");
    static mca_base_var_enum_value_t reactions[] = { { RUSTBTL_LOG_SUSPEND, "suspend" },
                                                     { RUSTBTL_LOG_CHECKPOINT, "checkpoint" },
                                                     { RUSTBTL_LOG_SPILL, "spill" },
                                                     { 0, NULL } };
    mca_base_var_enum_t *reaction = NULL;
    (void) mca_base_var_enum_create("vprotocol_correlated_log_full", reactions, &reaction);
    (void) mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version,
                                           "log_full",
                                           "What is done when a payload log has taken half of "
                                           "log_budget. suspend: logging towards the set that "
                                           "holds most of it is suspended until its next "
                                           "checkpoint; until then a failure of that set rolls "
                                           "back all ranks. checkpoint: a checkpoint of that set "
                                           "is taken. spill: nothing; what exceeds the budget goes "
                                           "to a file (see log_spill_dir).",
                                           MCA_BASE_VAR_TYPE_INT, reaction, 0, 0,
                                           OPAL_INFO_LVL_3, MCA_BASE_VAR_SCOPE_READONLY,
                                           &log_full);
    c->log_full = (uint8_t) log_full;
    if (NULL != reaction) {
        OBJ_RELEASE(reaction);
    }
    (void) mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version,
                                           "overhead_max",
                                           "What protection may cost while nothing fails, in "
                                           "percent of the time. Checkpoints are taken as often as "
                                           "a third of it pays for (if "
                                           "vprotocol_correlated_checkpoint_interval does not say "
                                           "when); where the payload log costs more than the rest, "
                                           "logging towards the set that causes it is suspended "
                                           "until its next checkpoint, and until then a failure of "
                                           "that set rolls back all ranks. 0: no limit.",
                                           MCA_BASE_VAR_TYPE_DOUBLE, NULL, 0, 0,
                                           OPAL_INFO_LVL_2, MCA_BASE_VAR_SCOPE_READONLY,
                                           &overhead_max);
    c->overhead_max = 0 < overhead_max ? (uint32_t) (overhead_max * 10 + 0.5) : 0;
    (void) bytes("log_segment_max", &c->log_segment_max, 9,
          "Largest piece of memory that the payload log takes at a time (a power of two).");
}

static void register_files(rustbtl_config_t *c)
{
    (void) bytes("file_undo_max", &c->file_undo_max, 4,
          "Content of files in bytes (suffixes k, m, g) that a process records when it "
          "changes them between checkpoints, so that they can be put back when it is rolled "
          "back; beside the checkpoints, or in a hidden folder where the job was started. "
          "Only what is overwritten, cut off or removed counts: files that only grow cost "
          "nothing. A file for which there is no room is named, and is not put back. 0: "
          "nothing is recorded.");
}

static void register_shm(rustbtl_config_t *c)
{
    flag("shm", &use_shm, &c->shm, 9,
         "Shared memory between processes of a node. Off: they use TCP (for tests).");
    text("single_copy", &c->single_copy, 4, MCA_BASE_VAR_SCOPE_READONLY,
         "How large messages cross between processes of a node: cma (one copy by cross-memory "
         "attach), none (two copies through shared memory), auto (cma where the kernel permits "
         "it).");
    text("shm_directory", &c->shm_directory, 5, MCA_BASE_VAR_SCOPE_READONLY,
         "Directory of the node's shared-memory segment.");
    (void) number("shm_eager_limit", &c->shm_eager_limit, 4,
           "Largest message in bytes that crosses shared memory in one fragment. 0: choose.");
    (void) bytes("shm_ring", &c->shm_ring, 5,
          "Bytes of shared memory for each ordered pair of processes of a node. 0: by the number "
          "of processes.");
}

static void register_tcp(rustbtl_config_t *c)
{
    text("tcp_if_include", &c->tcp_if_include, 1, MCA_BASE_VAR_SCOPE_READONLY,
         "Comma-delimited list of devices or CIDR notation of networks to use for TCP (e.g., "
         "\"eth0,192.168.0.0/16\"). Mutually exclusive with tcp_if_exclude.");
    text("tcp_if_exclude", &c->tcp_if_exclude, 1, MCA_BASE_VAR_SCOPE_READONLY,
         "Comma-delimited list of devices or CIDR notation of networks not to use for TCP. Empty: "
         "the loopback, unless there is nothing else.");
    flag("tcp_ipv4", &use_ipv4, &c->tcp_ipv4, 4, "Use IPv4.");
    flag("tcp_ipv6", &use_ipv6, &c->tcp_ipv6, 4, "Use IPv6.");
    flag("tcp_encrypt", &want_encryption, &c->tcp_encrypt, 4,
         "Encrypt messages between nodes, so that who can read or change packets neither reads nor "
         "changes them. That takes processor time for each byte, at both ends.");
    (void) bytes("tcp_socket_buffer", &c->tcp_socket_buffer, 4,
          "Size in bytes of the send and receive buffers of sockets. 0: the kernel's own tuning.");
    (void) bytes("tcp_receive_buffer", &c->tcp_receive_buffer, 5,
          "Bytes that are read from a connection at a time.");
    (void) number("tcp_eager_limit", &c->tcp_eager_limit, 4,
           "Largest message in bytes that travels over TCP in one fragment. 0: choose.");
    (void) number("tcp_chunk", &c->tcp_chunk, 5,
           "Payload bytes of a fragment of a larger message over TCP. 0: choose.");
    (void) number("tcp_connect_timeout", &c->tcp_connect_timeout, 5,
           "Milliseconds after which an attempt to connect to a process is given up.");
}

static void register_verbs(rustbtl_config_t *c)
{
    text("verbs", &c->verbs, 3, MCA_BASE_VAR_SCOPE_READONLY,
         "Messages between nodes go over InfiniBand or RoCE: 0 (no), 1 (yes; where that cannot be "
         "at its start, the job ends), auto (where there is an adapter). A TCP connection stays "
         "beside each queue pair, and takes over when an adapter or a link fails.");
    text("verbs_if_include", &c->verbs_if_include, 3, MCA_BASE_VAR_SCOPE_READONLY,
         "Comma-delimited list of adapters, or adapters and ports, to use: the first one that is "
         "active (e.g., \"mlx5_0:1,mlx5_1\"), and the second one beside it for long messages. "
         "Empty: any, first those of the NUMA nodes that the process is bound to.");
    text("verbs_gid_index", &c->verbs_gid_index, 4, MCA_BASE_VAR_SCOPE_READONLY,
         "Index of the port's GID. auto: on InfiniBand 0, on Ethernet the first of RoCE v2, one "
         "with an IPv4 address if there is one.");
    (void) number("verbs_mtu", &c->verbs_mtu, 4,
           "Largest packet in bytes: 256, 512, 1024, 2048 or 4096. 0: the smaller one of what the "
           "two ports have.");
    (void) number("verbs_read_min", &c->verbs_read_min, 4,
           "Messages of so many bytes are read by their receivers from where they lie, by RDMA "
           "READ. 0: none; they are sent in pieces.");
}

static void register_rest(rustbtl_config_t *c)
{
    text("report", &c->report, 3, MCA_BASE_VAR_SCOPE_READONLY,
         "Directory into which each process writes its traffic as rank-<N>.json at the end.");
    flag("huge_pages", &want_huge_pages, &c->huge_pages, 4,
         "Before a checkpoint, have the kernel put the memory of the program into huge pages: the "
         "pause gets much shorter, and memory that was only partly used takes up to 2 MiB for each "
         "such part.");
    flag("record_clock", &record_clock, &c->record_clock, 4,
         "Where sets are rolled back alone: what the first thread reads from clocks (MPI_Wtime, "
         "time(), clock_gettime and the like) is recorded, and given again to a restarted "
         "process, which also draws the same random numbers of the system again: so programs "
         "that decide by time or chance can be protected. What was read goes with the next "
         "message to another set. Off: a program that only measures pays nothing for it. With "
         "MPI_THREAD_SERIALIZED only MPI_Wtime is recorded.");
    flag_that_was("check_content", "verify_sends", &verify_sends, &c->verify_sends, 4,
         "The header of each message that leaves its correlated set has a digest of it. If a "
         "restarted process sends something else than its receivers have, or another number of "
         "messages, all are rolled back to the last global checkpoint, in place of a wrong "
         "result. Of a message of more than 8 KiB a sample is compared.");
    flag_that_was("carry", "piggyback", &piggyback, &c->piggyback, 5,
         "Determinants are piggybacked on messages: a message to another set over TCP that depends "
         "on determinants that are not stable yet carries them, and its receiver keeps them until "
         "they are. Off: the message waits until they are stable.");
    flag("trim_received", &trim_received, &c->trim_received, 5,
         "Until a correlated set begins its first checkpoint, nothing can ask for what its "
         "processes have received: they acknowledge it, and its senders drop it from their payload "
         "logs, which stay small and in memory that is used again.");
    flag("one_sided", &mca_vprotocol_correlated_one_sided, &one_sided, 4,
         "One-sided communication (MPI_Win_*) goes over a component of our own, which is logged "
         "and replayed like messages. Off: over a component of Open MPI, and sets with windows are "
         "not rolled back alone.");
    (void) bytes("window_mapped_max", &mca_vprotocol_correlated_window_mapped_max, 6,
                 "Memory that MPI_Win_allocate gives, up to so many bytes (suffixes k, m, g), is "
                 "mapped by other ranks of the set on the node, who read and write it directly. "
                 "Such memory is copied while a checkpoint keeps the program waiting. What is "
                 "larger they access by messages and system calls.");
    flag("collectives", &mca_vprotocol_correlated_collectives, &collectives, 4,
         "Collectives of communicators that lie in one correlated set go over shared memory, by a "
         "component of our own (coll: correlated). Off (with Open MPI 5.0 by default): over Open "
         "MPI's own components.");
    flag("collectives_over_sets", &mca_vprotocol_correlated_collectives_over_sets, &over_sets, 5,
         "Barriers, bcasts, reduces, allreduces and gathers of communicators that lie in several "
         "correlated sets go over shared memory inside each set (see collectives), and "
         "by messages between them. Off: over Open MPI's own components.");
    flag("collectives_over_sets_all", &mca_vprotocol_correlated_collectives_over_sets_all,
         &over_sets_all, 6,
         "With collectives_over_sets also allgather(v), scatter, alltoall, "
         "reduce_scatter(_block), scan and exscan, which were not faster than Open MPI's on two "
         "processors.");
    (void) bytes("collectives_memory", &mca_vprotocol_correlated_collectives_memory, 6,
          "Shared memory in bytes that the collectives of all communicators of a process may use "
          "(see collectives). Communicators that find none left use messages.");
    (void) number("collectives_ranks_max", &mca_vprotocol_correlated_collectives_ranks_max, 6,
                  "Communicators with more ranks of one correlated set leave their collectives to "
                  "Open MPI's components (see collectives): each rank reads what each other one of "
                  "its set has written.");
    flag("summary", &want_summary, &c->summary, 3,
         "Print a table of the traffic of all processes in MPI_Finalize.");
    (void) number("verbose", &c->verbose, 9,
                  "Verbosity of the component's own output (0: none; 1: which files of the program "
                  "have code that reads the processor's counter or random numbers, which cannot be "
                  "recorded; 20: what is opened and chosen, checkpoints, restarts; 60: how each "
                  "peer is reached).");
    (void) mca_base_component_var_register(&mca_vprotocol_correlated_component.pmlm_version,
                                           "priority",
                                           "Priority of this PML, where mpirun's --mca pml leaves "
                                           "the choice.",
                                           MCA_BASE_VAR_TYPE_INT, NULL, 0, 0, OPAL_INFO_LVL_9,
                                           MCA_BASE_VAR_SCOPE_READONLY,
                                           &mca_vprotocol_correlated_priority);
    (void) number("spin", &c->spin, 5,
           "How often a waiting process polls for messages before it starts to yield its processor "
           "in between.");
    (void) number("spin_oversubscribed", &c->spin_oversubscribed, 5,
           "The same where a node has more processes than processors.");
    (void) number("tcp_poll_interval", &c->tcp_poll_interval, 6,
           "While only shared memory is busy, sockets are polled once in so many times.");
    int timeout = number("peer_loss_timeout", &c->peer_loss_timeout, 5,
           "Milliseconds that mpirun is given to end the job after a process was lost, before the "
           "job is aborted from within. A protected job is not: its guardians see to it.");
    renamed(timeout, "dead_peer_grace");
}

int mca_vprotocol_correlated_register(void)
{
    rustbtl_config_t *c = &mca_vprotocol_correlated_config;
    register_log(c);
    register_files(c);
    register_shm(c);
    register_tcp(c);
    register_verbs(c);
    register_rest(c);
    mca_vprotocol_correlated_register_pvars();
#if CORRELATED_OMPI_5
    mca_errmgr_correlated_register_params();
#endif
    return OMPI_SUCCESS;
}

/*
 * Nodes from which nothing comes: connections to other hosts are probed by the kernel, and how long
 * each has been silent is reported to the coordinator, which decides what has failed
 * (runtime/src/coordinator/job/rules/node_silence.rs, docs/adr/0030).
 *
 * 1. The kernel of the other node answers probes, however busy its processes are, also for one that
 *    is stopped. Both ways have to work: if nothing arrives there, what comes from there does not
 *    count (the kernel drops a probe or a repetition before it looks at its acknowledgement).
 * 2. A connection is not ended by silence: it lasts as long as Open MPI's own would, 8 minutes.
 * 3. In mpirun it is ended when the coordinator says so, and the loss of the daemon follows
 *    (errmgr_correlated_loss.c) as if the daemon had ended it.
 * 4. A daemon that hears nothing waits: mpirun's node may be cut off, and the job waits for that.
 *    Unless the interface of its own node has no carrier: then its ranks are restarted elsewhere by
 *    now, and it ends them.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_pipe.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int mca_errmgr_correlated_probe_interval(void)
{
    double seconds = mca_errmgr_correlated_params.failure_timeout / CORRELATED_PROBES_IN_IT;
    /* Also of a value that the coordinator refuses. */
    return 1 <= seconds && 600 >= seconds ? (int) seconds : 1;
}

static bool is_internet(int fd)
{
    int domain = 0;
    socklen_t size = sizeof(domain);
    return 0 == getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size)
           && (AF_INET == domain || AF_INET6 == domain);
}

/* Keepalive has no effect as long as data that was sent is not acknowledged; TCP_USER_TIMEOUT
 * limits both. Keepalive is set once more, since PRRTE sets its own before the job is known. */
static void set_keepalive_of(int fd)
{
    const int options[][3] = {
        { SOL_SOCKET, SO_KEEPALIVE, 1 },
        { IPPROTO_TCP, TCP_KEEPIDLE, mca_errmgr_correlated_probe_interval() },
        { IPPROTO_TCP, TCP_KEEPINTVL, mca_errmgr_correlated_probe_interval() },
        { IPPROTO_TCP, TCP_KEEPCNT, CORRELATED_PROBES_MAX },
        { IPPROTO_TCP, TCP_USER_TIMEOUT, CORRELATED_USER_TIMEOUT_MS },
    };
    if (!is_internet(fd)) {
        return;
    }
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        (void) setsockopt(fd, options[i][0], options[i][1], &options[i][2], sizeof(int));
    }
}

void mca_errmgr_correlated_set_keepalive(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (NULL == folder) {
        return;
    }
    /* Open MPI does not show which connections are to daemons. Others of mpirun stay on its host,
     * where they are never unreachable for so long. */
    for (struct dirent *entry = readdir(folder); NULL != entry; entry = readdir(folder)) {
        set_keepalive_of(atoi(entry->d_name));
    }
    closedir(folder);
}

/* An address without its port, and how long it is; NULL: of another kind, or of this host alone. */
static const void *address_of(const struct sockaddr *socket, size_t *bytes)
{
    static const struct in6_addr loopback = IN6ADDR_LOOPBACK_INIT;
    if (NULL == socket) {
        return NULL;
    }
    if (AF_INET == socket->sa_family) {
        const struct in_addr *address = &((const struct sockaddr_in *) socket)->sin_addr;
        *bytes = sizeof(*address);
        return 127 == ntohl(address->s_addr) >> 24 ? NULL : address;
    }
    if (AF_INET6 == socket->sa_family) {
        const struct in6_addr *address = &((const struct sockaddr_in6 *) socket)->sin6_addr;
        *bytes = sizeof(*address);
        return 0 == memcmp(address, &loopback, sizeof(loopback)) ? NULL : address;
    }
    return NULL;
}

static bool is_same_address(const struct sockaddr *one, const struct sockaddr *other)
{
    size_t bytes = 0, others = 0;
    const void *of_one = address_of(one, &bytes), *of_other = address_of(other, &others);
    return NULL != of_one && NULL != of_other && bytes == others
           && 0 == memcmp(of_one, of_other, bytes);
}

/* Is the interface with this address connected to anything? Yes, if that is not known. */
static bool has_carrier(const struct ifaddrs *interfaces, const struct sockaddr *own)
{
    for (const struct ifaddrs *at = interfaces; NULL != at; at = at->ifa_next) {
        if (is_same_address(at->ifa_addr, own)) {
            return 0 != (at->ifa_flags & IFF_RUNNING);
        }
    }
    return true;
}

/* Is this a connection to another host, and for how many milliseconds has nothing come from there?
 * The address of its own end. */
static bool silence_of(int fd, unsigned *ms, struct sockaddr_storage *own)
{
    struct sockaddr_storage peer;
    struct tcp_info info;
    socklen_t own_size = sizeof(*own), peer_size = sizeof(peer), info_size = sizeof(info);
    size_t bytes;
    memset(&info, 0, sizeof(info));
    if (!is_internet(fd) || 0 != getsockname(fd, (struct sockaddr *) own, &own_size)
        || 0 != getpeername(fd, (struct sockaddr *) &peer, &peer_size)
        || NULL == address_of((struct sockaddr *) &peer, &bytes)
        || is_same_address((struct sockaddr *) own, (struct sockaddr *) &peer)
        || 0 != getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size)
        || TCP_ESTABLISHED != info.tcpi_state) {
        return false;
    }
    /* Answers to probes count, too. */
    *ms = info.tcpi_last_ack_recv < info.tcpi_last_data_recv ? info.tcpi_last_ack_recv
                                                             : info.tcpi_last_data_recv;
    return true;
}

/* So long, and it is not by chance. */
static unsigned suspicious_ms(void)
{
    return (unsigned) (mca_errmgr_correlated_params.failure_timeout * 1000 / 2);
}

/* Calls `see` for each connection to another host. `carrier`: is its own interface connected to
 * anything? False: nobody could look. */
static bool for_each_connection(void (*see)(int fd, unsigned ms, bool carrier, void *into),
                                void *into)
{
    struct ifaddrs *interfaces = NULL;
    DIR *folder = opendir("/proc/self/fd");
    if (NULL == folder || 0 != getifaddrs(&interfaces)) {
        interfaces = NULL;
    }
    for (struct dirent *entry = NULL == folder ? NULL : readdir(folder); NULL != entry;
         entry = readdir(folder)) {
        struct sockaddr_storage own;
        unsigned ms = 0;
        const int fd = atoi(entry->d_name);
        if ('.' != entry->d_name[0] && silence_of(fd, &ms, &own)) {
            see(fd, ms, has_carrier(interfaces, (struct sockaddr *) &own), into);
        }
    }
    if (NULL != folder) {
        closedir(folder);
    }
    freeifaddrs(interfaces);
    return NULL != folder;
}

/* What is reported: all connections, those that are silent, and which these are. */
typedef struct measured {
    int count, silent;
    size_t used;
    char list[900];
} measured_t;

static void measure_one(int fd, unsigned ms, bool carrier, void *into)
{
    measured_t *measured = into;
    measured->count++;
    if (ms < suspicious_ms()) {
        return;
    }
    measured->silent++;
    /* Those for which there is no room are reported when these are decided. */
    const size_t room = sizeof(measured->list) - measured->used;
    int length = snprintf(measured->list + measured->used, room, " %d:%u%s", fd, ms,
                          carrier ? "" : "!");
    if (0 < length && (size_t) length < room) {
        measured->used += (size_t) length;
    } else {
        measured->list[measured->used] = '\0';
    }
}

void mca_errmgr_correlated_silence_measure(void)
{
    measured_t measured = { .count = 0 };
    char text[1000];
    if (!for_each_connection(measure_one, &measured)) {
        return; /* The coordinator asks again, and says that there was no answer. */
    }
    snprintf(text, sizeof(text), "%d %d%s", measured.count, measured.silent, measured.list);
    (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_QUIET, text);
}

void mca_errmgr_correlated_silence_cut(const char *id)
{
    struct sockaddr_storage own;
    unsigned ms = 0;
    /* Its number may be of another connection by now, or something has come. */
    if (silence_of(atoi(id), &ms, &own) && ms >= suspicious_ms()) {
        /* Open MPI reads the end of it, as if the daemon had closed it. */
        (void) shutdown(atoi(id), SHUT_RDWR);
    }
}

static void end_without_carrier(int fd, unsigned ms, bool carrier, void *unused)
{
    (void) unused;
    if (ms >= 2 * suspicious_ms() && !carrier) {
        (void) shutdown(fd, SHUT_RDWR);
    }
}

void mca_errmgr_correlated_silence_end_without_carrier(void)
{
    (void) for_each_connection(end_without_carrier, NULL);
}

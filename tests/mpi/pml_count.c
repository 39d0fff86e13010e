/* ranks: 0 ; library: yes */
/* Counts every message that enters the PML, whichever it is: a library for LD_PRELOAD that puts
 * itself between libmpi and the selected PML, in programs of any language. Unlike pmpi_count.c it
 * sees what collectives, one-sided communication, MPI-IO and communicator creation send, and unlike
 * Open MPI's own pml monitoring also each start of a persistent send, and any kind of request.
 *     I=$(dirname "$(mpicc --showme:incdirs | cut -d' ' -f1)")/include
 *     gcc -shared -fPIC -mcx16 -I $I/openmpi -I $I -o pml_count.so pml_count.c -ldl
 *     mpirun -x LD_PRELOAD=…/pml_count.so -x PML_COUNT=/tmp/prefix …
 * Each rank writes prefix.RANK.prof when it ends (compare_traffic.py reads it): E lines are
 * messages with the tags of programs, I lines with those of the library. World ranks of the first
 * job only. */
#define _GNU_SOURCE
#include "ompi_config.h"
#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/pml/pml.h"
#include "ompi/proc/proc.h"
#include "ompi/request/request.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RANKS_MAX = 4096 };
static struct tally {
    unsigned long long messages, bytes;
} tally[2][RANKS_MAX]; /* the program's, the library's */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mca_pml_base_module_t pml; /* the real one */

static void add(ompi_communicator_t *comm, int to, int tag, unsigned long long bytes)
{
    ompi_proc_t *proc = ompi_comm_peer_lookup(comm, to);
    opal_process_name_t name = proc->super.proc_name;
    if (name.jobid != OMPI_PROC_MY_NAME->jobid || name.vpid >= RANKS_MAX)
        return;
    pthread_mutex_lock(&lock);
    tally[tag < 0][name.vpid].messages++;
    tally[tag < 0][name.vpid].bytes += bytes;
    pthread_mutex_unlock(&lock);
}

static unsigned long long size_of(size_t n, struct ompi_datatype_t *type)
{
    size_t size;
    ompi_datatype_type_size(type, &size);
    return (unsigned long long)n * size;
}

static int count_send(const void *b, size_t n, struct ompi_datatype_t *t, int to, int tag,
                      mca_pml_base_send_mode_t mode, struct ompi_communicator_t *comm)
{
    add(comm, to, tag, size_of(n, t));
    return pml.pml_send(b, n, t, to, tag, mode, comm);
}

static int count_isend(const void *b, size_t n, struct ompi_datatype_t *t, int to, int tag,
                       mca_pml_base_send_mode_t mode, struct ompi_communicator_t *comm,
                       struct ompi_request_t **r)
{
    add(comm, to, tag, size_of(n, t));
    return pml.pml_isend(b, n, t, to, tag, mode, comm, r);
}

/* Persistent sends: remembered with their own start function, counted at each start, forgotten when
 * their handle comes back from another init (a freed one that is never seen again stays, 64 bytes).
 */
struct persistent {
    struct persistent *next;
    struct ompi_request_t *request;
    ompi_communicator_t *comm;
    int to, tag;
    unsigned long long bytes;
    ompi_request_start_fn_t start;
};
enum { BUCKETS = 4096 };
static struct persistent *bucket[BUCKETS];

static struct persistent **find(struct ompi_request_t *r)
{
    struct persistent **p = &bucket[((uintptr_t)r >> 5) % BUCKETS];
    while (*p && (*p)->request != r)
        p = &(*p)->next;
    return p;
}

static int count_start(size_t n, struct ompi_request_t **r)
{
    int rc = OMPI_SUCCESS;
    for (size_t k = 0; k < n && rc == OMPI_SUCCESS; k++) {
        pthread_mutex_lock(&lock);
        struct persistent *p = *find(r[k]);
        pthread_mutex_unlock(&lock);
        if (p) {
            add(p->comm, p->to, p->tag, p->bytes);
            rc = p->start(1, &r[k]);
        } else {
            rc = pml.pml_start(1, &r[k]);
        }
    }
    return rc;
}

static int count_isend_init(const void *b, size_t n, struct ompi_datatype_t *t, int to, int tag,
                            mca_pml_base_send_mode_t mode, struct ompi_communicator_t *comm,
                            struct ompi_request_t **r)
{
    int rc = pml.pml_isend_init(b, n, t, to, tag, mode, comm, r);
    if (rc != OMPI_SUCCESS)
        return rc;
    pthread_mutex_lock(&lock);
    struct persistent **at = find(*r), *p = *at;
    if (!p)
        p = *at = calloc(1, sizeof *p);
    p->request = *r;
    p->comm = comm;
    p->to = to;
    p->tag = tag;
    p->bytes = size_of(n, t);
    if ((*r)->req_start != count_start)
        p->start = (*r)->req_start;
    (*r)->req_start = count_start;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* A receive may get the memory of a forgotten send. */
static int count_irecv_init(void *b, size_t n, struct ompi_datatype_t *t, int from, int tag,
                            struct ompi_communicator_t *comm, struct ompi_request_t **r)
{
    int rc = pml.pml_irecv_init(b, n, t, from, tag, comm, r);
    if (rc != OMPI_SUCCESS)
        return rc;
    pthread_mutex_lock(&lock);
    struct persistent **at = find(*r), *p = *at;
    if (p) {
        if ((*r)->req_start == count_start)
            (*r)->req_start = p->start;
        *at = p->next;
        free(p);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* libmpi calls this once, for programs of every language, before any message. */
int mca_pml_base_select(bool progress_threads, bool mpi_threads);
int mca_pml_base_select(bool progress_threads, bool mpi_threads)
{
    int (*real)(bool, bool) = (int (*)(bool, bool))dlsym(RTLD_NEXT, "mca_pml_base_select");
    int rc = real(progress_threads, mpi_threads);
    pml = mca_pml;
    mca_pml.pml_send = count_send;
    mca_pml.pml_isend = count_isend;
    mca_pml.pml_isend_init = count_isend_init;
    mca_pml.pml_irecv_init = count_irecv_init;
    mca_pml.pml_start = count_start;
    return rc;
}

__attribute__((destructor)) static void write_down(void)
{
    const char *prefix = getenv("PML_COUNT");
    char path[4096];
    if (!prefix || !pml.pml_send)
        return;
    unsigned me = OMPI_PROC_MY_NAME->vpid;
    snprintf(path, sizeof path, "%s.%u.prof", prefix, me);
    FILE *f = fopen(path, "w");
    if (!f) {
        perror(path);
        _exit(97);
    }
    fprintf(f, "# counted at the PML\n");
    for (int kind = 0; kind < 2; kind++)
        for (unsigned k = 0; k < RANKS_MAX; k++)
            if (tally[kind][k].messages)
                fprintf(f, "%c\t%u\t%u\t%llu bytes\t%llu msgs sent\n", "EI"[kind], me, k,
                        tally[kind][k].bytes, tally[kind][k].messages);
    fclose(f);
}

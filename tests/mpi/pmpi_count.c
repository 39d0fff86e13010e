/* ranks: 0 ; library: yes */
/* Counts what a program sends, below its own calls and above the library: a profiling library for
 * LD_PRELOAD.   mpicc -shared -fPIC -o pmpi_count.so pmpi_count.c
 *               mpirun -x LD_PRELOAD=…/pmpi_count.so -x PMPI_COUNT=/tmp/prefix …
 * At MPI_Finalize each rank writes prefix.RANK.prof in the form of Open MPI's pml monitoring:
 *     E <source> <destination> <bytes> bytes <messages> msgs sent
 * in world ranks, so tests/programs/compare_traffic.py reads both.
 *
 * It sees point-to-point calls of C programs in all modes, persistent ones at their start. It
 * cannot see what collectives, one-sided calls, MPI-IO and communicator creation send (they use the
 * PML directly), nor Fortran programs (their bindings call PMPI). For those, compare with a stock
 * run under `--mca pml_monitoring_enable 2`. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long *messages, *bytes;
static int world_rank, world_size, translation = MPI_KEYVAL_INVALID;

/* ---- ranks of a communicator (of its remote group) in the world ----------------------------- */

static int forget(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)extra;
    free(value);
    return MPI_SUCCESS;
}

static int *world_ranks(MPI_Comm comm)
{
    int flag, inter, n, *ranks = NULL, *here;
    MPI_Group world, group;
    PMPI_Comm_get_attr(comm, translation, &ranks, &flag);
    if (flag)
        return ranks;
    PMPI_Comm_test_inter(comm, &inter);
    if (inter)
        PMPI_Comm_remote_group(comm, &group);
    else
        PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_size(group, &n);
    ranks = malloc((size_t)n * sizeof *ranks);
    here = malloc((size_t)n * sizeof *here);
    for (int k = 0; k < n; k++)
        here[k] = k;
    PMPI_Group_translate_ranks(group, n, here, world, ranks);
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    free(here);
    PMPI_Comm_set_attr(comm, translation, ranks);
    return ranks;
}

static void add(int to, unsigned long long size)
{
    pthread_mutex_lock(&lock);
    if (to >= 0 && to < world_size) {
        messages[to]++;
        bytes[to] += size;
    }
    pthread_mutex_unlock(&lock);
}

static unsigned long long size_of(int n, MPI_Datatype type)
{
    MPI_Count size = 0;
    PMPI_Type_size_x(type, &size);
    return (unsigned long long)n * (unsigned long long)size;
}

static void count(int n, MPI_Datatype type, int to, MPI_Comm comm)
{
    if (to == MPI_PROC_NULL)
        return;
    pthread_mutex_lock(&lock);
    int world = world_ranks(comm)[to];
    pthread_mutex_unlock(&lock);
    add(world, size_of(n, type));
}

/* ---- begin and end -------------------------------------------------------------------------- */

static void begin(void)
{
    PMPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &world_size);
    PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &translation, NULL);
    messages = calloc((size_t)world_size, sizeof *messages);
    bytes = calloc((size_t)world_size, sizeof *bytes);
}

int MPI_Init(int *argc, char ***argv)
{
    int rc = PMPI_Init(argc, argv);
    begin();
    return rc;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int rc = PMPI_Init_thread(argc, argv, required, provided);
    begin();
    return rc;
}

int MPI_Finalize(void)
{
    const char *prefix = getenv("PMPI_COUNT");
    char path[4096];
    FILE *f = stderr;
    if (prefix) {
        snprintf(path, sizeof path, "%s.%d.prof", prefix, world_rank);
        f = fopen(path, "w");
    }
    if (!f) {
        perror(path);
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    fprintf(f, "# POINT TO POINT (calls of the program)\n");
    for (int k = 0; k < world_size; k++)
        if (messages[k])
            fprintf(f, "E\t%d\t%d\t%llu bytes\t%llu msgs sent\n", world_rank, k, bytes[k],
                    messages[k]);
    if (prefix)
        fclose(f);
    return PMPI_Finalize();
}

/* ---- sends ---------------------------------------------------------------------------------- */

#define BLOCKING(NAME)                                                                             \
    int MPI_##NAME(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm comm)           \
    {                                                                                              \
        count(n, t, to, comm);                                                                     \
        return PMPI_##NAME(b, n, t, to, tag, comm);                                                \
    }
BLOCKING(Send)
BLOCKING(Ssend)
BLOCKING(Bsend)
BLOCKING(Rsend)

#define NONBLOCKING(NAME)                                                                          \
    int MPI_##NAME(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm comm,           \
                   MPI_Request *r)                                                                 \
    {                                                                                              \
        count(n, t, to, comm);                                                                     \
        return PMPI_##NAME(b, n, t, to, tag, comm, r);                                             \
    }
NONBLOCKING(Isend)
NONBLOCKING(Issend)
NONBLOCKING(Ibsend)
NONBLOCKING(Irsend)

int MPI_Sendrecv(const void *b, int n, MPI_Datatype t, int to, int tag, void *rb, int rn,
                 MPI_Datatype rt, int from, int rtag, MPI_Comm comm, MPI_Status *st)
{
    count(n, t, to, comm);
    return PMPI_Sendrecv(b, n, t, to, tag, rb, rn, rt, from, rtag, comm, st);
}

int MPI_Sendrecv_replace(void *b, int n, MPI_Datatype t, int to, int tag, int from, int rtag,
                         MPI_Comm comm, MPI_Status *st)
{
    count(n, t, to, comm);
    return PMPI_Sendrecv_replace(b, n, t, to, tag, from, rtag, comm, st);
}

/* ---- persistent sends: counted at each start ------------------------------------------------ */

struct persistent {
    struct persistent *next;
    MPI_Request request;
    int to;
    unsigned long long bytes;
};
static struct persistent *persistent;

static void remember(MPI_Request r, int n, MPI_Datatype t, int to, MPI_Comm comm)
{
    struct persistent *p = malloc(sizeof *p);
    pthread_mutex_lock(&lock);
    p->request = r;
    p->to = to == MPI_PROC_NULL ? -1 : world_ranks(comm)[to];
    p->bytes = size_of(n, t);
    p->next = persistent;
    persistent = p;
    pthread_mutex_unlock(&lock);
}

static void started(MPI_Request r)
{
    int to = -1;
    unsigned long long size = 0;
    pthread_mutex_lock(&lock);
    for (struct persistent *p = persistent; p; p = p->next)
        if (p->request == r) {
            to = p->to;
            size = p->bytes;
            break;
        }
    pthread_mutex_unlock(&lock);
    add(to, size);
}

#define PERSISTENT(NAME)                                                                           \
    int MPI_##NAME(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm comm,           \
                   MPI_Request *r)                                                                 \
    {                                                                                              \
        int rc = PMPI_##NAME(b, n, t, to, tag, comm, r);                                           \
        if (rc == MPI_SUCCESS)                                                                     \
            remember(*r, n, t, to, comm);                                                          \
        return rc;                                                                                 \
    }
PERSISTENT(Send_init)
PERSISTENT(Ssend_init)
PERSISTENT(Bsend_init)
PERSISTENT(Rsend_init)

int MPI_Start(MPI_Request *r)
{
    started(*r);
    return PMPI_Start(r);
}

int MPI_Startall(int n, MPI_Request r[])
{
    for (int k = 0; k < n; k++)
        started(r[k]);
    return PMPI_Startall(n, r);
}

int MPI_Request_free(MPI_Request *r)
{
    pthread_mutex_lock(&lock);
    for (struct persistent **p = &persistent; *p; p = &(*p)->next)
        if ((*p)->request == *r) {
            struct persistent *gone = *p;
            *p = gone->next;
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
    return PMPI_Request_free(r);
}

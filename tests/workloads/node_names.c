/* Ranks that ask on which node they are, in each way that MPI and the C library have, how large the
 * node is, and how the kernel schedules them, before every step. What they were told first must be
 * true for ever: each step adds up within the nodes, then between them, in communicators that are
 * made from the answer.
 * usage: node_names ITERATIONS GATE [window]
 * GATE: see gate.h. In the last quarter a library is loaded that asks, too.
 * window: there is one, so that no set is rolled back alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include "gate.h"

#define NAME_BYTES MPI_MAX_PROCESSOR_NAME

/* What the compiler makes of gethostname where it does not know whether the buffer is too small. */
extern int __gethostname_chk(char *name, size_t bytes, size_t room);

static void by_gethostname(char *name)
{
    gethostname(name, NAME_BYTES);
}

static void by_checked_gethostname(char *name)
{
    __gethostname_chk(name, NAME_BYTES, NAME_BYTES);
}

static void by_uname(char *name)
{
    struct utsname all;
    if (0 == uname(&all))
        strcpy(name, all.nodename);
}

static void by_mpi(char *name)
{
    int bytes;
    MPI_Get_processor_name(name, &bytes);
}

static void by_pmpi(char *name)
{
    int bytes;
    PMPI_Get_processor_name(name, &bytes);
}

static void by_looked_up(char *name)
{
    int (*function)(char *, size_t) = NULL;
    *(void **) &function = dlsym(RTLD_DEFAULT, "gethostname");
    if (function)
        function(name, NAME_BYTES);
}

/* Fortran's HOSTNM, in a library that this program is not linked with; blanks at its end. */
static void by_later_library(char *name)
{
    static void (*function)(char *, int32_t *, size_t);
    int32_t status = 1;
    if (!function) {
        void *library = dlopen("libgfortran.so.5", RTLD_NOW | RTLD_LOCAL);
        if (library)
            *(void **) &function = dlsym(library, "_gfortran_hostnm_i4_sub");
    }
    if (function)
        function(name, &status, NAME_BYTES - 1);
    if (status)
        strcpy(name, "(no HOSTNM in libgfortran.so.5)");
    name[strcspn(name, " ")] = 0;
}

static const struct {
    const char *name;
    void (*ask)(char *name);
} WAYS[] = {
    { "gethostname", by_gethostname },
    { "__gethostname_chk", by_checked_gethostname },
    { "uname", by_uname },
    { "MPI_Get_processor_name", by_mpi },
    { "PMPI_Get_processor_name", by_pmpi },
    { "gethostname, looked up", by_looked_up },
    { "HOSTNM, loaded later", by_later_library },
};
#define WAYS_COUNT ((int) (sizeof(WAYS) / sizeof(WAYS[0])))

#define SIZES_COUNT 10

/* Known before MPI_Init: whatever is restored was told it. */
static char first[NAME_BYTES];
static long first_sizes[SIZES_COUNT];

static void must(int rank, int step, const char *way, const char *now)
{
    if (strcmp(now, first)) {
        printf("DIFFERENT in step %d of rank %d: %s says %s, it was %s\n", step, rank, way, now,
               first);
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

/* Of sched_getattr(2), its first version: which glibc 2.36 does not have. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

static void ask_sizes(long *sizes)
{
    struct attributes scheduled = { 0 };
    cpu_set_t processors;
    CPU_ZERO(&processors);
    sched_getaffinity(0, sizeof(processors), &processors);
    syscall(SYS_sched_getattr, 0, &scheduled, sizeof(scheduled), 0);
    sizes[5] = CPU_COUNT(&processors);
    sizes[6] = getpriority(PRIO_PROCESS, 0);
    sizes[7] = scheduled.policy;
    sizes[8] = (long) scheduled.flags;
    sizes[9] = (long) scheduled.runtime_ns;
    sizes[0] = sysconf(_SC_NPROCESSORS_ONLN);
    sizes[1] = sysconf(_SC_NPROCESSORS_CONF);
    sizes[2] = sysconf(_SC_PHYS_PAGES);
    sizes[3] = get_nprocs();
    sizes[4] = get_nprocs_conf();
}

/* Everything once. The color of this node. */
static int ask(int rank, int step, int ways)
{
    char now[NAME_BYTES];
    for (int i = 0; i < ways; i++) {
        memset(now, 0, sizeof(now));
        WAYS[i].ask(now);
        must(rank, step, WAYS[i].name, now);
    }
    long sizes[SIZES_COUNT];
    ask_sizes(sizes);
    if (memcmp(first_sizes, sizes, sizeof(sizes))) {
        printf("DIFFERENT in step %d of rank %d: the size of the node, or its scheduling:", step,
               rank);
        for (int i = 0; i < SIZES_COUNT; i++)
            printf(" %ld (%ld)", sizes[i], first_sizes[i]);
        printf("\n");
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    unsigned color = 0;
    for (const char *c = first; *c; c++)
        color = color * 31 + (unsigned char) *c;
    return (int) (color & 0x7fffffff);
}

int main(int argc, char **argv)
{
    int me, iterations = argc > 1 ? atoi(argv[1]) : 400, limit = 0;
    const char *gate = argc > 2 ? argv[2] : NULL;
    by_gethostname(first);
    ask_sizes(first_sizes);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Win window = MPI_WIN_NULL;
    uint64_t *exposed = NULL, hash = 0x9E3779B97F4A7C15ull * (uint64_t) (me + 1);
    if (argc > 3 && !strcmp(argv[3], "window"))
        MPI_Win_allocate(sizeof(*exposed), sizeof(*exposed), MPI_INFO_NULL, MPI_COMM_WORLD,
                         &exposed, &window);
    for (int i = 0; i < iterations; i++) {
        wait_at(gate, i, &limit);
        int color = ask(me, i, i < iterations * 3 / 4 ? WAYS_COUNT - 1 : WAYS_COUNT);
        MPI_Comm node, leaders;
        int place, size;
        MPI_Comm_split(MPI_COMM_WORLD, color, me, &node);
        MPI_Comm_rank(node, &place);
        MPI_Comm_size(node, &size);
        MPI_Comm_split(MPI_COMM_WORLD, place ? MPI_UNDEFINED : 0, me, &leaders);
        uint64_t here, all = 0;
        MPI_Reduce(&hash, &here, 1, MPI_UINT64_T, MPI_SUM, 0, node);
        if (!place) {
            here *= (uint64_t) size;
            MPI_Allreduce(&here, &all, 1, MPI_UINT64_T, MPI_BXOR, leaders);
            MPI_Comm_free(&leaders);
        }
        MPI_Bcast(&all, 1, MPI_UINT64_T, 0, node);
        MPI_Comm_free(&node);
        if (window != MPI_WIN_NULL) {
            MPI_Win_fence(0, window);
            if (me == 0)
                MPI_Put(&all, 1, MPI_UINT64_T, 1, 0, 1, MPI_UINT64_T, window);
            MPI_Win_fence(0, window);
            if (me == 1)
                hash ^= *exposed;
        }
        hash = (hash ^ all) * 0xFF51AFD7ED558CCDull + (uint64_t) place;
        hash ^= hash >> 33;
    }
    if (window != MPI_WIN_NULL)
        MPI_Win_free(&window);
    uint64_t all;
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    if (me == 0)
        printf("HASH %016llx\n", (unsigned long long) all);
    MPI_Finalize();
    return 0;
}

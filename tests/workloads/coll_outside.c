/* A collective component whose state is outside of its processes: barrier, bcast and allreduce by
 * records in a file (OUTSIDE_FILE: a folder), which no image has. Tests take it away with the nodes
 * of a job. Each communicator has a file, each member two places in it, in turn: one is written to
 * when all have read what was there before. A process that finds records that are younger than its
 * own call says so, and ends the job: it was rolled back, and they were not.
 *
 * File operations are system calls: what a program does with files is recorded, and this is to be
 * as a helper on another machine. */
#define _GNU_SOURCE
#include "ompi_config.h"

#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ompi/communicator/communicator.h"
#include "ompi/datatype/ompi_datatype.h"
#include "ompi/mca/coll/base/base.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/op/op.h"
#include "opal/runtime/opal_progress.h"

#if OMPI_MAJOR_VERSION >= 5
#define COLL_VERSION MCA_COLL_BASE_VERSION_2_4_0
#define CONTEXT(comm) ((unsigned) (comm)->c_index)
#else
#define COLL_VERSION MCA_COLL_BASE_VERSION_2_0_0
#define CONTEXT(comm) ((unsigned) (comm)->c_contextid)
#endif

/* Longer ones go to the component below. */
enum { BYTES_MAX = 2048, WORDS_MAX = BYTES_MAX / 8 };

typedef struct {
    uint64_t call;
    uint64_t words[WORDS_MAX];
} record_t;

typedef struct {
    mca_coll_base_module_t super;
    uint64_t call;
    char file[4096];
    mca_coll_base_module_bcast_fn_t bcast;
    mca_coll_base_module_t *bcast_module;
    mca_coll_base_module_allreduce_fn_t allreduce;
    mca_coll_base_module_t *allreduce_module;
} outside_t;

static void construct(outside_t *module)
{
    module->call = 0;
    module->file[0] = '\0';
    module->bcast_module = module->allreduce_module = NULL;
}

static void destruct(outside_t *module)
{
    if (NULL != module->bcast_module) {
        OBJ_RELEASE(module->bcast_module);
    }
    if (NULL != module->allreduce_module) {
        OBJ_RELEASE(module->allreduce_module);
    }
}

static OBJ_CLASS_INSTANCE(outside_t, mca_coll_base_module_t, construct, destruct);

static _Noreturn void lost(const char *what)
{
    fprintf(stderr, "OUTSIDE %s\n", what);
    fflush(stderr);
    _exit(3);
}

static void transfer(const outside_t *module, int place, record_t *record, size_t bytes, int writes)
{
    long fd = syscall(SYS_openat, AT_FDCWD, module->file, O_RDWR);
    if (0 > fd) {
        lost("its file is gone");
    }
    off_t at = (off_t) ((size_t) place * sizeof *record);
    long done;
    if (writes) {
        /* The number last: whoever sees it sees the rest. */
        done = syscall(SYS_pwrite64, fd, record->words, bytes, at + 8);
        done = syscall(SYS_pwrite64, fd, &record->call, sizeof record->call, at);
        done -= (long) sizeof record->call;
    } else {
        done = syscall(SYS_pread64, fd, record, 8 + bytes, at);
        done = 0;
    }
    syscall(SYS_close, fd);
    if (0 != done) {
        lost("its file cannot be written");
    }
}

static int place_of(const outside_t *module, int rank)
{
    return 2 * rank + (int) (module->call % 2);
}

/* What this member gives. */
static void give(outside_t *module, ompi_communicator_t *comm, const void *data, size_t bytes)
{
    record_t record = { .call = ++module->call };
    if (0 < bytes) {
        memcpy(record.words, data, bytes);
    }
    transfer(module, place_of(module, ompi_comm_rank(comm)), &record, bytes, 1);
}

/* What that one gives, as soon as it does. */
static void take(const outside_t *module, int rank, record_t *record, size_t bytes)
{
    for (;;) {
        memset(record, 0, sizeof record->call);
        transfer(module, place_of(module, rank), record, bytes, 0);
        if (record->call == module->call) {
            return;
        }
        if (record->call > module->call) {
            lost("its records are of another time");
        }
        opal_progress();
        sched_yield();
    }
}

static int barrier(ompi_communicator_t *comm, mca_coll_base_module_t *super)
{
    outside_t *module = (outside_t *) super;
    record_t record;
    give(module, comm, NULL, 0);
    for (int rank = 0; rank < ompi_comm_size(comm); rank++) {
        take(module, rank, &record, 0);
    }
    return OMPI_SUCCESS;
}

/* All wait for all, so that two places are enough. */
static int bcast(void *buffer, int count, ompi_datatype_t *type, int root,
                 ompi_communicator_t *comm, mca_coll_base_module_t *super)
{
    outside_t *module = (outside_t *) super;
    size_t bytes = (size_t) count * type->super.size;
    record_t record;
    if (bytes > BYTES_MAX || !ompi_datatype_is_predefined(type)) {
        return module->bcast(buffer, count, type, root, comm, module->bcast_module);
    }
    give(module, comm, buffer, root == ompi_comm_rank(comm) ? bytes : 0);
    for (int rank = 0; rank < ompi_comm_size(comm); rank++) {
        take(module, rank, &record, bytes);
        if (rank == root && rank != ompi_comm_rank(comm)) {
            memcpy(buffer, record.words, bytes);
        }
    }
    return OMPI_SUCCESS;
}

/* Folded from the last rank to the first. */
static int allreduce(const void *from, void *into, int count, ompi_datatype_t *type, ompi_op_t *op,
                     ompi_communicator_t *comm, mca_coll_base_module_t *super)
{
    outside_t *module = (outside_t *) super;
    size_t bytes = (size_t) count * type->super.size;
    record_t record, folded;
    if (bytes > BYTES_MAX || !ompi_datatype_is_predefined(type)) {
        return module->allreduce(from, into, count, type, op, comm, module->allreduce_module);
    }
    give(module, comm, MPI_IN_PLACE == from ? into : from, bytes);
    for (int rank = ompi_comm_size(comm) - 1; rank >= 0; rank--) {
        take(module, rank, &record, bytes);
        if (rank == ompi_comm_size(comm) - 1) {
            folded = record;
        } else {
            ompi_op_reduce(op, record.words, folded.words, count, type);
        }
    }
    memcpy(into, folded.words, bytes);
    return OMPI_SUCCESS;
}

/* The number of my last call on a communicator of these members with this context id: MPI gives an
 * id again when all have freed the one that had it, and all have made as many calls there. */
static uint64_t last_call(long fd, int rank)
{
    uint64_t last = 0;
    for (int place = 2 * rank; place < 2 * rank + 2; place++) {
        uint64_t call = 0;
        off_t at = (off_t) ((size_t) place * sizeof(record_t));
        if (8 == syscall(SYS_pread64, fd, &call, sizeof call, at) && call > last) {
            last = call;
        }
    }
    return last;
}

static int enable(mca_coll_base_module_t *super, ompi_communicator_t *comm)
{
    outside_t *module = (outside_t *) super;
    const char *folder = getenv("OUTSIDE_FILE");
    uint64_t members = 0;
    for (int rank = 0; rank < ompi_comm_size(comm); rank++) {
        members |= 1ull << (ompi_group_get_proc_name(comm->c_local_group, rank).vpid % 64);
    }
    (void) snprintf(module->file, sizeof module->file, "%s/%u.%llx", folder, CONTEXT(comm),
                    (unsigned long long) members);
    long fd = syscall(SYS_openat, AT_FDCWD, module->file, O_RDWR | O_CREAT, 0600);
    module->call = last_call(fd, ompi_comm_rank(comm));
    syscall(SYS_close, fd);
    module->bcast = comm->c_coll->coll_bcast;
    module->bcast_module = comm->c_coll->coll_bcast_module;
    module->allreduce = comm->c_coll->coll_allreduce;
    module->allreduce_module = comm->c_coll->coll_allreduce_module;
    OBJ_RETAIN(module->bcast_module);
    OBJ_RETAIN(module->allreduce_module);
    return OMPI_SUCCESS;
}

static int init_query(bool progress_threads, bool mpi_threads)
{
    (void) progress_threads;
    (void) mpi_threads;
    return OMPI_SUCCESS;
}

static mca_coll_base_module_t *comm_query(ompi_communicator_t *comm, int *priority)
{
    *priority = -1;
    const char *folder = getenv("OUTSIDE_FILE");
    if (OMPI_COMM_IS_INTER(comm) || 2 > ompi_comm_size(comm) || NULL == folder || '\0' == *folder) {
        return NULL;
    }
    outside_t *module = OBJ_NEW(outside_t);
    *priority = 90;
    module->super.coll_module_enable = enable;
    module->super.coll_barrier = barrier;
    module->super.coll_bcast = bcast;
    module->super.coll_allreduce = allreduce;
    return &module->super;
}

mca_coll_base_component_t mca_coll_outside_component = {
    .collm_version = {
        COLL_VERSION,
        .mca_component_name = "outside",
        MCA_BASE_MAKE_VERSION(component, 1, 0, 0),
    },
    .collm_data = { MCA_BASE_METADATA_PARAM_NONE },
    .collm_init_query = init_query,
    .collm_comm_query = comm_query,
};

/*
 * What the files of the collective component need of each other.
 */
#ifndef VPROTOCOL_CORRELATED_COLLECTIVES_H
#define VPROTOCOL_CORRELATED_COLLECTIVES_H

#include "vprotocol_correlated.h"

#include <stdlib.h>
#include <string.h>

#include "ompi/mca/coll/base/coll_tags.h"
#include "ompi/mca/coll/coll.h"
#include "ompi/op/op.h"

typedef struct {
    mca_coll_base_module_t super;
    void *group;
    mca_coll_base_comm_coll_t below;
} mca_coll_correlated_module_t;

#define CORRELATED_EACH_EQUAL_COLLECTIVE(DO)                                                       \
    DO(allgather)                                                                                  \
    DO(allreduce)                                                                                  \
    DO(alltoall)                                                                                   \
    DO(barrier)                                                                                    \
    DO(bcast)                                                                                      \
    DO(exscan)                                                                                     \
    DO(gather)                                                                                     \
    DO(reduce)                                                                                     \
    DO(reduce_scatter_block)                                                                       \
    DO(scan)                                                                                       \
    DO(scatter)

/* Their blocks have different lengths. */
#define CORRELATED_EACH_VARYING_COLLECTIVE(DO)                                                     \
    DO(allgatherv)                                                                                 \
    DO(alltoallv)                                                                                  \
    DO(alltoallw)                                                                                  \
    DO(gatherv)                                                                                    \
    DO(reduce_scatter)                                                                             \
    DO(scatterv)

#define CORRELATED_EACH_NONBLOCKING_COLLECTIVE(DO)                                                 \
    DO(iallgather)                                                                                 \
    DO(iallgatherv)                                                                                \
    DO(iallreduce)                                                                                 \
    DO(ialltoall)                                                                                  \
    DO(ialltoallv)                                                                                 \
    DO(ialltoallw)                                                                                 \
    DO(ibarrier)                                                                                   \
    DO(ibcast)                                                                                     \
    DO(iexscan)                                                                                    \
    DO(igather)                                                                                    \
    DO(igatherv)                                                                                   \
    DO(ineighbor_allgather)                                                                        \
    DO(ineighbor_allgatherv)                                                                       \
    DO(ineighbor_alltoall)                                                                         \
    DO(ineighbor_alltoallv)                                                                        \
    DO(ineighbor_alltoallw)                                                                        \
    DO(ireduce)                                                                                    \
    DO(ireduce_scatter)                                                                            \
    DO(ireduce_scatter_block)                                                                      \
    DO(iscan)                                                                                      \
    DO(iscatter)                                                                                   \
    DO(iscatterv)

/* Those of which ours knows what is below. */
#define CORRELATED_EACH_COLLECTIVE(DO)                                                             \
    CORRELATED_EACH_EQUAL_COLLECTIVE(DO)                                                           \
    CORRELATED_EACH_VARYING_COLLECTIVE(DO)                                                         \
    CORRELATED_EACH_NONBLOCKING_COLLECTIVE(DO)

static inline mca_coll_correlated_module_t *correlated_collectives(mca_coll_base_module_t *module)
{
    return (mca_coll_correlated_module_t *) module;
}

#define CORRELATED_BELOW(name) correlated_collectives(module)->below.coll_##name

static inline int correlated_outcome(int32_t code)
{
    return RUSTBTL_DONE == code ? OMPI_SUCCESS : mca_vprotocol_correlated_error(code);
}

/* Can Rust cut this between any two elements, and fold a part of it? The same at all members: MPI
 * has them give the same arguments. */
static inline bool correlated_can_fold(const ompi_op_t *op, const ompi_datatype_t *type)
{
    uint16_t wanted = OPAL_DATATYPE_FLAG_NO_GAPS | OPAL_DATATYPE_FLAG_CONTIGUOUS;
    return wanted == (type->super.flags & wanted) && 0 == type->super.true_lb
        && 0 < type->super.size
        && (!ompi_op_is_intrinsic((ompi_op_t *) op)
            || ompi_datatype_is_predefined((ompi_datatype_t *) type));
}

/* Data of the program, and memory of one piece that stands for it. */
typedef struct {
    uint8_t *start;
    uint8_t *copy;  /* or NULL */
    bool has_data;  /* it is packed before the call */
    void *user;
    size_t count;
    ompi_datatype_t *type;
} correlated_buffer_t;

/* Those of a call, for `pack`. */
typedef struct {
    correlated_buffer_t *buffers;
    int count;
} correlated_buffers_t;

/* Packed when it is known that the call is ours. */
static inline int correlated_buffer_open(correlated_buffer_t *buffer, const void *user,
                                         size_t count, ompi_datatype_t *type, bool has_data)
{
    buffer->user = (void *) user;
    buffer->count = count;
    buffer->type = type;
    buffer->copy = NULL;
    buffer->has_data = has_data;
    if (OPAL_LIKELY(correlated_contiguous(type, count))) {
        buffer->start = (uint8_t *) user + type->super.true_lb;
        return OMPI_SUCCESS;
    }
    buffer->start = buffer->copy = malloc(count * type->super.size);
    return NULL == buffer->copy ? OMPI_ERR_OUT_OF_RESOURCE : OMPI_SUCCESS;
}

int mca_coll_correlated_unpack(correlated_buffer_t *buffer, int rc, bool changed);

/* The contents are copied back, if they have changed. */
static inline int correlated_buffer_close(correlated_buffer_t *buffer, int rc, bool changed)
{
    return OPAL_LIKELY(NULL == buffer->copy) ? rc
                                             : mca_coll_correlated_unpack(buffer, rc, changed);
}

/* vprotocol_correlated_collectives_varying.c: for Rust; and fills in its functions, those that go
 * over several sets or all. */
int32_t mca_coll_correlated_pack(void *buffers);
void mca_coll_correlated_varying(mca_coll_base_module_t *module, bool over_sets);
/* vprotocol_correlated_clock.c: functions in the communicator's table that bypass the engine make
 * place for those below. */
void mca_coll_correlated_take_out(ompi_communicator_t *comm);
/* vprotocol_correlated_collectives_nonblocking.c: fills in its functions. */
void mca_coll_correlated_nonblocking(mca_coll_base_module_t *module);

#endif

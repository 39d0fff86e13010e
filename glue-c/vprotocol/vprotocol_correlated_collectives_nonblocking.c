/*
 * Nonblocking collectives are Open MPI's (libnbc). That one begins is an action of the program, as
 * a blocking one is: its messages, most of which leave at some later moment, count nothing
 * (docs/adr/0041). Of all communicators, whoever has their blocking collectives.
 */
#include "vprotocol_correlated_collectives.h"

#define BUFFER const void *from, int from_count, ompi_datatype_t *from_type
#define COUNTS const int *from_counts, const int *from_at
#define RESULT void *into, int into_count, ompi_datatype_t *into_type
#define VARYING void *into, const int *into_counts, const int *into_at
#define FOLD ompi_datatype_t *type, ompi_op_t *op
#define END ompi_communicator_t *comm, ompi_request_t **request, mca_coll_base_module_t *module
#define UNPACKED(...) __VA_ARGS__

#define BEGINS(name, parameters, arguments)                                                        \
    static int name(UNPACKED parameters, END)                                                      \
    {                                                                                              \
        rustbtl_collective_begins(MCA_COLL_BASE_TAG_BARRIER);                                      \
        return CORRELATED_BELOW(name)(UNPACKED arguments, comm, request,                           \
                                      CORRELATED_BELOW(name##_module));                            \
    }

static int ibarrier(END)
{
    rustbtl_collective_begins(MCA_COLL_BASE_TAG_BARRIER);
    return CORRELATED_BELOW(ibarrier)(comm, request, CORRELATED_BELOW(ibarrier_module));
}

BEGINS(ibcast, (void *into, int count, ompi_datatype_t *type, int root), (into, count, type, root))
BEGINS(iallreduce, (const void *from, void *into, int count, FOLD), (from, into, count, type, op))
BEGINS(iscan, (const void *from, void *into, int count, FOLD), (from, into, count, type, op))
BEGINS(iexscan, (const void *from, void *into, int count, FOLD), (from, into, count, type, op))
BEGINS(ireduce_scatter_block, (const void *from, void *into, int count, FOLD),
       (from, into, count, type, op))
BEGINS(ireduce_scatter, (const void *from, void *into, const int *counts, FOLD),
       (from, into, counts, type, op))
BEGINS(ireduce, (const void *from, void *into, int count, FOLD, int root),
       (from, into, count, type, op, root))

#define EACH (from, from_count, from_type, into, into_count, into_type)
BEGINS(iallgather, (BUFFER, RESULT), EACH)
BEGINS(ialltoall, (BUFFER, RESULT), EACH)
BEGINS(ineighbor_allgather, (BUFFER, RESULT), EACH)
BEGINS(ineighbor_alltoall, (BUFFER, RESULT), EACH)
BEGINS(igather, (BUFFER, RESULT, int root),
       (from, from_count, from_type, into, into_count, into_type, root))
BEGINS(iscatter, (BUFFER, RESULT, int root),
       (from, from_count, from_type, into, into_count, into_type, root))

BEGINS(iallgatherv, (BUFFER, VARYING, ompi_datatype_t *into_type),
       (from, from_count, from_type, into, into_counts, into_at, into_type))
BEGINS(ineighbor_allgatherv, (BUFFER, VARYING, ompi_datatype_t *into_type),
       (from, from_count, from_type, into, into_counts, into_at, into_type))
BEGINS(igatherv, (BUFFER, VARYING, ompi_datatype_t *into_type, int root),
       (from, from_count, from_type, into, into_counts, into_at, into_type, root))
BEGINS(iscatterv, (const void *from, COUNTS, ompi_datatype_t *from_type, RESULT, int root),
       (from, from_counts, from_at, from_type, into, into_count, into_type, root))

#define PAIRS (from, from_counts, from_at, from_type, into, into_counts, into_at, into_type)
#define OF_ONE_TYPE                                                                                \
    (const void *from, COUNTS, ompi_datatype_t *from_type, VARYING, ompi_datatype_t *into_type)
BEGINS(ialltoallv, OF_ONE_TYPE, PAIRS)
BEGINS(ineighbor_alltoallv, OF_ONE_TYPE, PAIRS)
BEGINS(ialltoallw,
       (const void *from, COUNTS, ompi_datatype_t *const *from_type, VARYING,
        ompi_datatype_t *const *into_type),
       PAIRS)
BEGINS(ineighbor_alltoallw,
       (const void *from, const int *from_counts, const MPI_Aint *from_at,
        ompi_datatype_t *const *from_type, void *into, const int *into_counts,
        const MPI_Aint *into_at, ompi_datatype_t *const *into_type),
       PAIRS)

void mca_coll_correlated_nonblocking(mca_coll_base_module_t *module)
{
#define OFFER(name) module->coll_##name = name;
    CORRELATED_EACH_NONBLOCKING_COLLECTIVE(OFFER)
#undef OFFER
}

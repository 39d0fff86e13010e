/*
 * What differs between Open MPI 4.1 and 5.0, and between an installed Open MPI and a source tree.
 * The other files are written for both; an `#if` on a version belongs here.
 *
 * 5.0 has no ORTE and no table opal_pmix (PMIx is called directly), numbers communicators by
 * c_index, may have ULFM (OPAL_ENABLE_FT_MPI), and has lost osc/pt2pt.
 */
#ifndef CORRELATED_COMPAT_H
#define CORRELATED_COMPAT_H

#include "ompi_config.h"
#include "ompi/communicator/communicator.h"
#include "ompi/runtime/params.h"
#include "ompi/request/request.h"

#define CORRELATED_OMPI_5 (OMPI_MAJOR_VERSION >= 5)

#if CORRELATED_OMPI_5
#include "ompi/runtime/ompi_rte.h"
#include "opal/mca/pmix/base/base.h"
#include "opal/mca/pmix/pmix-internal.h"
#include "opal/mca/threads/wait_sync.h"
#else
#include "ompi/mca/rte/rte.h"
#include "opal/mca/pmix/pmix.h"
#include "opal/threads/wait_sync.h"
#endif

#if OMPI_MAJOR_VERSION < 4 || (OMPI_MAJOR_VERSION == 4 && OMPI_MINOR_VERSION < 1) \
    || OMPI_MAJOR_VERSION > 5
#error "rustbtl is written for Open MPI 4.1 and 5.0"
#endif

/* ---- PMIx: keys, scopes and types have other names ------------------------------------------ */

#if CORRELATED_OMPI_5
#define CORRELATED_PMIX(name) PMIX_##name
#define CORRELATED_PMIX_STRING PMIX_STRING
#define CORRELATED_PMIX_UINT32 PMIX_UINT32
#else
#define CORRELATED_PMIX(name) OPAL_PMIX_##name
#define CORRELATED_PMIX_STRING OPAL_STRING
#define CORRELATED_PMIX_UINT32 OPAL_UINT32
#endif

/* 4.1 brings everybody's data to every node in MPI_Init. 5.0 requests that, too, and PRRTE does it,
 * but its PMIx does not find the data then and fetches it from the daemon of the process that has
 * published it. If the node of that daemon was lost meanwhile, this waits for ever. */
#define CORRELATED_ENDPOINTS_ON_DEMAND CORRELATED_OMPI_5

static inline int correlated_pmix_error(int rc)
{
#if CORRELATED_OMPI_5
    return opal_pmix_convert_status(rc);
#else
    return rc;
#endif
}

/* Have the node's daemon remove the file when this process has ended. */
static inline void correlated_pmix_cleanup(const char *path)
{
#if CORRELATED_OMPI_5
    if (!opal_process_info.is_singleton) {
        (void) opal_pmix_register_cleanup((char *) path, false, false, false);
    }
#else
    /* Not every PMIx server can; then a job that fails while starting may leave a file behind. */
    if (NULL != opal_pmix.register_cleanup) {
        (void) opal_pmix.register_cleanup((char *) path, false, false, false);
    }
#endif
}

/* ---- communicators, requests ---------------------------------------------------------------- */

/* The number that a communicator has at all of its processes. In 5.0 that is c_index, as long as
 * the PML does not say that it can do with extended ones (MCA_PML_BASE_FLAG_SUPPORTS_EXT_CID). */
static inline uint32_t correlated_context(const ompi_communicator_t *comm)
{
#if CORRELATED_OMPI_5
    return comm->c_index;
#else
    return comm->c_contextid;
#endif
}

/* What a send that is complete gives its caller as a request. */
#if CORRELATED_OMPI_5 && MPI_VERSION >= 4
#define CORRELATED_SEND_COMPLETE (&ompi_request_empty_send)
#else
#define CORRELATED_SEND_COMPLETE (&ompi_request_empty)
#endif

/* ULFM looks into requests of the PML as if they were ob1's, and lets the program handle failures:
 * one of the two can protect a job, not both. */
static inline bool correlated_ulfm_is_on(void)
{
#if CORRELATED_OMPI_5 && OPAL_ENABLE_FT_MPI
    return ompi_ftmpi_enabled;
#else
    return false;
#endif
}

/* Functions of the PML module that only one of the versions has. */
#if CORRELATED_OMPI_5
#define CORRELATED_PML_ONLY_HERE .pml_revoke_comm = revoke_comm, .pml_get_transports = NULL
#else
#define CORRELATED_PML_ONLY_HERE .pml_ft_event = ft_event
#endif

/* ---- collectives ---------------------------------------------------------------------------- */

#if CORRELATED_OMPI_5
#define CORRELATED_COLL_VERSION MCA_COLL_BASE_VERSION_2_4_0
#else
#define CORRELATED_COLL_VERSION MCA_COLL_BASE_VERSION_2_0_0
#endif

/* ---- one-sided communication ---------------------------------------------------------------- */

/* osc/pt2pt, which runs over the PML, is not in 5.0. What is there needs BTLs, and in 5.0 it is
 * pml ob1 that starts them. */
#define CORRELATED_HAS_OSC_PT2PT (!CORRELATED_OMPI_5)
#define CORRELATED_STARTS_BTLS CORRELATED_OMPI_5

#endif

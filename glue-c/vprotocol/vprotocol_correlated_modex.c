/*
 * What the processes exchange before they can send messages (endpoints), and who is who.
 */
#include "vprotocol_correlated.h"

#include "ompi/proc/proc.h"

/* Not the component's own key: that has its version in it, and a peer with another version must be
 * distinguished from one without the component. PMI calls an endpoint a business card. */
#define ENDPOINT_KEY "rustbtl.card"

int mca_vprotocol_correlated_publish(const uint8_t *endpoint, size_t bytes)
{
    int rc;
    OPAL_MODEX_SEND_STRING(rc, CORRELATED_PMIX(GLOBAL), ENDPOINT_KEY, endpoint, bytes);
    return correlated_pmix_error(rc);
}

uint8_t *rustbtl_glue_endpoint_of(const rustbtl_name_t *name, size_t *bytes)
{
    opal_process_name_t proc = { .jobid = name->job, .vpid = name->rank };
    uint8_t *endpoint = NULL;
    size_t length = 0;
    int rc;
    OPAL_MODEX_RECV_STRING(rc, ENDPOINT_KEY, &proc, &endpoint, &length);
    *bytes = OPAL_SUCCESS == rc ? length : 0;
    return OPAL_SUCCESS == rc ? endpoint : NULL;
}

void rustbtl_glue_resolve(void *handle, uint32_t rank, int32_t local, rustbtl_name_t *name)
{
    ompi_communicator_t *comm = handle;
    ompi_group_t *group = local ? comm->c_local_group : comm->c_remote_group;
    opal_process_name_t proc = ompi_group_get_proc_name(group, (int) rank);
    name->job = proc.jobid;
    name->rank = proc.vpid;
}

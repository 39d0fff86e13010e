/*
 * What the processes tell each other before they can send messages, and who is who.
 */
#include "vprotocol_correlated.h"

#include "ompi/proc/proc.h"

/* Not the component's own key: that has its version in it, and a peer with another version must be
 * told from one without the component. */
#define CARD_KEY "rustbtl.card"

int mca_vprotocol_correlated_publish(const uint8_t *card, size_t bytes)
{
    int rc;
    OPAL_MODEX_SEND_STRING(rc, CORRELATED_PMIX(GLOBAL), CARD_KEY, card, bytes);
    return correlated_pmix_error(rc);
}

uint8_t *rustbtl_glue_card_of(const rustbtl_name_t *name, size_t *bytes)
{
    opal_process_name_t proc = { .jobid = name->job, .vpid = name->rank };
    uint8_t *card = NULL;
    size_t length = 0;
    int rc;
    OPAL_MODEX_RECV_STRING(rc, CARD_KEY, &proc, &card, &length);
    *bytes = OPAL_SUCCESS == rc ? length : 0;
    return OPAL_SUCCESS == rc ? card : NULL;
}

void rustbtl_glue_resolve(void *handle, uint32_t rank, int32_t local, rustbtl_name_t *name)
{
    ompi_communicator_t *comm = handle;
    ompi_group_t *group = local ? comm->c_local_group : comm->c_remote_group;
    opal_process_name_t proc = ompi_group_get_proc_name(group, (int) rank);
    name->job = proc.jobid;
    name->rank = proc.vpid;
}

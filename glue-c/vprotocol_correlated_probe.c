/*
 * The probe family.
 */
#include "vprotocol_correlated.h"

#include "opal/runtime/opal_progress.h"

static void probed(ompi_status_public_t *status, const rustbtl_envelope_t *found)
{
    if (MPI_STATUS_IGNORE != status) {
        status->MPI_SOURCE = found->source;
        status->MPI_TAG = found->tag;
        status->_ucount = found->bytes;
        status->_cancelled = 0;
    }
}

/* Look, move things on if there is nothing, look again. */
static bool look(int source, int tag, ompi_communicator_t *comm, int claim,
                 rustbtl_envelope_t *found)
{
    uint32_t in = correlated_comm(comm);
    if (rustbtl_probe(in, source, tag, claim, found)) {
        return true;
    }
    opal_progress();
    return 0 != rustbtl_probe(in, source, tag, claim, found);
}

static int message_of(const rustbtl_envelope_t *found, ompi_communicator_t *comm,
                      ompi_message_t **message)
{
    ompi_message_t *made = ompi_message_alloc();
    if (NULL == made) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    made->comm = comm;
    made->req_ptr = (void *) (uintptr_t) found->message;
    made->peer = found->source;
    made->count = found->bytes;
    *message = made;
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_iprobe(int source, int tag, ompi_communicator_t *comm, int *matched,
                                    ompi_status_public_t *status)
{
    rustbtl_envelope_t found;
    *matched = look(source, tag, comm, 0, &found);
    if (*matched) {
        probed(status, &found);
    }
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_probe(int source, int tag, ompi_communicator_t *comm,
                                   ompi_status_public_t *status)
{
    rustbtl_envelope_t found;
    while (!look(source, tag, comm, 0, &found)) {
        rustbtl_idle();
    }
    probed(status, &found);
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_improbe(int source, int tag, ompi_communicator_t *comm, int *matched,
                                     ompi_message_t **message, ompi_status_public_t *status)
{
    rustbtl_envelope_t found;
    *matched = look(source, tag, comm, 1, &found);
    if (!*matched) {
        return OMPI_SUCCESS;
    }
    probed(status, &found);
    return message_of(&found, comm, message);
}

int mca_vprotocol_correlated_mprobe(int source, int tag, ompi_communicator_t *comm,
                                    ompi_message_t **message, ompi_status_public_t *status)
{
    rustbtl_envelope_t found;
    while (!look(source, tag, comm, 1, &found)) {
        rustbtl_idle();
    }
    probed(status, &found);
    return message_of(&found, comm, message);
}

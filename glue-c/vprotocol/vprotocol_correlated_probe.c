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

/* Probe; if there is nothing, call progress and probe again. During replay it returns when it can
 * give the outcome that was recorded. */
static bool poll_once(int source, int tag, ompi_communicator_t *comm, uint32_t how,
                      rustbtl_envelope_t *found)
{
    uint32_t in = correlated_comm(comm);
    uint32_t last = (how & RUSTBTL_PROBE_BLOCKS) ? 0 : RUSTBTL_PROBE_LAST;
    int32_t seen = rustbtl_probe(in, source, tag, how, found);
    if (RUSTBTL_PROBE_NOT_YET == seen) {
        opal_progress();
        seen = rustbtl_probe(in, source, tag, how | last, found);
    }
    while (OPAL_UNLIKELY(RUSTBTL_PROBE_WAIT == seen)) {
        rustbtl_idle();
        opal_progress();
        seen = rustbtl_probe(in, source, tag, how, found);
    }
    if (RUSTBTL_PROBE_FOUND != seen && 0 != last) {
        if (OPAL_UNLIKELY(rustbtl_awaits_poll)) {
            rustbtl_note_poll();
        }
        /* The program will probe again; what it waits for may need this processor. */
        if (OPAL_UNLIKELY(rustbtl_recording)) {
            rustbtl_found_nothing();
        }
    }
    return RUSTBTL_PROBE_FOUND == seen;
}

/* The same, until a message is found. */
static void poll_until_found(int source, int tag, ompi_communicator_t *comm, uint32_t how,
                             rustbtl_envelope_t *found)
{
    while (!poll_once(source, tag, comm, how | RUSTBTL_PROBE_BLOCKS, found)) {
        rustbtl_idle();
    }
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
    *matched = poll_once(source, tag, comm, 0, &found);
    if (*matched) {
        probed(status, &found);
    }
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_probe(int source, int tag, ompi_communicator_t *comm,
                                   ompi_status_public_t *status)
{
    rustbtl_envelope_t found;
    poll_until_found(source, tag, comm, 0, &found);
    probed(status, &found);
    return OMPI_SUCCESS;
}

int mca_vprotocol_correlated_improbe(int source, int tag, ompi_communicator_t *comm, int *matched,
                                     ompi_message_t **message, ompi_status_public_t *status)
{
    rustbtl_envelope_t found;
    *matched = poll_once(source, tag, comm, RUSTBTL_PROBE_CLAIM, &found);
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
    poll_until_found(source, tag, comm, RUSTBTL_PROBE_CLAIM, &found);
    probed(status, &found);
    return message_of(&found, comm, message);
}

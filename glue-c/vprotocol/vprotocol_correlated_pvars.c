/*
 * The engine's counters as MPI_T performance variables.
 */
#include "vprotocol_correlated.h"

#include "opal/mca/base/mca_base_pvar.h"

static const struct {
    const char *name;
    const char *help;
    int class;
} variables[RUSTBTL_PVAR_COUNT] = {
    [RUSTBTL_PVAR_SENT_INTERNAL_MESSAGES] = { "sent_internal_messages",
        "Messages sent to processes of the own correlated set", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_SENT_INTERNAL_BYTES] = { "sent_internal_bytes",
        "Payload bytes sent to processes of the own correlated set", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_SENT_OUTGOING_MESSAGES] = { "sent_outgoing_messages",
        "Messages that left the correlated set", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_SENT_OUTGOING_BYTES] = { "sent_outgoing_bytes",
        "Payload bytes that left the correlated set", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_RECEIVED_INTERNAL_MESSAGES] = { "received_internal_messages",
        "Messages received from processes of the own correlated set", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_RECEIVED_INTERNAL_BYTES] = { "received_internal_bytes",
        "Payload bytes received from processes of the own correlated set",
        MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_RECEIVED_INGOING_MESSAGES] = { "received_ingoing_messages",
        "Messages received from other correlated sets", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_RECEIVED_INGOING_BYTES] = { "received_ingoing_bytes",
        "Payload bytes received from other correlated sets", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_EAGER_MESSAGES] = { "eager_messages",
        "Messages that were sent in one fragment", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_RENDEZVOUS_MESSAGES] = { "rendezvous_messages",
        "Messages that were announced before their payload", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_UNEXPECTED_MESSAGES] = { "unexpected_messages",
        "Messages that arrived before a receive was posted for them", MPI_T_PVAR_CLASS_COUNTER },
    [RUSTBTL_PVAR_LOG_MESSAGES] = { "log_messages",
        "Messages that the payload log holds", MPI_T_PVAR_CLASS_LEVEL },
    [RUSTBTL_PVAR_LOG_BYTES] = { "log_bytes",
        "Payload bytes that the payload log holds", MPI_T_PVAR_CLASS_LEVEL },
    [RUSTBTL_PVAR_LOG_BYTES_PEAK] = { "log_bytes_peak",
        "Most payload bytes that the payload log held", MPI_T_PVAR_CLASS_HIGHWATERMARK },
    [RUSTBTL_PVAR_LOG_SPILLED_BYTES] = { "log_spilled_bytes",
        "Bytes of the payload log that are kept in a file", MPI_T_PVAR_CLASS_LEVEL },
};

static int read_counter(const struct mca_base_pvar_t *pvar, void *value, void *object)
{
    (void) object;
    *(unsigned long long *) value = rustbtl_pvar((uint32_t) (uintptr_t) pvar->ctx);
    return OPAL_SUCCESS;
}

void mca_vprotocol_correlated_register_pvars(void)
{
    for (uintptr_t i = 0; i < RUSTBTL_PVAR_COUNT; i++) {
        (void) mca_base_component_pvar_register(
            &mca_vprotocol_correlated_component.pmlm_version, variables[i].name,
            variables[i].help, OPAL_INFO_LVL_4, variables[i].class,
            MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG, NULL, MCA_BASE_VAR_BIND_NO_OBJECT,
            MCA_BASE_PVAR_FLAG_READONLY | MCA_BASE_PVAR_FLAG_CONTINUOUS, read_counter, NULL, NULL,
            (void *) i);
    }
}

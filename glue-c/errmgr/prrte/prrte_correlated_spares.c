/*
 * What mpirun sends to the daemon of a node without ranks (errmgr_correlated_spares.c), as a
 * message of PRRTE: arguments, one after the other.
 */
#include "errmgr_correlated.h"

#include <stdlib.h>

/* Of no other message: PRRTE's own end before 80, and others begin at PRTE_RML_TAG_MAX. */
#define CORRELATED_TAG_SPARE 97

void correlated_send_to_daemon(prte_proc_t *daemon, char **arguments)
{
    pmix_data_buffer_t *message;
    int rc = PMIX_SUCCESS;
    PMIX_DATA_BUFFER_CREATE(message);
    for (int i = 0; NULL != message && PMIX_SUCCESS == rc && NULL != arguments[i]; i++) {
        rc = PMIx_Data_pack(NULL, message, &arguments[i], 1, PMIX_STRING);
    }
    if (NULL != message && PMIX_SUCCESS == rc) {
        PRTE_RML_SEND(rc, daemon->name.rank, message, CORRELATED_TAG_SPARE);
    }
    if (NULL != message && PMIX_SUCCESS != rc) {
        PMIX_DATA_BUFFER_RELEASE(message);
    }
}

/* A daemon receives that its node is a spare one. */
static void on_spare(int status, pmix_proc_t *sender, pmix_data_buffer_t *message,
                     prte_rml_tag_t tag, void *unused)
{
    (void) status;
    (void) sender;
    (void) tag;
    (void) unused;
    char **arguments = NULL;
    char *argument = NULL;
    int32_t one = 1;
    for (int i = 0; i < CORRELATED_ARGUMENTS_MAX
                    && PMIX_SUCCESS == PMIx_Data_unpack(NULL, message, &argument, &one, PMIX_STRING)
                    && NULL != argument;
         i++) {
        opal_argv_append_nosize(&arguments, argument);
        free(argument);
        argument = NULL;
    }
    if (NULL != arguments) {
        /* The job can continue without this node, too: it ends soon if it loses mpirun. */
        prrte_correlated_watch_connections(arguments);
        mca_errmgr_correlated_start_spare(arguments);
    }
    opal_argv_free(arguments);
}

void mca_errmgr_correlated_receive_spare(void)
{
    PRTE_RML_RECV(PRTE_PROC_MY_HNP, CORRELATED_TAG_SPARE, PRTE_RML_NON_PERSISTENT, on_spare, NULL);
}

/*
 * What mpirun sends to the daemon of a node without ranks (errmgr_correlated_spares.c), as a
 * message of ORTE: arguments, one after the other.
 */
#include "errmgr_correlated.h"

#include <stdlib.h>

#include "opal/dss/dss.h"

/* Of no other message: Open MPI's own end before 70, and others begin at ORTE_RML_TAG_MAX. */
#define CORRELATED_TAG_SPARE 97

void correlated_send_to_daemon(orte_proc_t *daemon, char **arguments)
{
    opal_buffer_t *message = OBJ_NEW(opal_buffer_t);
    bool good = NULL != message;
    for (int i = 0; good && NULL != arguments[i]; i++) {
        good = OPAL_SUCCESS == opal_dss.pack(message, &arguments[i], 1, OPAL_STRING);
    }
    good = good && 0 <= orte_rml.send_buffer_nb(orte_mgmt_conduit, &daemon->name, message,
                                                CORRELATED_TAG_SPARE, orte_rml_send_callback, NULL);
    if (!good && NULL != message) {
        OBJ_RELEASE(message);
    }
}

/* A daemon receives that its node is a spare one. */
static void on_spare(int status, orte_process_name_t *sender, opal_buffer_t *message,
                     orte_rml_tag_t tag, void *unused)
{
    (void) status;
    (void) sender;
    (void) tag;
    (void) unused;
    char **arguments = NULL;
    char *argument = NULL;
    int32_t one = 1;
    for (int i = 0; i < CORRELATED_ARGUMENTS_MAX
                    && OPAL_SUCCESS == opal_dss.unpack(message, &argument, &one, OPAL_STRING)
                    && NULL != argument;
         i++) {
        opal_argv_append_nosize(&arguments, argument);
        free(argument);
        argument = NULL;
    }
    if (NULL != arguments) {
        mca_errmgr_correlated_start_spare(arguments);
    }
    opal_argv_free(arguments);
}

void mca_errmgr_correlated_receive_spare(void)
{
    orte_rml.recv_buffer_nb(ORTE_PROC_MY_HNP, CORRELATED_TAG_SPARE, ORTE_RML_NON_PERSISTENT,
                            on_spare, NULL);
}

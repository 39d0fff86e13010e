/*
 * What mpirun tells the daemon of a node without ranks (errmgr_correlated_spares.c), as PRRTE sends
 * messages: words, one after the other.
 */
#include "errmgr_correlated.h"

#include <stdlib.h>

/* Of no other message: PRRTE's own end before 80, and others begin at PRTE_RML_TAG_MAX. */
#define CORRELATED_TAG_SPARE 97

void correlated_tell_daemon(prte_proc_t *daemon, char **words)
{
    pmix_data_buffer_t *message;
    int rc = PMIX_SUCCESS;
    PMIX_DATA_BUFFER_CREATE(message);
    for (int i = 0; NULL != message && PMIX_SUCCESS == rc && NULL != words[i]; i++) {
        rc = PMIx_Data_pack(NULL, message, &words[i], 1, PMIX_STRING);
    }
    if (NULL != message && PMIX_SUCCESS == rc) {
        PRTE_RML_SEND(rc, daemon->name.rank, message, CORRELATED_TAG_SPARE);
    }
    if (NULL != message && PMIX_SUCCESS != rc) {
        PMIX_DATA_BUFFER_RELEASE(message);
    }
}

/* A daemon hears that its node is a spare one. */
static void on_spare(int status, pmix_proc_t *sender, pmix_data_buffer_t *message,
                     prte_rml_tag_t tag, void *unused)
{
    (void) status;
    (void) sender;
    (void) tag;
    (void) unused;
    char **words = NULL;
    char *word = NULL;
    int32_t one = 1;
    for (int i = 0; i < CORRELATED_WORDS_MAX
                    && PMIX_SUCCESS == PMIx_Data_unpack(NULL, message, &word, &one, PMIX_STRING)
                    && NULL != word;
         i++) {
        opal_argv_append_nosize(&words, word);
        free(word);
        word = NULL;
    }
    if (NULL != words) {
        /* The job can do without this node, too: it ends soon if it loses mpirun. */
        mca_errmgr_correlated_notice_silence();
        mca_errmgr_correlated_be_spare(words);
    }
    opal_argv_free(words);
}

void mca_errmgr_correlated_hear_spare(void)
{
    PRTE_RML_RECV(PRTE_PROC_MY_HNP, CORRELATED_TAG_SPARE, PRTE_RML_NON_PERSISTENT, on_spare, NULL);
}

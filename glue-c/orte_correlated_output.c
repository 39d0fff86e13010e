/*
 * How much of the output of ranks has come to mpirun. What was on its way through the daemon of a
 * lost node is lost with it, so only mpirun knows from where on it has to be printed again.
 *
 * 1. What is counted is printed: it is counted when Open MPI takes it.
 * 2. What comes of a daemon after it was declared lost is neither: it is printed again.
 */
#include "errmgr_correlated.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opal/dss/dss.h"
#include "orte/mca/iof/base/base.h"
#include "orte/mca/rml/base/base.h"

typedef struct {
    uint64_t bytes[2]; /* standard output, standard error */
} came_t;

static orte_rml_buffer_callback_fn_t stock_output = NULL;
static came_t *came = NULL; /* by rank */
static uint32_t ranks = 0;

/* Open MPI has not read it yet, and shall find it as it was. */
static void count(opal_buffer_t *message)
{
    static unsigned char data[ORTE_IOF_BASE_MSG_MAX];
    const orte_iof_tag_t other = ORTE_IOF_XON | ORTE_IOF_XOFF | ORTE_IOF_PULL | ORTE_IOF_CLOSE;
    const orte_job_t *job = mca_errmgr_correlated_protected_job();
    char *const before = message->unpack_ptr;
    orte_process_name_t from;
    orte_iof_tag_t stream = 0;
    int32_t one = 1, bytes = sizeof(data);
    if (NULL != job && OPAL_SUCCESS == opal_dss.unpack(message, &stream, &one, ORTE_IOF_TAG)
        && 0 == (stream & other) && (one = 1)
        && OPAL_SUCCESS == opal_dss.unpack(message, &from, &one, ORTE_NAME)
        && correlated_is_of(&from, job) && from.vpid < ranks
        && OPAL_SUCCESS == opal_dss.unpack(message, data, &bytes, OPAL_BYTE)) {
        if (stream & ORTE_IOF_STDOUT) {
            came[from.vpid].bytes[0] += (uint64_t) bytes;
        } else if (stream & ORTE_IOF_STDERR) {
            came[from.vpid].bytes[1] += (uint64_t) bytes;
        }
    }
    message->unpack_ptr = before;
}

static void on_output(int status, orte_process_name_t *sender, opal_buffer_t *message,
                      orte_rml_tag_t tag, void *data)
{
    if (correlated_is_other_daemon(sender) && mca_errmgr_correlated_is_lost(sender)) {
        return;
    }
    count(message);
    stock_output(status, sender, message, tag, data);
}

/* Is all that a rank prints sent to mpirun, and each stream as what it is? */
static bool is_whole(const orte_job_t *job)
{
    char *files = NULL;
    bool kept = orte_get_attribute((opal_list_t *) &job->attributes, ORTE_JOB_OUTPUT_TO_FILE,
                                   (void **) &files, OPAL_STRING)
                && NULL != files && NULL != strstr(files, "nocopy");
    free(files);
    return !kept && !orte_iof_base.redirect_app_stderr_to_stdout
           && !orte_get_attribute((opal_list_t *) &job->attributes, ORTE_JOB_MERGE_STDERR_STDOUT,
                                  NULL, OPAL_BOOL);
}

/* Have `by` called for output in place of what is; that is returned, NULL if there is nothing. */
static orte_rml_buffer_callback_fn_t replace(orte_rml_buffer_callback_fn_t by)
{
    orte_rml_buffer_callback_fn_t before = NULL;
    orte_rml_posted_recv_t *posted;
    OPAL_LIST_FOREACH(posted, &orte_rml_base.posted_recvs, orte_rml_posted_recv_t) {
        if (ORTE_RML_TAG_IOF_HNP == posted->tag && posted->buffer_data) {
            before = posted->cbfunc.buffer;
            posted->cbfunc.buffer = by;
        }
    }
    return before;
}

void correlated_output_watch(const orte_job_t *job)
{
    if (NULL != came || !is_whole(job)) {
        return;
    }
    came = calloc(job->num_procs, sizeof(*came));
    stock_output = NULL == came ? NULL : replace(on_output);
    ranks = NULL == stock_output ? 0 : job->num_procs;
}

void correlated_output_tell(const orte_proc_t *proc)
{
    char text[64];
    if (proc->name.vpid < ranks) {
        const uint64_t *bytes = came[proc->name.vpid].bytes;
        snprintf(text, sizeof(text), "%u %llu %llu", (unsigned) proc->name.vpid,
                 (unsigned long long) bytes[0], (unsigned long long) bytes[1]);
        (void) mca_errmgr_correlated_coordinator_tell("came", text);
    }
}

void correlated_output_close(void)
{
    if (NULL != stock_output) {
        (void) replace(stock_output);
        stock_output = NULL;
    }
    free(came);
    came = NULL;
    ranks = 0;
}

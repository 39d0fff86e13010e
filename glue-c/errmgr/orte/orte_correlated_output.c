/*
 * Pieces of output as ORTE's daemons send them to mpirun.
 */
#include "errmgr_correlated.h"

#include <stdlib.h>
#include <string.h>

#include "opal/dss/dss.h"
#include "orte/mca/iof/base/base.h"

_Static_assert(ORTE_IOF_BASE_MSG_MAX <= CORRELATED_PIECE_BYTES_MAX, "a piece of output");

int correlated_output_unpack(opal_buffer_t *message, orte_process_name_t *from,
                             unsigned char *data, int32_t *bytes)
{
    const orte_iof_tag_t other = ORTE_IOF_XON | ORTE_IOF_XOFF | ORTE_IOF_PULL | ORTE_IOF_CLOSE;
    char *const before = message->unpack_ptr;
    orte_iof_tag_t stream = 0;
    int32_t one = 1;
    bool good = OPAL_SUCCESS == opal_dss.unpack(message, &stream, &one, ORTE_IOF_TAG)
                && 0 == (stream & other) && (one = 1)
                && OPAL_SUCCESS == opal_dss.unpack(message, from, &one, ORTE_NAME)
                && OPAL_SUCCESS == opal_dss.unpack(message, data, bytes, OPAL_BYTE);
    /* Open MPI reads it after this, from the start. */
    message->unpack_ptr = before;
    if (!good) {
        return 0;
    }
    return stream & ORTE_IOF_STDOUT ? 1 : stream & ORTE_IOF_STDERR ? 2 : 0;
}

opal_buffer_t *correlated_output_pack(const orte_job_t *job, int rank, int stream,
                                      unsigned char *data, int32_t bytes)
{
    orte_iof_tag_t tag = 1 == stream ? ORTE_IOF_STDOUT : ORTE_IOF_STDERR;
    orte_process_name_t name = { .jobid = job->jobid, .vpid = (orte_vpid_t) rank };
    opal_buffer_t *message = OBJ_NEW(opal_buffer_t);
    if (NULL != message
        && (OPAL_SUCCESS != opal_dss.pack(message, &tag, 1, ORTE_IOF_TAG)
            || OPAL_SUCCESS != opal_dss.pack(message, &name, 1, ORTE_NAME)
            || OPAL_SUCCESS != opal_dss.pack(message, data, bytes, OPAL_BYTE))) {
        OBJ_RELEASE(message);
    }
    return message;
}

void correlated_output_release(opal_buffer_t *message)
{
    OBJ_RELEASE(message);
}

bool correlated_output_is_whole(orte_job_t *job)
{
    char *files = NULL;
    bool has_files = orte_get_attribute(&job->attributes, ORTE_JOB_OUTPUT_TO_FILE,
                                        (void **) &files, OPAL_STRING);
    bool files_only = has_files && NULL != files && NULL != strstr(files, "nocopy");
    free(files);
    return !files_only && !orte_iof_base.redirect_app_stderr_to_stdout
           && !orte_get_attribute(&job->attributes, ORTE_JOB_MERGE_STDERR_STDOUT, NULL, OPAL_BOOL);
}

bool correlated_output_has_files(orte_job_t *job)
{
    return orte_get_attribute(&job->attributes, ORTE_JOB_OUTPUT_TO_FILE, NULL, OPAL_STRING);
}

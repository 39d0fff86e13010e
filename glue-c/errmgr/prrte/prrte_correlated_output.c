/*
 * Pieces of output as PRRTE's daemons send them to mpirun.
 */
#include "errmgr_correlated.h"

#include "src/mca/iof/base/base.h"
#include "src/util/attr.h"

_Static_assert(PRTE_IOF_BASE_MSG_MAX <= CORRELATED_PIECE_BYTES_MAX, "a piece of output");

int correlated_output_unpack(pmix_data_buffer_t *message, pmix_proc_t *from, unsigned char *data,
                             int32_t *bytes)
{
    char *const before = message->unpack_ptr;
    const int32_t most = *bytes;
    prte_iof_tag_t stream = 0;
    int32_t one = 1;
    bool good = PMIX_SUCCESS == PMIx_Data_unpack(NULL, message, &stream, &one, PMIX_UINT16)
                && (one = 1)
                && PMIX_SUCCESS == PMIx_Data_unpack(NULL, message, from, &one, PMIX_PROC)
                && (one = 1)
                && PMIX_SUCCESS == PMIx_Data_unpack(NULL, message, bytes, &one, PMIX_INT32)
                && 0 <= *bytes && *bytes <= most
                && (0 == *bytes
                    || PMIX_SUCCESS == PMIx_Data_unpack(NULL, message, data, bytes, PMIX_BYTE));
    /* PRRTE reads it after this, from the start. */
    message->unpack_ptr = before;
    if (!good) {
        return 0;
    }
    return stream & PRTE_IOF_STDOUT ? 1 : stream & PRTE_IOF_STDERR ? 2 : 0;
}

pmix_data_buffer_t *correlated_output_pack(const prte_job_t *job, int rank, int stream,
                                           unsigned char *data, int32_t bytes)
{
    prte_iof_tag_t tag = 1 == stream ? PRTE_IOF_STDOUT : PRTE_IOF_STDERR;
    pmix_data_buffer_t *message = NULL;
    pmix_proc_t name;
    PMIX_LOAD_PROCID(&name, job->nspace, (pmix_rank_t) rank);
    PMIX_DATA_BUFFER_CREATE(message);
    if (NULL != message
        && (PMIX_SUCCESS != PMIx_Data_pack(NULL, message, &tag, 1, PMIX_UINT16)
            || PMIX_SUCCESS != PMIx_Data_pack(NULL, message, &name, 1, PMIX_PROC)
            || PMIX_SUCCESS != PMIx_Data_pack(NULL, message, &bytes, 1, PMIX_INT32)
            || PMIX_SUCCESS != PMIx_Data_pack(NULL, message, data, bytes, PMIX_BYTE))) {
        PMIX_DATA_BUFFER_RELEASE(message);
        message = NULL;
    }
    return message;
}

void correlated_output_release(pmix_data_buffer_t *message)
{
    PMIX_DATA_BUFFER_RELEASE(message);
}

bool correlated_output_is_whole(prte_job_t *job)
{
    return !prte_get_attribute(&job->attributes, PRTE_JOB_MERGE_STDERR_STDOUT, NULL, PMIX_BOOL);
}

bool correlated_output_has_files(prte_job_t *job)
{
    return prte_get_attribute(&job->attributes, PRTE_JOB_OUTPUT_TO_FILE, NULL, PMIX_STRING)
           || prte_get_attribute(&job->attributes, PRTE_JOB_OUTPUT_TO_DIRECTORY, NULL, PMIX_STRING);
}

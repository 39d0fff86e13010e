/*
 * Output of ranks in mpirun. How much has come is counted: what was on its way through the daemon
 * of a lost node is lost with it, so only mpirun knows the offset from which it has to be printed
 * again. From then on the rank has no daemon, and the coordinator forwards its output.
 *
 * 1. What is counted is printed: it is counted when Open MPI receives it.
 * 2. What comes of a daemon after it was declared lost is neither: it is printed again.
 * 3. What the coordinator forwards has an offset in the stream; what was printed before is not
 *    printed again. Each piece is acknowledged.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_pipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t bytes[2]; /* that came by daemons: standard output, standard error */
    bool forwarded[2]; /* the coordinator has forwarded some */
    uint64_t upto[2];  /* offset in the whole stream, then */
} output_t;

static orte_rml_buffer_callback_fn_t stock_output = NULL;
static output_t *outputs = NULL; /* by rank */
static uint32_t ranks = 0;
static bool prints = false;

static void count(opal_buffer_t *message)
{
    static unsigned char data[CORRELATED_PIECE_BYTES_MAX];
    const orte_job_t *job = mca_errmgr_correlated_protected_job();
    orte_process_name_t from;
    int32_t bytes = sizeof(data);
    int stream = NULL == job ? 0 : correlated_output_unpack(message, &from, data, &bytes);
    if (0 < stream && correlated_is_of(&from, job) && correlated_rank(&from) < (int) ranks) {
        outputs[correlated_rank(&from)].bytes[stream - 1] += (uint64_t) bytes;
    }
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

/* Have `by` called for output in place of the present callback, which is returned; NULL: there is
 * none. */
static orte_rml_buffer_callback_fn_t replace(orte_rml_buffer_callback_fn_t by)
{
    orte_rml_buffer_callback_fn_t before = NULL;
    orte_rml_posted_recv_t *posted;
    OPAL_LIST_FOREACH(posted, &orte_rml_base.posted_recvs, orte_rml_posted_recv_t) {
        if (ORTE_RML_TAG_IOF_HNP == posted->tag && CORRELATED_TAKES_BUFFER(posted)) {
            before = posted->CORRELATED_CALLBACK;
            posted->CORRELATED_CALLBACK = by;
        }
    }
    return before;
}

void mca_errmgr_correlated_output_watch(orte_job_t *job)
{
    if (NULL != outputs || !correlated_output_is_whole(job)) {
        return;
    }
    outputs = calloc(job->num_procs, sizeof(*outputs));
    stock_output = NULL == outputs ? NULL : replace(on_output);
    ranks = NULL == stock_output ? 0 : job->num_procs;
    prints = 0 < ranks && !correlated_output_has_files(job);
}

bool mca_errmgr_correlated_output_prints(void)
{
    return prints;
}

void mca_errmgr_correlated_output_report(const orte_proc_t *proc)
{
    char text[64];
    if (correlated_rank(&proc->name) < (int) ranks) {
        const uint64_t *bytes = outputs[correlated_rank(&proc->name)].bytes;
        snprintf(text, sizeof(text), "%d %llu %llu", correlated_rank(&proc->name),
                 (unsigned long long) bytes[0], (unsigned long long) bytes[1]);
        (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_CAME, text);
    }
}

void mca_errmgr_correlated_output_resend(void)
{
    char text[64];
    for (uint32_t rank = 0; rank < ranks; rank++) {
        if (outputs[rank].forwarded[0] && outputs[rank].forwarded[1]) {
            snprintf(text, sizeof(text), "%u %llu %llu", (unsigned) rank,
                     (unsigned long long) outputs[rank].upto[0],
                     (unsigned long long) outputs[rank].upto[1]);
            (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_REACHED, text);
        }
    }
}

static int digit(char c)
{
    return '0' <= c && '9' >= c ? c - '0' : 'a' <= c && 'f' >= c ? c - 'a' + 10 : -1;
}

/* Hexadecimal digits up to the end; -1: they are none, or too many. */
static int32_t unhex(const char *digits, unsigned char *bytes, int32_t most)
{
    int32_t n = 0;
    for (; '\0' != digits[0]; digits += 2) {
        int high = digit(digits[0]);
        int low = 0 > high ? -1 : digit(digits[1]);
        if (0 > low || n == most) {
            return -1;
        }
        bytes[n++] = (unsigned char) (high << 4 | low);
    }
    return n;
}

/* How much of a piece goes to Open MPI at a time: with --tag-output, --timestamp-output or --xml
 * 4.1 puts something in front of each line, or in place of a character, in a buffer of 8192 bytes,
 * and loses what has no room there. A line that is cut gets a tag inside. */
static int32_t with_room_for_tags(const unsigned char *data, int32_t bytes)
{
    enum { BUFFER_BYTES = 8192, TAG_BYTES_MAX = 96, CHARACTER_BYTES_MAX = 6 };
    int32_t n = 0, lines = 0, room = BUFFER_BYTES - 2 * TAG_BYTES_MAX;
    while (n < bytes) {
        room -= '\n' == data[n] ? TAG_BYTES_MAX + CHARACTER_BYTES_MAX
                : ' ' > data[n] || '~' < data[n] || '&' == data[n] || '<' == data[n]
                          || '>' == data[n]
                    ? CHARACTER_BYTES_MAX
                    : 1;
        if (0 > room) {
            return 0 < lines ? lines : n;
        }
        n++;
        lines = '\n' == data[n - 1] ? n : lines;
    }
    return n;
}

void mca_errmgr_correlated_output_print(const char *what)
{
    static unsigned char data[CORRELATED_PIECE_BYTES_MAX];
    const orte_job_t *job = mca_errmgr_correlated_protected_job();
    unsigned rank = 0, stream = 0;
    unsigned long long offset = 0;
    int begin = 0;
    char answer[64];
    if (3 != sscanf(what, "%u %u %llu %n", &rank, &stream, &offset, &begin) || 0 == begin
        || rank >= ranks || 1 > stream || 2 < stream || NULL == job) {
        return;
    }
    int32_t bytes = unhex(what + begin, data, sizeof(data));
    output_t *of = &outputs[rank];
    uint64_t *upto = &of->upto[stream - 1];
    if (!of->forwarded[stream - 1]) {
        of->forwarded[stream - 1] = true;
        *upto = offset;
    }
    uint64_t printed = *upto > offset ? *upto - offset : 0;
    while (0 < bytes && printed < (uint64_t) bytes) {
        int32_t now = with_room_for_tags(data + printed, bytes - (int32_t) printed);
        opal_buffer_t *piece = correlated_output_pack(job, (int) rank, (int) stream,
                                                      data + printed, now);
        if (NULL == piece) {
            break;
        }
        stock_output(ORTE_SUCCESS, ORTE_PROC_MY_NAME, piece, ORTE_RML_TAG_IOF_HNP, NULL);
        correlated_output_release(piece);
        printed += (uint64_t) now;
        *upto = offset + printed;
    }
    snprintf(answer, sizeof(answer), "%u %u %llu", rank, stream, (unsigned long long) *upto);
    (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_PRINTED, answer);
}

void mca_errmgr_correlated_output_close(void)
{
    if (NULL != stock_output) {
        (void) replace(stock_output);
        stock_output = NULL;
    }
    free(outputs);
    outputs = NULL;
    ranks = 0;
    prints = false;
}

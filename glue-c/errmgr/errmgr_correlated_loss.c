/*
 * The loss of a node, in mpirun. Stock Open MPI ends the job; with recovery the node's processes
 * count as ended, everything that goes through mpirun leaves the node out, and the loss is reported
 * to the coordinator. It restarts the ranks elsewhere, or reports that this is impossible.
 *
 * 1. A lost daemon is handled once, whatever errors mpirun gets and in which order: the end of its
 *    connection, the end of the rsh client, messages that cannot be sent.
 * 2. Open MPI handles all but the loss of a running node of a job that can be recovered.
 * 3. An exit code that only comes from a lost daemon is not the job's.
 * 4. Processes of a lost node count as ended when the coordinator has decided, not before: if they
 *    were the last ones mpirun would end with exit code 0, though nobody can repeat what they did.
 * 5. A process of the job that is ended by a signal is its guardian: killed alone, or with a
 *    program that is not restarted. The coordinator knows which; until it decides nothing is done.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_pipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between lines of a text from the coordinator. */
#define TEXT_LINE_END '\x1f'

static orte_state_cbfunc_t stock_comm_failed = NULL;
static orte_state_cbfunc_t stock_error = NULL;
/* A loss was reported to the coordinator, which has not reported yet how it ends. */
static bool open_loss = false;
/* Lost daemons, by rank, about whose processes the coordinator has not decided. */
static opal_bitmap_t undecided;
static bool have_undecided = false;
/* Starts another coordinator. */
static bool (*coordinator_failover)(void) = NULL;

/* Ends by signals about which the coordinator has not decided yet; and processes, by rank, whose
 * ends it tolerates: daemons may report them once more when all of theirs have ended. */
static opal_pointer_array_t pending;
/* Their exit codes, at the same indices: later reports of them may contain less. */
static opal_pointer_array_t pending_exit_codes;
static opal_bitmap_t tolerated;
static bool have_pending = false;

static bool runs_on(const orte_proc_t *proc, const orte_proc_t *daemon)
{
    return NULL != proc && NULL != proc->node && proc->node->daemon == daemon
           && ORTE_PROC_STATE_TERMINATED > proc->state;
}

/* Does a job that is not protected (MPI_Comm_spawn) lose a process? */
static bool unprotected_on(const orte_proc_t *daemon, const orte_job_t *protected_job)
{
    void *at = NULL;
    for (orte_job_t *job = correlated_next_job(&at); NULL != job; job = correlated_next_job(&at)) {
        bool unprotected = job != protected_job && !correlated_are_daemons(job);
        for (int i = 0; unprotected && i < job->procs->size; i++) {
            if (runs_on(opal_pointer_array_get_item(job->procs, i), daemon)) {
                return true;
            }
        }
    }
    return false;
}

/* The job that continues without this daemon; NULL: none does. */
static orte_job_t *can_be_recovered(const orte_proc_t *daemon)
{
    orte_job_t *job = mca_errmgr_correlated_protected_job();
    if (!mca_errmgr_correlated_may_recover() || NULL == job || NULL == daemon->node) {
        return NULL;
    }
    /* Before all programs run, Open MPI waits for reports of the lost daemon. */
    bool runs = 0 < job->num_procs && job->num_launched == job->num_procs;
    return runs && !unprotected_on(daemon, job) ? job : NULL;
}

/* To the coordinator, or to the one that takes over from it. */
static bool send_to_coordinator(const char *key, const char *value)
{
    return mca_errmgr_correlated_coordinator_send(key, value)
           || (NULL != coordinator_failover && coordinator_failover()
               && mca_errmgr_correlated_coordinator_send(key, value));
}

/* How much of their output has come is reported first. */
static void report_output(const orte_job_t *job, const orte_proc_t *daemon)
{
    for (int i = 0; NULL != job && i < job->procs->size; i++) {
        const orte_proc_t *proc = opal_pointer_array_get_item(job->procs, i);
        if (NULL != proc && NULL != proc->node && proc->node->daemon == daemon) {
            mca_errmgr_correlated_output_report(proc);
        }
    }
}

/* False: Open MPI has to handle the loss. */
static bool node_lost(const orte_process_name_t *name)
{
    orte_job_t *daemons = correlated_daemons();
    orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, correlated_rank(name));
    orte_job_t *job = NULL == daemon ? NULL : can_be_recovered(daemon);
    report_output(job, daemon);
    if (NULL == job || !send_to_coordinator(RUSTBTL_KEY_LOST, daemon->node->name)) {
        return false;
    }
    mca_errmgr_correlated_set_lost(name, (int) daemons->num_procs);
    open_loss = true;
    if (!have_undecided) {
        OBJ_CONSTRUCT(&undecided, opal_bitmap_t);
        have_undecided = OPAL_SUCCESS == opal_bitmap_init(&undecided, (int) daemons->num_procs);
    }
    (void) opal_bitmap_set_bit(&undecided, correlated_rank(name));
    ORTE_FLAG_UNSET(daemon, ORTE_PROC_FLAG_ALIVE);
    /* Otherwise the next message to all daemons ends mpirun, and so does the wait for their end. */
    correlated_route_lost(name);
    /* plm/rsh counts those whose client has ended by itself. */
    if (ORTE_PROC_STATE_FAILED_TO_START != daemon->state) {
        daemons->num_terminated++;
    }
    return true;
}

/* Its processes have ended, and were not aborted: no failure is to be reported. */
static void processes_have_ended(const orte_job_t *job, const orte_proc_t *daemon)
{
    for (int i = 0; i < job->procs->size; i++) {
        orte_proc_t *proc = opal_pointer_array_get_item(job->procs, i);
        if (runs_on(proc, daemon)) {
            proc->exit_code = 0;
            ORTE_ACTIVATE_PROC_STATE(&proc->name, ORTE_PROC_STATE_WAITPID_FIRED);
            ORTE_ACTIVATE_PROC_STATE(&proc->name, ORTE_PROC_STATE_IOF_COMPLETE);
        }
    }
}

/* Those of all nodes about which is decided now. */
static void lost_have_ended(void)
{
    const orte_job_t *job = mca_errmgr_correlated_protected_job();
    orte_job_t *daemons = correlated_daemons();
    for (int i = 0; have_undecided && NULL != job && NULL != daemons && i < daemons->procs->size;
         i++) {
        const orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (NULL != daemon && opal_bitmap_is_set_bit(&undecided, i)) {
            (void) opal_bitmap_clear_bit(&undecided, i);
            processes_have_ended(job, daemon);
        }
    }
}

/* Does this error of a daemon mean that its node is lost? */
static bool is_daemon_loss(const orte_state_caddy_t *caddy)
{
    switch (caddy->proc_state) {
    case ORTE_PROC_STATE_COMM_FAILED:
    case ORTE_PROC_STATE_UNABLE_TO_SEND_MSG:
    case ORTE_PROC_STATE_NO_PATH_TO_TARGET:
    case ORTE_PROC_STATE_FAILED_TO_CONNECT:
    case ORTE_PROC_STATE_HEARTBEAT_FAILED:
    case ORTE_PROC_STATE_FAILED_TO_START: /* the rsh client of a running daemon has ended */
        return true;
    default:
        return false;
    }
}

/* True: it is tolerated, or the coordinator has to decide about it. */
static bool guardian_ended(orte_state_caddy_t *caddy)
{
    orte_job_t *job = mca_errmgr_correlated_protected_job();
    int rank = correlated_rank(&caddy->name);
    char text[16];
    if (ORTE_PROC_STATE_ABORTED_BY_SIG != caddy->proc_state || NULL == job || correlated_is_ending()
        || !correlated_is_of(&caddy->name, job) || !mca_errmgr_correlated_may_recover()) {
        return false;
    }
    orte_proc_t *proc = opal_pointer_array_get_item(job->procs, rank);
    if (NULL == proc) {
        return false;
    }
    if (have_pending && opal_bitmap_is_set_bit(&tolerated, rank)) {
        proc->exit_code = 0;
        return true;
    }
    snprintf(text, sizeof(text), "%d", rank);
    if (!send_to_coordinator(RUSTBTL_KEY_GUARDIAN, text)) {
        return false;
    }
    if (!have_pending) {
        OBJ_CONSTRUCT(&pending, opal_pointer_array_t);
        OBJ_CONSTRUCT(&pending_exit_codes, opal_pointer_array_t);
        OBJ_CONSTRUCT(&tolerated, opal_bitmap_t);
        opal_bitmap_init(&tolerated, (int) job->num_procs);
        have_pending = true;
    }
    OBJ_RETAIN(caddy);
    int index = opal_pointer_array_add(&pending, caddy);
    (void) opal_pointer_array_set_item(&pending_exit_codes, index,
                                       (void *) (intptr_t) proc->exit_code);
    return true;
}

void mca_errmgr_correlated_loss_decided(const char *rank, bool tolerate)
{
    orte_job_t *job = mca_errmgr_correlated_protected_job();
    for (int i = 0; have_pending && i < pending.size; i++) {
        orte_state_caddy_t *caddy = opal_pointer_array_get_item(&pending, i);
        if (NULL == caddy || (NULL != rank && atoi(rank) != correlated_rank(&caddy->name))) {
            continue;
        }
        (void) opal_pointer_array_set_item(&pending, i, NULL);
        orte_proc_t *proc = NULL;
        if (NULL != job) {
            proc = opal_pointer_array_get_item(job->procs, correlated_rank(&caddy->name));
        }
        if (!tolerate || NULL == proc) {
            if (NULL != proc) {
                void *code = opal_pointer_array_get_item(&pending_exit_codes, i);
                proc->exit_code = (int) (intptr_t) code;
            }
            /* Releases the caddy. */
            stock_error(-1, 0, caddy);
            continue;
        }
        (void) opal_bitmap_set_bit(&tolerated, correlated_rank(&caddy->name));
        proc->exit_code = 0;
        /* A process that is counted twice ends the job too early: daemons report in the end that
         * theirs have ended, and the end of its output is on its way. */
        if (ORTE_FLAG_TEST(proc, ORTE_PROC_FLAG_LOCAL)) {
            correlated_has_ended(job, proc);
        }
        OBJ_RELEASE(caddy);
    }
}

void mca_errmgr_correlated_loss_resend(void)
{
    orte_job_t *daemons = correlated_daemons();
    mca_errmgr_correlated_output_resend();
    const bool any = mca_errmgr_correlated_has_lost() && NULL != daemons;
    for (int i = 0; any && i < (int) daemons->num_procs; i++) {
        orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (NULL != daemon && mca_errmgr_correlated_is_lost(&daemon->name)
            && NULL != daemon->node) {
            report_output(mca_errmgr_correlated_protected_job(), daemon);
            (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_LOST, daemon->node->name);
        }
    }
    for (int i = 0; have_pending && i < pending.size; i++) {
        orte_state_caddy_t *caddy = opal_pointer_array_get_item(&pending, i);
        char text[16];
        if (NULL != caddy) {
            snprintf(text, sizeof(text), "%d", (int) correlated_rank(&caddy->name));
            (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_GUARDIAN, text);
        }
    }
}

/* True: nothing is left to be done for it. */
static bool handled(const orte_state_caddy_t *caddy)
{
    const orte_process_name_t *name = &caddy->name;
    if (!correlated_is_other_daemon(name) || !is_daemon_loss(caddy)) {
        return false;
    }
    if (mca_errmgr_correlated_is_lost(name)) {
        if (ORTE_PROC_STATE_FAILED_TO_START == caddy->proc_state && !correlated_is_ending()) {
            orte_exit_status = 0;
        }
        return true;
    }
    if (correlated_is_ending()) {
        return false;
    }
    orte_job_t *daemons = correlated_daemons();
    orte_proc_t *daemon = NULL == daemons
                              ? NULL
                              : opal_pointer_array_get_item(daemons->procs, correlated_rank(name));
    /* One that never reported was never started. */
    if (NULL == daemon || !ORTE_FLAG_TEST(daemon, ORTE_PROC_FLAG_ALIVE) || !node_lost(name)) {
        return false;
    }
    if (ORTE_PROC_STATE_FAILED_TO_START == caddy->proc_state) {
        orte_exit_status = 0;
    }
    return true;
}

static void on_comm_failed(int fd, short flags, void *data)
{
    orte_state_caddy_t *caddy = (orte_state_caddy_t *) data;
    ORTE_ACQUIRE_OBJECT(caddy);
    if (handled(caddy)) {
        OBJ_RELEASE(caddy);
        return;
    }
    stock_comm_failed(fd, flags, data);
}

static void on_error(int fd, short flags, void *data)
{
    orte_state_caddy_t *caddy = (orte_state_caddy_t *) data;
    ORTE_ACQUIRE_OBJECT(caddy);
    if (handled(caddy) || guardian_ended(caddy)) {
        OBJ_RELEASE(caddy);
        return;
    }
    stock_error(fd, flags, data);
}

void mca_errmgr_correlated_loss_watch(bool (*failover)(void))
{
    coordinator_failover = failover;
    if (mca_errmgr_correlated_may_recover()) {
        mca_errmgr_correlated_set_keepalive();
    }
}

/* The coordinator's text is one line, with marks where lines shall end (to be freed). */
static char *in_lines(const char *text)
{
    const char *const end = "\n  ";
    size_t length = strlen(text);
    char *lines = malloc(length * strlen(end) + 1);
    char *to = lines;
    for (size_t i = 0; NULL != lines && i < length; i++) {
        if (TEXT_LINE_END == text[i]) {
            to = stpcpy(to, end);
        } else {
            *to++ = text[i];
        }
    }
    if (NULL != lines) {
        *to = '\0';
    }
    return lines;
}

void mca_errmgr_correlated_loss_failed(const char *reason)
{
    if (correlated_is_ending()) {
        return;
    }
    char *lines = in_lines(reason);
    orte_show_help(CORRELATED_ERRMGR_HELP, "not-recovered", true, NULL == lines ? reason : lines);
    free(lines);
    /* Not one that a lost daemon has left there. */
    orte_exit_status = ORTE_ERROR_DEFAULT_EXIT_CODE;
    /* As when a process aborts: daemons end their processes. */
    orte_job_term_ordered = true;
    orte_plm.terminate_orteds();
}

void mca_errmgr_correlated_loss_recovered(void)
{
    open_loss = false;
    lost_have_ended();
}

bool mca_errmgr_correlated_loss_is_open(void)
{
    return open_loss;
}

int mca_errmgr_correlated_loss_open(void)
{
    orte_state_t *state;
    OPAL_LIST_FOREACH(state, &orte_proc_states, orte_state_t) {
        if (ORTE_PROC_STATE_COMM_FAILED == state->proc_state) {
            stock_comm_failed = state->cbfunc;
            state->cbfunc = on_comm_failed;
        } else if (ORTE_PROC_STATE_ERROR == state->proc_state) {
            stock_error = state->cbfunc;
            state->cbfunc = on_error;
        }
    }
    return NULL == stock_comm_failed || NULL == stock_error ? ORTE_ERR_NOT_FOUND : ORTE_SUCCESS;
}

void mca_errmgr_correlated_loss_close(void)
{
    if (have_pending) {
        OBJ_DESTRUCT(&pending);
        OBJ_DESTRUCT(&pending_exit_codes);
        OBJ_DESTRUCT(&tolerated);
        have_pending = false;
    }
    if (have_undecided) {
        OBJ_DESTRUCT(&undecided);
        have_undecided = false;
    }
}

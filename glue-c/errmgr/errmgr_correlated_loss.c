/*
 * The loss of a node, in mpirun. Stock Open MPI ends the job; with recovery the node's processes
 * count as ended, everything that goes through mpirun leaves the node out, and the coordinator is
 * told. It brings the ranks back elsewhere, or says that this cannot be done.
 *
 * 1. A lost daemon is handled once, whatever mpirun hears of it and in which order: the end of its
 *    connection, the end of the rsh client, messages that cannot be sent.
 * 2. Whatever is not the loss of a running node of a job that can go on is Open MPI's business.
 * 3. An exit code that only comes from a lost daemon is not the job's.
 *
 * 4. A process of the job that ends by a signal is its guardian: killed alone, or with a program
 *    that does not come back. The coordinator knows which; until it says so nothing is done.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_words.h"

#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Between lines of what the coordinator says. */
#define LINE_END '\x1f'

static orte_state_cbfunc_t stock_comm_failed = NULL;
static orte_state_cbfunc_t stock_error = NULL;
/* Daemons that are gone, by vpid. */
static opal_bitmap_t lost;
static bool have_lost = false;
/* The coordinator has been told of a loss and has not said yet how it ends. */
static bool open_loss = false;

/* Ends by signals about which the coordinator was asked; and processes, by rank, that it has taken
 * up: daemons may speak of them once more when all of theirs have ended. */
static opal_pointer_array_t asked;
/* How they ended, in the same places: what is heard of them later may say less. */
static opal_pointer_array_t asked_codes;
static opal_bitmap_t taken_up;
static bool have_asked = false;

bool mca_errmgr_correlated_is_lost(const orte_process_name_t *daemon)
{
    return have_lost && opal_bitmap_is_set_bit(&lost, correlated_rank(daemon));
}

static bool runs_on(const orte_proc_t *proc, const orte_proc_t *daemon)
{
    return NULL != proc && NULL != proc->node && proc->node->daemon == daemon
           && ORTE_PROC_STATE_TERMINATED > proc->state;
}

/* Does a job that nobody protects (MPI_Comm_spawn) lose a process? */
static bool strangers_on(const orte_proc_t *daemon, const orte_job_t *protected_job)
{
    void *at = NULL;
    for (orte_job_t *job = correlated_next_job(&at); NULL != job; job = correlated_next_job(&at)) {
        bool theirs = job != protected_job && !correlated_are_daemons(job);
        for (int i = 0; theirs && i < job->procs->size; i++) {
            if (runs_on(opal_pointer_array_get_item(job->procs, i), daemon)) {
                return true;
            }
        }
    }
    return false;
}

/* The job that goes on without this daemon; NULL: none does. */
static orte_job_t *can_be_recovered(const orte_proc_t *daemon)
{
    orte_job_t *job = mca_errmgr_correlated_protected_job();
    if (!mca_errmgr_correlated_may_recover() || NULL == job || NULL == daemon->node) {
        return NULL;
    }
    /* Before all programs run, Open MPI waits for what the lost daemon should say. */
    bool runs = 0 < job->num_procs && job->num_launched == job->num_procs;
    return runs && !strangers_on(daemon, job) ? job : NULL;
}

/* To the coordinator, or to one that comes after it. */
static bool tell_some_coordinator(const char *key, const char *value)
{
    return mca_errmgr_correlated_coordinator_tell(key, value)
           || (mca_errmgr_correlated_coordinator_revive()
               && mca_errmgr_correlated_coordinator_tell(key, value));
}

/* How much of their output has come is told first. */
static void tell_output(const orte_job_t *job, const orte_proc_t *daemon)
{
    for (int i = 0; NULL != job && i < job->procs->size; i++) {
        const orte_proc_t *proc = opal_pointer_array_get_item(job->procs, i);
        if (NULL != proc && NULL != proc->node && proc->node->daemon == daemon) {
            mca_errmgr_correlated_output_tell(proc);
        }
    }
}

/* False: it is not lost in a way that we could answer. */
static bool node_lost(const orte_process_name_t *name)
{
    orte_job_t *daemons = correlated_daemons();
    orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, correlated_rank(name));
    orte_job_t *job = NULL == daemon ? NULL : can_be_recovered(daemon);
    tell_output(job, daemon);
    if (NULL == job || !tell_some_coordinator(RUSTBTL_WORD_LOST, daemon->node->name)) {
        return false;
    }
    if (!have_lost) {
        OBJ_CONSTRUCT(&lost, opal_bitmap_t);
        opal_bitmap_init(&lost, (int) daemons->num_procs);
        have_lost = true;
    }
    opal_bitmap_set_bit(&lost, correlated_rank(name));
    open_loss = true;
    ORTE_FLAG_UNSET(daemon, ORTE_PROC_FLAG_ALIVE);
    /* Otherwise the next message to all daemons ends mpirun, and so does the wait for their end. */
    correlated_route_lost(name);
    /* plm/rsh counts those whose client has ended by itself. */
    if (ORTE_PROC_STATE_FAILED_TO_START != daemon->state) {
        daemons->num_terminated++;
    }
    for (int i = 0; i < job->procs->size; i++) {
        orte_proc_t *proc = opal_pointer_array_get_item(job->procs, i);
        if (runs_on(proc, daemon)) {
            /* Ended like this, and not aborted: nobody is to be told of a failure. */
            proc->exit_code = 0;
            ORTE_ACTIVATE_PROC_STATE(&proc->name, ORTE_PROC_STATE_WAITPID_FIRED);
            ORTE_ACTIVATE_PROC_STATE(&proc->name, ORTE_PROC_STATE_IOF_COMPLETE);
        }
    }
    return true;
}

/* Does this error of a daemon mean that its node is gone? */
static bool means_loss(const orte_state_caddy_t *caddy)
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

/* True: it is known, or the coordinator was asked about it. */
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
    if (have_asked && opal_bitmap_is_set_bit(&taken_up, rank)) {
        proc->exit_code = 0;
        return true;
    }
    snprintf(text, sizeof(text), "%d", rank);
    if (!tell_some_coordinator(RUSTBTL_WORD_GUARDIAN, text)) {
        return false;
    }
    if (!have_asked) {
        OBJ_CONSTRUCT(&asked, opal_pointer_array_t);
        OBJ_CONSTRUCT(&asked_codes, opal_pointer_array_t);
        OBJ_CONSTRUCT(&taken_up, opal_bitmap_t);
        opal_bitmap_init(&taken_up, (int) job->num_procs);
        have_asked = true;
    }
    OBJ_RETAIN(caddy);
    int place = opal_pointer_array_add(&asked, caddy);
    (void) opal_pointer_array_set_item(&asked_codes, place, (void *) (intptr_t) proc->exit_code);
    return true;
}

void mca_errmgr_correlated_loss_decided(const char *rank, bool goes_on)
{
    orte_job_t *job = mca_errmgr_correlated_protected_job();
    for (int i = 0; have_asked && i < asked.size; i++) {
        orte_state_caddy_t *caddy = opal_pointer_array_get_item(&asked, i);
        if (NULL == caddy || (NULL != rank && atoi(rank) != correlated_rank(&caddy->name))) {
            continue;
        }
        (void) opal_pointer_array_set_item(&asked, i, NULL);
        orte_proc_t *proc = NULL;
        if (NULL != job) {
            proc = opal_pointer_array_get_item(job->procs, correlated_rank(&caddy->name));
        }
        if (!goes_on || NULL == proc) {
            if (NULL != proc) {
                proc->exit_code = (int) (intptr_t) opal_pointer_array_get_item(&asked_codes, i);
            }
            /* It releases it. */
            stock_error(-1, 0, caddy);
            continue;
        }
        (void) opal_bitmap_set_bit(&taken_up, correlated_rank(&caddy->name));
        proc->exit_code = 0;
        /* Whoever counts twice ends too early: of others their daemons say in the end that they
         * have ended, and the end of its output is on its way. */
        if (ORTE_FLAG_TEST(proc, ORTE_PROC_FLAG_LOCAL)) {
            correlated_has_ended(job, proc);
        }
        OBJ_RELEASE(caddy);
    }
}

void mca_errmgr_correlated_loss_tell_again(void)
{
    orte_job_t *daemons = correlated_daemons();
    mca_errmgr_correlated_output_tell_again();
    for (int i = 0; have_lost && NULL != daemons && i < (int) daemons->num_procs; i++) {
        orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (opal_bitmap_is_set_bit(&lost, i) && NULL != daemon && NULL != daemon->node) {
            tell_output(mca_errmgr_correlated_protected_job(), daemon);
            (void) mca_errmgr_correlated_coordinator_tell(RUSTBTL_WORD_LOST,
                                                           daemon->node->name);
        }
    }
    for (int i = 0; have_asked && i < asked.size; i++) {
        orte_state_caddy_t *caddy = opal_pointer_array_get_item(&asked, i);
        char text[16];
        if (NULL != caddy) {
            snprintf(text, sizeof(text), "%d", (int) correlated_rank(&caddy->name));
            (void) mca_errmgr_correlated_coordinator_tell(RUSTBTL_WORD_GUARDIAN, text);
        }
    }
}

/* True: nothing is left to do about it. */
static bool handled(const orte_state_caddy_t *caddy)
{
    const orte_process_name_t *name = &caddy->name;
    if (!correlated_is_other_daemon(name) || !means_loss(caddy)) {
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

/* Keepalive says nothing as long as something that was sent is not acknowledged; the last one
 * does. Keepalive again: PRRTE's was chosen before the job was known. */
static void limit_silence(int fd)
{
    const int options[][3] = {
        { SOL_SOCKET, SO_KEEPALIVE, 1 },
        { IPPROTO_TCP, TCP_KEEPIDLE, atoi(CORRELATED_SILENCE_FIRST) },
        { IPPROTO_TCP, TCP_KEEPINTVL, atoi(CORRELATED_SILENCE_NEXT) },
        { IPPROTO_TCP, TCP_KEEPCNT, atoi(CORRELATED_SILENCE_PROBES) },
        { IPPROTO_TCP, TCP_USER_TIMEOUT, CORRELATED_SILENCE_MS },
    };
    int domain = 0;
    socklen_t size = sizeof(domain);
    if (0 != getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size)
        || (AF_INET != domain && AF_INET6 != domain)) {
        return;
    }
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        (void) setsockopt(fd, options[i][0], options[i][1], &options[i][2], sizeof(int));
    }
}

void mca_errmgr_correlated_notice_silence(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (NULL == folder) {
        return;
    }
    /* Open MPI does not show which connections are to daemons. Others of mpirun stay on its host,
     * where nothing is silent for so long. */
    for (struct dirent *entry = readdir(folder); NULL != entry; entry = readdir(folder)) {
        limit_silence(atoi(entry->d_name));
    }
    closedir(folder);
}

void mca_errmgr_correlated_loss_watch(void)
{
    if (mca_errmgr_correlated_may_recover()) {
        mca_errmgr_correlated_notice_silence();
    }
}

/* The coordinator's text comes in one line, with marks where lines shall end (to be freed). */
static char *in_lines(const char *text)
{
    const char *const end = "\n  ";
    size_t length = strlen(text);
    char *lines = malloc(length * strlen(end) + 1);
    char *to = lines;
    for (size_t i = 0; NULL != lines && i < length; i++) {
        if (LINE_END == text[i]) {
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
    /* As when a process aborts: daemons take their processes along. */
    orte_job_term_ordered = true;
    orte_plm.terminate_orteds();
}

void mca_errmgr_correlated_loss_recovered(void)
{
    open_loss = false;
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
    if (have_lost) {
        OBJ_DESTRUCT(&lost);
        have_lost = false;
    }
    if (have_asked) {
        OBJ_DESTRUCT(&asked);
        OBJ_DESTRUCT(&asked_codes);
        OBJ_DESTRUCT(&taken_up);
        have_asked = false;
    }
}

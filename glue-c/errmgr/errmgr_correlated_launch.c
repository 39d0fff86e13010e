/*
 * mpirun's part in the start and the end of a protected job: a coordinator is started before the
 * job's launch message is packed, and the settings of guardians go into that message with the
 * environment of the job's programs. So it is on no command line.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_pipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static orte_state_cbfunc_t stock_launch = NULL;
static orte_job_t *protected_job = NULL;
static opal_event_t orders, look_timer;
static bool watching = false;

static const char *const variables[] = { "RUSTBTL_JOB",     "RUSTBTL_SECRET",
                                         "RUSTBTL_COORDINATOR", "RUSTBTL_RESTORE",
                                         "RUSTBTL_FOLDER",  "RUSTBTL_IMAGES",
                                         "RUSTBTL_LOCAL",   "RUSTBTL_TMP",
                                         "RUSTBTL_PRINTS",  "RUSTBTL_GUARDIAN_FD",
                                         "RUSTBTL_FAILURE_TIMEOUT", "RUSTBTL_SHADOW_VERBS" };

/* Is there a coordinator whose orders are read? */
static void set_watching(bool on)
{
    watching = on;
    mca_errmgr_correlated_set_protected_job(on ? protected_job : NULL);
}

/* What follows the key and a blank; NULL if the line begins with another key. */
static const char *after(const char *order, const char *key)
{
    size_t length = strlen(key);
    bool same = 0 == strncmp(key, order, length) && ' ' == order[length];
    return same ? order + length + 1 : NULL;
}

static void execute(const char *order)
{
    const char *value;
    if (0 == strcmp(RUSTBTL_KEY_END, order)) {
        mca_errmgr_correlated_loss_recovered(); /* nobody waits for processes of a lost node */
        mca_errmgr_correlated_end_job(protected_job);
    } else if (NULL != (value = after(order, RUSTBTL_KEY_FAIL))) {
        mca_errmgr_correlated_loss_failed(value);
    } else if (0 == strcmp(RUSTBTL_KEY_RECOVERED, order)) {
        mca_errmgr_correlated_loss_recovered();
    } else if (NULL != (value = after(order, RUSTBTL_KEY_TOLERATE))) {
        mca_errmgr_correlated_loss_decided(value, true);
    } else if (NULL != (value = after(order, RUSTBTL_KEY_PRINT))) {
        mca_errmgr_correlated_output_print(value);
    } else if (NULL != (value = after(order, RUSTBTL_KEY_STOCK))) {
        mca_errmgr_correlated_loss_decided(value, false);
    } else if (0 == strcmp(RUSTBTL_KEY_MEASURE, order)) {
        mca_errmgr_correlated_silence_measure();
    } else if (NULL != (value = after(order, RUSTBTL_KEY_CUT))) {
        mca_errmgr_correlated_silence_cut(value);
    }
}

static void on_order(int fd, short flags, void *unused);

static void look_again(void)
{
    const double seconds = mca_errmgr_correlated_params.failure_timeout;
    const struct timeval next = { .tv_sec = 1 > seconds ? 1 : (time_t) seconds };
    opal_event_evtimer_add(&look_timer, &next);
}

static void on_look(int fd, short flags, void *unused)
{
    (void) fd;
    (void) flags;
    (void) unused;
    mca_errmgr_correlated_coordinator_look();
    look_again();
}

static void unwatch(void)
{
    opal_event_del(&orders);
    opal_event_evtimer_del(&look_timer);
}

static void watch(void)
{
    opal_event_evtimer_set(orte_event_base, &look_timer, on_look, NULL);
    look_again();
    opal_event_set(orte_event_base, &orders, mca_errmgr_correlated_coordinator_fd(),
                   OPAL_EV_READ | OPAL_EV_PERSIST, on_order, NULL);
    opal_event_add(&orders, NULL);
    set_watching(true);
}

/* No other coordinator can be started. Guardians and ranks continue without one; ranks that are
 * lost are not restarted. */
static void disable_protection(const char *problem)
{
    /* For what waits for its decision, do what stock Open MPI does. */
    mca_errmgr_correlated_loss_decided(NULL, false);
    set_watching(false);
    if (mca_errmgr_correlated_loss_is_open()) {
        char *reason = NULL;
        if (0 > asprintf(&reason,
                         "the job's coordinator has failed during the recovery, and another one "
                         "could not take over: %s", problem)) {
            reason = NULL;
        }
        mca_errmgr_correlated_loss_failed(NULL == reason ? "no memory is left" : reason);
        free(reason);
        return;
    }
    orte_show_help(CORRELATED_ERRMGR_HELP, "protection-disabled", true, orte_process_info.nodename,
                   problem);
}

/* The coordinator has ended. True: there is another one now. */
static bool failover(void)
{
    if (!watching) {
        return false;
    }
    unwatch();
    if (correlated_is_ending()) {
        set_watching(false);
        return false;
    }
    char *problem = mca_errmgr_correlated_coordinator_restart(
        protected_job, mca_errmgr_correlated_output_prints());
    if (NULL != problem) {
        disable_protection(problem);
        free(problem);
        return false;
    }
    watch();
    orte_show_help(CORRELATED_ERRMGR_HELP, "coordinator-failover", true,
                   orte_process_info.nodename);
    mca_errmgr_correlated_loss_resend();
    return true;
}

/* The coordinator has sent an order, or has ended. */
static void on_order(int fd, short flags, void *unused)
{
    (void) fd;
    (void) flags;
    (void) unused;
    do {
        char *order = mca_errmgr_correlated_coordinator_read();
        if (NULL == order) {
            (void) failover();
            return;
        }
        execute(order);
        free(order);
    } while (mca_errmgr_correlated_coordinator_pending());
}

/* Determinants are only of use to sets that are rolled back alone. A value that a test has set
 * stays. */
static void record_determinants(orte_job_t *job)
{
    for (int i = 0; i < job->apps->size; i++) {
        orte_app_context_t *app = opal_pointer_array_get_item(job->apps, i);
        if (NULL != app) {
            opal_setenv("RUSTBTL_RECORD", "line", false, &app->env);
        }
    }
}

static void for_each_app(orte_job_t *job, const char *name, const char *value)
{
    for (int i = 0; i < job->apps->size; i++) {
        orte_app_context_t *app = opal_pointer_array_get_item(job->apps, i);
        if (NULL == app) {
            continue;
        }
        if (NULL == value) {
            opal_unsetenv(name, &app->env);
        } else {
            opal_setenv(name, value, true, &app->env);
        }
    }
}

static void protect(orte_job_t *job, const char *port, const char *name, const char *secret)
{
    const char *restore = mca_errmgr_correlated_params.restore;
    char *uri = NULL, *address = NULL;
    char timeout[32];
    orte_oob_base_get_addr(&uri);
    if (0 > asprintf(&address, "%s %s", port, NULL == uri ? "" : uri)) {
        address = NULL;
    }
    for_each_app(job, "RUSTBTL_JOB", name);
    for_each_app(job, "RUSTBTL_SECRET", secret);
    for_each_app(job, "RUSTBTL_COORDINATOR", NULL == address ? port : address);
    if (NULL != restore && '\0' != restore[0]) {
        for_each_app(job, "RUSTBTL_RESTORE", restore);
    }
    char *images = mca_errmgr_correlated_image_settings();
    for_each_app(job, "RUSTBTL_IMAGES", images);
    free(images);
    const char *verbs = mca_errmgr_correlated_params.shadow_verbs;
    if (NULL != verbs && '\0' != verbs[0] && 0 != strcmp(verbs, "0")) {
        for_each_app(job, "RUSTBTL_SHADOW_VERBS", verbs);
    }
    char *folder = mca_errmgr_correlated_absolute(mca_errmgr_correlated_params.checkpoint_dir);
    if (NULL != folder) {
        char *whole = opal_os_path(false, folder, name, NULL);
        for_each_app(job, "RUSTBTL_FOLDER", whole);
        free(whole);
        free(folder);
    }
    if (mca_errmgr_correlated_keeps_local()) {
        char *local = mca_errmgr_correlated_absolute(mca_errmgr_correlated_params.local_dir);
        for_each_app(job, "RUSTBTL_LOCAL", NULL == local ? "" : local);
        free(local);
    }
    if (mca_errmgr_correlated_may_recover()) {
        record_determinants(job);
    }
    if (mca_errmgr_correlated_output_prints()) {
        for_each_app(job, "RUSTBTL_PRINTS", "1");
    }
    mca_errmgr_correlated_choose_btls(job);
    snprintf(timeout, sizeof(timeout), "%.0f",
             mca_errmgr_correlated_params.failure_timeout * 1000);
    for_each_app(job, "RUSTBTL_FAILURE_TIMEOUT", timeout);
    free(uri);
    free(address);
    watch();
    mca_errmgr_correlated_loss_watch(failover);
    mca_errmgr_correlated_request_spares(job);
    mca_errmgr_correlated_signal_open();
}

static void on_launch(int fd, short flags, void *data)
{
    orte_state_caddy_t *caddy = (orte_state_caddy_t *) data;
    ORTE_ACQUIRE_OBJECT(caddy);
    orte_job_t *job = caddy->jdata;
    bool program = NULL != job && NULL != job->apps && !correlated_are_daemons(job);
    if (program) {
        /* Variables of the user's shell are not for this job. Spawned jobs are not protected. */
        for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
            for_each_app(job, variables[i], NULL);
        }
        if (NULL != protected_job) {
            /* As the job that spawns it: PMIx 5's server ends by SIGSEGV where jobs with different
             * stores meet. */
            for_each_app(job, "PMIX_MCA_gds", "hash");
        }
    }
    if (program && NULL == protected_job && mca_errmgr_correlated_job_is_wanted(job)) {
        char *port = NULL, *name = NULL, *secret = NULL;
        OBJ_RETAIN(job); /* for as long as mpirun lives */
        protected_job = job;
        if (mca_errmgr_correlated_may_recover()) {
            mca_errmgr_correlated_output_watch(job);
        }
        char *problem = mca_errmgr_correlated_values_check();
        if (NULL == problem) {
            problem = mca_errmgr_correlated_signal_check();
        }
        if (NULL == problem) {
            problem = mca_errmgr_correlated_coordinator_start(
                job, mca_errmgr_correlated_output_prints(), &port, &name, &secret);
        }
        if (NULL == problem) {
            mca_errmgr_correlated_job_is_guarded(job);
            protect(job, port, name, secret);
        } else {
            orte_show_help(CORRELATED_ERRMGR_HELP, "no-coordinator", true,
                           orte_process_info.nodename, mca_errmgr_correlated_program(), problem);
            mca_errmgr_correlated_refuse_job(job);
        }
        free(port);
        free(name);
        free(secret);
        if (NULL != problem) {
            free(problem);
            OBJ_RELEASE(caddy);
            return;
        }
    }
    stock_launch(fd, flags, data);
}

int mca_errmgr_correlated_launch_open(void)
{
    orte_state_t *state;
    OPAL_LIST_FOREACH(state, &orte_job_states, orte_state_t) {
        if (ORTE_JOB_STATE_LAUNCH_APPS == state->job_state) {
            stock_launch = state->cbfunc;
            state->cbfunc = on_launch;
            return ORTE_SUCCESS;
        }
    }
    return ORTE_ERR_NOT_FOUND;
}

void mca_errmgr_correlated_launch_close(void)
{
    mca_errmgr_correlated_signal_close();
    if (watching) {
        unwatch();
        set_watching(false);
    }
    mca_errmgr_correlated_output_close();
    mca_errmgr_correlated_loss_close();
    mca_errmgr_correlated_state_close();
    mca_errmgr_correlated_coordinator_stop();
}

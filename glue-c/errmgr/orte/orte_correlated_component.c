/*
 * The MCA component of ORTE's framework errmgr: in mpirun and orteds it has a guardian started in
 * place of each rank's program, and in mpirun a coordinator for the job.
 *
 * It declines unless protection is wanted: then everything is stock Open MPI. In mpirun it wraps
 * the component default_hnp, whose module does all of the framework's work. In an orted it sets the
 * fork agent and lets default_orted be chosen; if the job can continue without a process, it wraps
 * default_orted.
 */
#include "errmgr_correlated.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "opal/mca/base/base.h"
#include "opal/mca/base/mca_base_component_repository.h"
#include "opal/mca/installdirs/installdirs.h"
#include "opal/util/show_help.h"
#include "orte/mca/errmgr/base/base.h"
#include "orte/mca/errmgr/base/errmgr_private.h"
#include "orte/util/attr.h"

static int component_register(void);
static int component_open(void);
static int component_close(void);
static int component_query(mca_base_module_t **module, int *priority);

__attribute__((visibility("default")))
orte_errmgr_base_component_t mca_errmgr_correlated_component = {
    .base_version = {
        ORTE_ERRMGR_BASE_VERSION_3_0_0,
        .mca_component_name = "correlated",
        MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
        .mca_open_component = component_open,
        .mca_close_component = component_close,
        .mca_query_component = component_query,
        .mca_register_component_params = component_register,
    },
    .base_data = { MCA_BASE_METADATA_PARAM_NONE },
};

/* default_hnp's or default_orted's, and ours: the same but for init and finalize. */
static orte_errmgr_base_module_t *stock_module = NULL;
static orte_errmgr_base_module_t module;

static int component_register(void)
{
    /* The framework is opened in MPI processes, too: there these names belong to the component of
     * framework vprotocol. */
    if (!ORTE_PROC_IS_APP) {
        mca_errmgr_correlated_register_params();
        mca_errmgr_correlated_btls_register();
    }
    return ORTE_SUCCESS;
}

/* Where this DSO is; NULL if that cannot be found out. */
static const char *own_folder(void)
{
    static char folder[OPAL_PATH_MAX] = "";
    Dl_info self;
    if ('\0' == folder[0] && 0 != dladdr(&mca_errmgr_correlated_component, &self)
        && NULL != self.dli_fname) {
        const char *slash = strrchr(self.dli_fname, '/');
        int length = NULL == slash ? 0 : (int) (slash - self.dli_fname);
        snprintf(folder, sizeof(folder), "%.*s", length, self.dli_fname);
    }
    return '\0' == folder[0] ? NULL : folder;
}

const char *mca_errmgr_correlated_program(void)
{
    static char path[OPAL_PATH_MAX + sizeof("/rustbtl")];
    const char *given = mca_errmgr_correlated_params.command;
    if (NULL != given && '\0' != given[0]) {
        return given;
    }
    const char *folder = own_folder();
    if (NULL == folder) {
        return "rustbtl";
    }
    snprintf(path, sizeof(path), "%s/rustbtl", folder);
    if (0 != access(path, X_OK)) {
        /* We were built with Open MPI: it is among its programs. */
        snprintf(path, sizeof(path), "%s/rustbtl", opal_install_dirs.bindir);
    }
    return path;
}

/* In front of a fork agent that the user has chosen: it becomes the guardian's program. */
static void set_fork_agent(void)
{
    char **users = orte_fork_agent;
    orte_fork_agent = NULL;
    opal_argv_append_nosize(&orte_fork_agent, mca_errmgr_correlated_program());
    opal_argv_append_nosize(&orte_fork_agent, "guardian");
    for (int i = 0; NULL != users && NULL != users[i]; i++) {
        opal_argv_append_nosize(&orte_fork_agent, users[i]);
    }
    opal_argv_free(users);
}

/* Nothing comes from a node that loses its power or its network: its kernel is asked often whether
 * it is there. Open MPI's component oob/tcp is opened after us. */
static void set_keepalive_defaults(void)
{
    static const char *const names[] = { "OMPI_MCA_oob_tcp_keepalive_time",
                                         "OMPI_MCA_oob_tcp_keepalive_intvl",
                                         "OMPI_MCA_oob_tcp_keepalive_probes" };
    const int interval = mca_errmgr_correlated_probe_interval();
    const int values[] = { interval, interval, CORRELATED_PROBES_MAX };
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char text[16];
        snprintf(text, sizeof(text), "%d", values[i]);
        setenv(names[i], text, 0);
    }
}

static int component_open(void)
{
    if (!ORTE_PROC_IS_HNP && !ORTE_PROC_IS_DAEMON) {
        return ORTE_ERR_NOT_AVAILABLE;
    }
    if (NULL != own_folder()) {
        opal_show_help_add_dir(own_folder());
    }
    if (ORTE_PROC_IS_HNP && mca_errmgr_correlated_other_pml()) {
        orte_show_help(CORRELATED_ERRMGR_HELP, "other-pml", true,
                       mca_errmgr_correlated_params.pml);
    }
    if (!mca_errmgr_correlated_wanted()) {
        return ORTE_ERR_NOT_AVAILABLE;
    }
    if (0 != access(mca_errmgr_correlated_program(), X_OK)) {
        orte_show_help(CORRELATED_ERRMGR_HELP, "no-program", true, orte_process_info.nodename,
                       mca_errmgr_correlated_program());
        /* Not the end here: an error of open only removes the component, and the job would look
         * protected and not be it. As it is, orted fails to start the ranks. */
    }
    set_fork_agent();
    /* Restarted processes find their data only in this store. */
    setenv("PMIX_MCA_gds", "hash", 0);
    if (mca_errmgr_correlated_may_recover()) {
        set_keepalive_defaults();
    }
    return ORTE_SUCCESS;
}

static int component_close(void)
{
    return ORTE_SUCCESS;
}

bool mca_errmgr_correlated_job_is_wanted(orte_job_t *job)
{
    (void) job;
    return true; /* otherwise this component was not opened */
}

bool mca_errmgr_correlated_will_be_wanted(void)
{
    return true; /* the same */
}

char *mca_errmgr_correlated_values_check(void)
{
    return NULL; /* Open MPI has refused it */
}

void mca_errmgr_correlated_job_is_guarded(orte_job_t *job)
{
    (void) job; /* all are, by the fork agent */
}

void mca_errmgr_correlated_end_job(orte_job_t *job)
{
    /* Processes that mpirun itself ends are no failures: the exit code is 0. As after Ctrl-C,
     * they are not reported. */
    orte_job_term_ordered = true;
    orte_plm.terminate_job(job->jobid);
}

void mca_errmgr_correlated_refuse_job(orte_job_t *job)
{
    ORTE_UPDATE_EXIT_STATUS(ORTE_ERROR_DEFAULT_EXIT_CODE);
    job->state = ORTE_JOB_STATE_FAILED_TO_START;
    ORTE_ACTIVATE_JOB_STATE(job, ORTE_JOB_STATE_SILENT_ABORT);
}

static int module_init(void)
{
    int rc = stock_module->init();
    if (ORTE_SUCCESS == rc) {
        rc = mca_errmgr_correlated_daemons_open();
    }
    if (ORTE_SUCCESS == rc) {
        rc = mca_errmgr_correlated_launch_open();
    }
    return ORTE_SUCCESS == rc ? mca_errmgr_correlated_loss_open() : rc;
}

static int module_finalize(void)
{
    mca_errmgr_correlated_daemons_close();
    mca_errmgr_correlated_launch_close();
    return stock_module->finalize();
}

static orte_state_cbfunc_t stock_error = NULL;

/* A guardian was ended by a signal. Stock Open MPI reports only the first one to mpirun, since that
 * ends the job, and does not count it among those that have ended; but the job may continue without
 * it. */
static void on_error(int fd, short flags, void *data)
{
    orte_state_caddy_t *caddy = (orte_state_caddy_t *) data;
    ORTE_ACQUIRE_OBJECT(caddy);
    orte_process_name_t name = caddy->name;
    orte_job_t *job = orte_get_job_data_object(name.jobid);
    bool ours = ORTE_PROC_STATE_ABORTED_BY_SIG == caddy->proc_state && NULL != job
                && !correlated_are_daemons(job) && !correlated_is_ending();
    if (ours) {
        orte_remove_attribute(&job->attributes, ORTE_JOB_FAIL_NOTIFIED);
    }
    /* Releases it. */
    stock_error(fd, flags, data);
    if (ours) {
        orte_proc_t *proc = opal_pointer_array_get_item(job->procs, (int) name.vpid);
        if (NULL != proc && ORTE_FLAG_TEST(proc, ORTE_PROC_FLAG_LOCAL)) {
            ORTE_ACTIVATE_PROC_STATE(&name, ORTE_PROC_STATE_WAITPID_FIRED);
        }
    }
}

static orte_state_cbfunc_t stock_local_launch = NULL;

static opal_event_t carrier_timer;

static void start_carrier_timer(void)
{
    const struct timeval next = { .tv_sec = mca_errmgr_correlated_probe_interval() };
    opal_event_evtimer_add(&carrier_timer, &next);
}

static void on_carrier_timer(int fd, short flags, void *unused)
{
    (void) fd;
    (void) flags;
    (void) unused;
    mca_errmgr_correlated_silence_end_without_carrier();
    start_carrier_timer();
}

/* Programs run, so the connections exist. */
static void on_local_launch(int fd, short flags, void *data)
{
    mca_errmgr_correlated_set_keepalive();
    stock_local_launch(fd, flags, data);
}

static int daemon_init(void)
{
    orte_state_t *state;
    int rc = stock_module->init();
    OPAL_LIST_FOREACH(state, &orte_job_states, orte_state_t) {
        if (ORTE_SUCCESS == rc && ORTE_JOB_STATE_LOCAL_LAUNCH_COMPLETE == state->job_state
            && NULL != state->cbfunc) {
            stock_local_launch = state->cbfunc;
            state->cbfunc = on_local_launch;
        }
    }
    OPAL_LIST_FOREACH(state, &orte_proc_states, orte_state_t) {
        if (ORTE_SUCCESS == rc && ORTE_PROC_STATE_ERROR == state->proc_state) {
            stock_error = state->cbfunc;
            state->cbfunc = on_error;
        }
    }
    if (ORTE_SUCCESS == rc) {
        mca_errmgr_correlated_receive_spare();
        /* Also on a spare node, where nothing is launched. */
        opal_event_evtimer_set(orte_event_base, &carrier_timer, on_carrier_timer, NULL);
        start_carrier_timer();
    }
    return rc;
}

static int component_query(mca_base_module_t **chosen, int *priority)
{
    mca_base_component_list_item_t *item;
    *chosen = NULL;
    *priority = -1;
    const char *stock = ORTE_PROC_IS_HNP ? "default_hnp" : "default_orted";
    if (!ORTE_PROC_IS_HNP && !mca_errmgr_correlated_may_recover()) {
        return ORTE_ERROR; /* default_orted does all that is needed */
    }
    OPAL_LIST_FOREACH(item, &orte_errmgr_base_framework.framework_components,
                      mca_base_component_list_item_t) {
        const mca_base_component_t *component = item->cli_component;
        mca_base_module_t *found = NULL;
        int rank = 0;
        if (0 != strcmp(stock, component->mca_component_name)
            || NULL == component->mca_query_component
            || ORTE_SUCCESS != component->mca_query_component(&found, &rank) || NULL == found) {
            continue;
        }
        /* Otherwise it is unloaded when we are chosen. */
        mca_base_component_repository_retain_component("errmgr", stock);
        stock_module = (orte_errmgr_base_module_t *) found;
        module = *stock_module;
        if (ORTE_PROC_IS_HNP) {
            module.init = module_init;
            module.finalize = module_finalize;
        } else {
            module.init = daemon_init;
        }
        *chosen = (mca_base_module_t *) &module;
        *priority = rank + 10;
        return ORTE_SUCCESS;
    }
    return ORTE_ERROR;
}

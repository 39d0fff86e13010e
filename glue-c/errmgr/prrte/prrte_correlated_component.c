/*
 * The MCA component of PRRTE's framework errmgr (Open MPI 5.0): in mpirun it gives a job that is to
 * be protected a coordinator, and has its programs started by guardians ("exec agent").
 *
 * Whether a job is to be protected is only known when it comes. So the component is always chosen
 * in mpirun; it wraps the component dvm, whose module does all of the framework's work, and does
 * nothing more unless a job wants it. Other nodes' daemons receive the exec agent with the job; if
 * it can continue without a node, they detect soon that they have lost mpirun, and end.
 */
#include "errmgr_correlated.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/mca/base/pmix_base.h"
#include "src/mca/base/pmix_mca_base_component_repository.h"
#include "src/mca/errmgr/base/base.h"
#include "src/mca/errmgr/base/errmgr_private.h"
#include "src/mca/prteinstalldirs/prteinstalldirs.h"
#include "src/util/attr.h"

#ifdef CORRELATED_DSO_NAMES
/* PMIx, which looks for components for PRRTE, too, loads those in a user's folders under its own
 * name only. */
extern prte_errmgr_base_component_t pmix_mca_errmgr_correlated_component
    __attribute__((visibility("default"), alias("prte_mca_errmgr_correlated_component")));
#endif

static int component_query(pmix_mca_base_module_t **module, int *priority);

__attribute__((visibility("default")))
prte_errmgr_base_component_t prte_mca_errmgr_correlated_component = {
    .base_version = {
        PRTE_ERRMGR_BASE_VERSION_3_0_0,
        .pmix_mca_component_name = "correlated",
        PMIX_MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
        .pmix_mca_query_component = component_query,
    },
};

/* dvm's, and ours: the same but for init and finalize. */
static prte_errmgr_base_module_t *stock_module = NULL;
static prte_errmgr_base_module_t module;

/* PRRTE's own, of a daemon. */
static prte_state_cbfunc_t stock_local_launch = NULL;
static prte_state_cbfunc_t stock_error = NULL;

/* Where this DSO is, or the library that the component is a part of. */
static const char *own_folder(void)
{
    static char folder[PRTE_PATH_MAX];
    Dl_info self;
    if ('\0' == folder[0] && 0 != dladdr(&prte_mca_errmgr_correlated_component, &self)
        && NULL != self.dli_fname) {
        snprintf(folder, sizeof(folder), "%s", self.dli_fname);
        char *slash = strrchr(folder, '/');
        if (NULL != slash) {
            *slash = '\0';
        }
    }
    return folder;
}

const char *mca_errmgr_correlated_program(void)
{
    static char path[PRTE_PATH_MAX + sizeof("/rustbtl")];
    const char *given = mca_errmgr_correlated_params.command;
    if (NULL != given && '\0' != given[0]) {
        return given;
    }
    snprintf(path, sizeof(path), "%s/rustbtl", own_folder());
    if (0 != access(path, X_OK)) {
        snprintf(path, sizeof(path), "%s/rustbtl", prte_install_dirs.bindir);
    }
    return path;
}

bool mca_errmgr_correlated_job_is_wanted(prte_job_t *job)
{
    prrte_correlated_values_of(job);
    mca_errmgr_correlated_register_params();
    static bool is_told = false;
    if (NULL != job && !is_told && mca_errmgr_correlated_other_pml()) {
        is_told = true;
        pmix_show_help(CORRELATED_ERRMGR_HELP, "other-pml", true,
                       mca_errmgr_correlated_params.pml);
    }
    return mca_errmgr_correlated_wanted();
}

bool mca_errmgr_correlated_will_be_wanted(void)
{
    return mca_errmgr_correlated_job_is_wanted(NULL);
}

void mca_errmgr_correlated_job_is_guarded(prte_job_t *job)
{
    char *agent = NULL;
    if (0 <= asprintf(&agent, "%s guardian", mca_errmgr_correlated_program())) {
        (void) prte_set_attribute(&job->attributes, PRTE_JOB_EXEC_AGENT, PRTE_ATTR_GLOBAL, agent,
                                  PMIX_STRING);
        free(agent);
    }
    for (int i = 0; i < job->apps->size; i++) {
        prte_app_context_t *app = pmix_pointer_array_get_item(job->apps, i);
        if (NULL != app) {
            /* Not in a file of the session that images would have to find again. */
            PMIX_SETENV_COMPAT("PMIX_MCA_gds", "hash", true, &app->env);
            /* PRRTE complains if files disappear that it is about to remove with a session. */
            if (NULL != prte_process_info.tmpdir_base) {
                PMIX_SETENV_COMPAT("RUSTBTL_TMP", prte_process_info.tmpdir_base, true, &app->env);
            }
        }
    }
}

void mca_errmgr_correlated_end_job(prte_job_t *job)
{
    (void) prte_plm.terminate_job(job->nspace);
}

void mca_errmgr_correlated_refuse_job(prte_job_t *job)
{
    job->exit_code = PRTE_ERROR_DEFAULT_EXIT_CODE;
    PRTE_ACTIVATE_JOB_STATE(job, PRTE_JOB_STATE_FAILED_TO_START);
}

static int module_init(void)
{
    int rc = stock_module->init();
    if (PRTE_SUCCESS == rc) {
        rc = mca_errmgr_correlated_daemons_open();
    }
    if (PRTE_SUCCESS == rc) {
        rc = mca_errmgr_correlated_launch_open();
    }
    return PRTE_SUCCESS == rc ? mca_errmgr_correlated_loss_open() : rc;
}

static int module_finalize(void)
{
    mca_errmgr_correlated_daemons_close();
    mca_errmgr_correlated_launch_close();
    return stock_module->finalize();
}

/* In a daemon: can the job continue without this node (errmgr_correlated_launch.c)? */
static bool can_be_recovered(const prte_job_t *job)
{
    for (int i = 0; NULL != job && i < job->apps->size; i++) {
        prte_app_context_t *app = pmix_pointer_array_get_item(job->apps, i);
        for (int j = 0; NULL != app && NULL != app->env && NULL != app->env[j]; j++) {
            if (0 == strncmp(app->env[j], "RUSTBTL_RECORD=", sizeof("RUSTBTL_RECORD=") - 1)) {
                return true;
            }
        }
    }
    return false;
}

/* A guardian was ended by a signal. Stock PRRTE reports only the first one to mpirun, since that
 * ends the job, and does not count it among those that have ended; but the job may continue without
 * it. */
static void on_error(int fd, short flags, void *data)
{
    prte_state_caddy_t *caddy = (prte_state_caddy_t *) data;
    PMIX_ACQUIRE_OBJECT(caddy);
    pmix_proc_t name = caddy->name;
    prte_job_t *job = prte_get_job_data_object(name.nspace);
    bool ours = PRTE_PROC_STATE_ABORTED_BY_SIG == caddy->proc_state && can_be_recovered(job)
                && !correlated_are_daemons(job) && !correlated_is_ending();
    if (ours) {
        prte_remove_attribute(&job->attributes, PRTE_JOB_FAIL_NOTIFIED);
    }
    /* Releases it. */
    stock_error(fd, flags, data);
    if (ours) {
        prte_proc_t *proc = pmix_pointer_array_get_item(job->procs, (int) name.rank);
        if (NULL != proc && PRTE_FLAG_TEST(proc, PRTE_PROC_FLAG_LOCAL)) {
            /* In the end it has to be reported to mpirun once more, with the others. */
            PRTE_FLAG_UNSET(proc, PRTE_PROC_FLAG_TERM_REPORTED);
            PRTE_ACTIVATE_PROC_STATE(&name, PRTE_PROC_STATE_WAITPID_FIRED);
        }
    }
}

static prte_event_t carrier_timer;

static void start_carrier_timer(void)
{
    const struct timeval next = { .tv_sec = mca_errmgr_correlated_probe_interval() };
    prte_event_evtimer_add(&carrier_timer, &next);
}

static void on_carrier_timer(int fd, short flags, void *unused)
{
    (void) fd;
    (void) flags;
    (void) unused;
    mca_errmgr_correlated_silence_end_without_carrier();
    start_carrier_timer();
}

void prrte_correlated_watch_connections(char *const *settings)
{
    static const char name[] = "RUSTBTL_FAILURE_TIMEOUT=";
    static bool watches = false;
    for (int i = 0; NULL != settings && NULL != settings[i]; i++) {
        if (0 == strncmp(settings[i], name, sizeof(name) - 1)) {
            mca_errmgr_correlated_params.failure_timeout =
                strtod(settings[i] + sizeof(name) - 1, NULL) / 1000; /* it is in ms */
        }
    }
    mca_errmgr_correlated_set_keepalive();
    if (!watches) {
        watches = true;
        prte_event_evtimer_set(prte_event_base, &carrier_timer, on_carrier_timer, NULL);
        start_carrier_timer();
    }
}

/* The daemon's own callback is set once programs run. */
static void watch_errors(void)
{
    prte_state_t *state;
    PMIX_LIST_FOREACH(state, &prte_proc_states, prte_state_t) {
        if (PRTE_PROC_STATE_ERROR == state->proc_state && NULL == stock_error) {
            stock_error = state->cbfunc;
            state->cbfunc = on_error;
        }
    }
}

static void on_local_launch(int fd, short flags, void *data)
{
    prte_state_caddy_t *caddy = (prte_state_caddy_t *) data;
    PMIX_ACQUIRE_OBJECT(caddy);
    if (can_be_recovered(caddy->jdata)) {
        const prte_app_context_t *app = pmix_pointer_array_get_item(caddy->jdata->apps, 0);
        prrte_correlated_watch_connections(NULL == app ? NULL : app->env);
        watch_errors();
    }
    stock_local_launch(fd, flags, data);
}

static void watch_in_daemon(void)
{
    prte_state_t *state;
    PMIX_LIST_FOREACH(state, &prte_job_states, prte_state_t) {
        if (PRTE_JOB_STATE_LOCAL_LAUNCH_COMPLETE == state->job_state && NULL != state->cbfunc) {
            stock_local_launch = state->cbfunc;
            state->cbfunc = on_local_launch;
        }
    }
}

static int component_query(pmix_mca_base_module_t **chosen, int *priority)
{
    pmix_mca_base_component_list_item_t *item;
    *chosen = NULL;
    *priority = -1;
    (void) pmix_show_help_add_dir(own_folder());
    if (PRTE_PROC_IS_DAEMON) {
        watch_in_daemon();
        mca_errmgr_correlated_receive_spare();
    }
    if (!PRTE_PROC_IS_MASTER) {
        return PRTE_ERROR; /* PRRTE's own does all that is needed */
    }
    PMIX_LIST_FOREACH(item, &prte_errmgr_base_framework.framework_components,
                      pmix_mca_base_component_list_item_t) {
        const pmix_mca_base_component_t *component = item->cli_component;
        pmix_mca_base_module_t *found = NULL;
        int rank = 0;
        if (0 != strcmp("dvm", component->pmix_mca_component_name)
            || NULL == component->pmix_mca_query_component
            || PRTE_SUCCESS != component->pmix_mca_query_component(&found, &rank)
            || NULL == found) {
            continue;
        }
        /* Otherwise it is unloaded when we are chosen. */
        pmix_mca_base_component_repository_retain_component("errmgr", "dvm");
        stock_module = (prte_errmgr_base_module_t *) found;
        module = *stock_module;
        module.init = module_init;
        module.finalize = module_finalize;
        *chosen = (pmix_mca_base_module_t *) &module;
        *priority = rank + 10;
        return PRTE_SUCCESS;
    }
    return PRTE_ERROR;
}

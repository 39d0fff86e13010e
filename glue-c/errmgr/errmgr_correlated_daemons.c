/*
 * Daemons that Slurm starts are the tasks of one step. When a node fails, or a task with an exit
 * code, Slurm ends the whole step, and with it the daemons of all other nodes, unless srun was told
 * not to: it is told here.
 *
 * mpirun waits for its daemons on all nodes before it starts anything. Since srun does not end them
 * all when one ends, mpirun itself notices that one could not be started: for a long time no more
 * of them report. Then it tells the others to end, and ends itself: Open MPI would wait for
 * messages of a daemon that never was.
 */
#include "errmgr_correlated.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A step that loses a node, or a daemon, continues. */
#define CORRELATED_SRUN_ARGUMENTS "--no-kill --kill-on-bad-exit=0"

/* A node may be slow to start a program from a shared file system, and srun has said already what
 * it knows. */
enum { LOOK_SECONDS = 2, PATIENCE_MIN_SECONDS = 5, ENDING_SECONDS = 4 };

static opal_event_t timer;
static bool awaits = false;
static unsigned reported = 0;
static time_t last_report = 0;
static time_t told = 0;

static time_t now(void)
{
    struct timespec at = { 0 };
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec;
}

static int patience(void)
{
    const double given = mca_errmgr_correlated_params.launch_timeout;
    return PATIENCE_MIN_SECONDS < given ? (int) given : PATIENCE_MIN_SECONDS;
}

static void look_again(void)
{
    const struct timeval next = { .tv_sec = LOOK_SECONDS };
    opal_event_evtimer_add(&timer, &next);
}

/* Nodes whose daemons have not reported, as far as there is room. */
static void name_missing(const orte_job_t *daemons, char *names, size_t size)
{
    size_t used = 0;
    names[0] = '\0';
    for (int i = 0; i < daemons->procs->size && used + 1 < size; i++) {
        const orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (NULL == daemon || ORTE_PROC_STATE_RUNNING == daemon->state || NULL == daemon->node
            || NULL == daemon->node->name) {
            continue;
        }
        int put = snprintf(names + used, size - used, "%s%s", 0 == used ? "" : ", ",
                           daemon->node->name);
        used += 0 < put ? (size_t) put : 0;
    }
}

/* Is this process the srun that we have started? */
static bool is_our_srun(const char *pid)
{
    char path[300], line[256];
    bool is_srun = false, is_ours = false;
    snprintf(path, sizeof(path), "/proc/%s/status", pid);
    FILE *status = fopen(path, "r");
    while (NULL != status && NULL != fgets(line, sizeof(line), status)) {
        int parent = 0;
        is_srun = is_srun || 0 == strcmp(line, "Name:\tsrun\n");
        is_ours = is_ours || (1 == sscanf(line, "PPid: %d", &parent) && getpid() == parent);
    }
    if (NULL != status) {
        fclose(status);
    }
    return is_srun && is_ours;
}

static void signal_srun(int number)
{
    DIR *all = opendir("/proc");
    const struct dirent *process;
    while (NULL != all && NULL != (process = readdir(all))) {
        if (isdigit((unsigned char) process->d_name[0]) && is_our_srun(process->d_name)) {
            kill((pid_t) atoi(process->d_name), number);
        }
    }
    if (NULL != all) {
        closedir(all);
    }
}

static void on_timer(int fd, short flags, void *unused)
{
    (void) fd;
    (void) flags;
    (void) unused;
    orte_job_t *daemons = correlated_daemons();
    if (0 != told) {
        if (ENDING_SECONDS <= now() - told) {
            signal_srun(SIGKILL);
            ORTE_ACTIVATE_JOB_STATE(NULL, ORTE_JOB_STATE_DAEMONS_TERMINATED);
            return;
        }
    } else if (NULL == daemons || correlated_is_ending()
               || daemons->num_procs <= daemons->num_reported) {
        return; /* they were all asked for long ago */
    } else if (reported != daemons->num_reported) {
        reported = daemons->num_reported;
        last_report = now();
    } else if (patience() <= now() - last_report) {
        char missing[1024];
        name_missing(daemons, missing, sizeof(missing));
        orte_show_help(CORRELATED_ERRMGR_HELP, "daemons-missing", true, missing, patience());
        ORTE_UPDATE_EXIT_STATUS(ORTE_ERROR_DEFAULT_EXIT_CODE);
        told = now();
        /* Else it is an internal error that the one which is missing gets no order. */
        orte_abnormal_term_ordered = true;
        orte_plm.terminate_orteds();
    }
    look_again();
}

static void await_daemons(void)
{
    last_report = now();
    opal_event_evtimer_set(orte_event_base, &timer, on_timer, NULL);
    awaits = true;
    look_again();
}

/* What the user has chosen for srun comes behind ours, and has precedence. */
static void set_srun_arguments(void)
{
    char *all = NULL;
    char **given = correlated_srun_arguments();
    if (NULL == given) {
        return; /* there is no Slurm */
    }
    if (0 <= asprintf(&all, CORRELATED_SRUN_ARGUMENTS " %s", NULL == *given ? "" : *given)) {
        free(*given);
        *given = all;
        await_daemons();
    }
}

static orte_state_cbfunc_t stock_allocate = NULL;

/* All frameworks are open; daemons are started later. */
static void on_allocate(int fd, short flags, void *data)
{
    static bool done = false;
    if (!done && mca_errmgr_correlated_will_be_wanted() && mca_errmgr_correlated_may_recover()) {
        set_srun_arguments();
    }
    done = true;
    stock_allocate(fd, flags, data);
}

int mca_errmgr_correlated_daemons_open(void)
{
    orte_state_t *state;
    OPAL_LIST_FOREACH(state, &orte_job_states, orte_state_t) {
        if (ORTE_JOB_STATE_ALLOCATE == state->job_state && NULL != state->cbfunc) {
            stock_allocate = state->cbfunc;
            state->cbfunc = on_allocate;
            return ORTE_SUCCESS;
        }
    }
    return ORTE_ERR_NOT_FOUND;
}

void mca_errmgr_correlated_daemons_close(void)
{
    if (awaits) {
        opal_event_evtimer_del(&timer);
    }
    awaits = false;
}

/*
 * mpirun waits for its daemons on all nodes before it starts anything. Where Slurm starts them,
 * srun is told not to end all when one ends (orte_correlated_component.c); so mpirun itself notices
 * that one could not be started: for a long time no more of them report. Then it tells the others
 * to end, and ends itself: Open MPI would wait for messages of a daemon that never was.
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

#include "opal/class/opal_pointer_array.h"

/* A node may be slow to start a program from a shared file system, and srun has said already what
 * it knows. */
enum { LOOK_SECONDS = 2, PATIENCE_MIN_SECONDS = 5, ENDING_SECONDS = 4 };

static opal_event_t timer;
static bool awaits = false;
static orte_vpid_t reported = 0;
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

void mca_errmgr_correlated_await_daemons(void)
{
    last_report = now();
    opal_event_evtimer_set(orte_event_base, &timer, on_timer, NULL);
    awaits = true;
    look_again();
}

void mca_errmgr_correlated_stop_awaiting_daemons(void)
{
    if (awaits) {
        opal_event_evtimer_del(&timer);
    }
    awaits = false;
}

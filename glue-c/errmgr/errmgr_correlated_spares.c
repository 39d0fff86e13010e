/*
 * Spare nodes: nodes of the allocation on which no rank of the job runs. mpirun sends the daemon of
 * such a node the settings of guardians; the daemon starts `rustbtl spare`, which takes ranks of
 * nodes that are lost.
 *
 * The launch message cannot be used: a daemon without ranks receives it, but no callback of a
 * component follows from it there.
 */
#include "errmgr_correlated.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Its processes are not placed yet, but it is known which nodes they will be on. */
static bool has_ranks(const orte_proc_t *daemon, const orte_job_t *job)
{
    for (int i = 0; NULL != job->map && i < job->map->nodes->size; i++) {
        const orte_node_t *node = opal_pointer_array_get_item(job->map->nodes, i);
        if (NULL != node && node->daemon == daemon) {
            return true;
        }
    }
    return NULL == job->map;
}

/* The program, and what guardians find in their environment; NULL: no memory is left. */
static char **guardian_settings(const orte_job_t *job)
{
    const orte_app_context_t *app = opal_pointer_array_get_item(job->apps, 0);
    char **arguments = NULL, *size = NULL;
    if (NULL == app || 0 > asprintf(&size, "OMPI_COMM_WORLD_SIZE=%u", (unsigned) job->num_procs)) {
        return NULL;
    }
    bool good = ORTE_SUCCESS == opal_argv_append_nosize(&arguments, mca_errmgr_correlated_program())
                && ORTE_SUCCESS == opal_argv_append_nosize(&arguments, size);
    for (int i = 0; good && NULL != app->env && NULL != app->env[i]; i++) {
        if (0 == strncmp("RUSTBTL_", app->env[i], strlen("RUSTBTL_"))) {
            good = ORTE_SUCCESS == opal_argv_append_nosize(&arguments, app->env[i]);
        }
    }
    free(size);
    if (!good) {
        opal_argv_free(arguments);
        arguments = NULL;
    }
    return arguments;
}

void mca_errmgr_correlated_request_spares(orte_job_t *job)
{
    orte_job_t *daemons = correlated_daemons();
    int left = mca_errmgr_correlated_may_recover() ? mca_errmgr_correlated_params.spare_nodes : 0;
    char **arguments = 0 < left ? guardian_settings(job) : NULL;
    int size = NULL == arguments || NULL == daemons ? 0 : daemons->procs->size;
    for (int i = 1; 0 < left && i < size; i++) {
        orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (NULL != daemon && ORTE_FLAG_TEST(daemon, ORTE_PROC_FLAG_ALIVE)
            && !has_ranks(daemon, job)) {
            /* If this fails, the job is protected as one that has no spare nodes. */
            correlated_send_to_daemon(daemon, arguments);
            left--;
        }
    }
    opal_argv_free(arguments);
}

/* In the child: nothing but system calls. Descriptors of the daemon are closed: by their end mpirun
 * and its rsh client detect that the daemon has ended. */
static void exec_spare(const char *program, char **environment)
{
    sigset_t none;
    int null = open("/dev/null", O_RDWR);
    setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int fd = 0; fd < 3; fd++) {
        (void) dup2(null, fd);
    }
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < (0 < most && most < 65536 ? most : 65536); fd++) {
        close(fd);
    }
    char *const command[] = { "rustbtl", "spare", NULL };
    execve(program, command, environment);
    _exit(127);
}

void mca_errmgr_correlated_start_spare(char *const *arguments)
{
    extern char **environ;
    char **environment = opal_argv_copy(environ);
    for (int i = 1; NULL != arguments[0] && NULL != arguments[i]; i++) {
        const char *value = strchr(arguments[i], '=');
        char *name = NULL == value ? NULL : strndup(arguments[i], (size_t) (value - arguments[i]));
        if (NULL != name) {
            opal_setenv(name, value + 1, true, &environment);
        }
        free(name);
    }
    /* Not in the session's folder, which is removed with the daemon. */
    if (NULL != orte_process_info.tmpdir_base) {
        opal_setenv("RUSTBTL_TMP", orte_process_info.tmpdir_base, true, &environment);
    }
    pid_t child = NULL == arguments[0] ? -1 : fork();
    if (0 == child) {
        exec_spare(arguments[0], environment);
    }
    opal_argv_free(environment);
}

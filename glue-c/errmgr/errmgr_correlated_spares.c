/*
 * Spare nodes: nodes of the allocation on which no rank of the job runs. mpirun tells the daemon of
 * such a node what guardians must know; the daemon starts `rustbtl spare`, which takes ranks of
 * nodes that are lost.
 *
 * The launch message does not do: a daemon without ranks gets it, and nothing follows from it there
 * that a component would hear of.
 */
#include "errmgr_correlated.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Its processes have no place yet, but it is known which nodes they will be on. */
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

/* The program, and what guardians find in their environment; NULL if there is no room for it. */
static char **what_guardians_know(const orte_job_t *job)
{
    const orte_app_context_t *app = opal_pointer_array_get_item(job->apps, 0);
    char **words = NULL, *size = NULL;
    if (NULL == app || 0 > asprintf(&size, "OMPI_COMM_WORLD_SIZE=%u", (unsigned) job->num_procs)) {
        return NULL;
    }
    bool good = ORTE_SUCCESS == opal_argv_append_nosize(&words, mca_errmgr_correlated_program())
                && ORTE_SUCCESS == opal_argv_append_nosize(&words, size);
    for (int i = 0; good && NULL != app->env && NULL != app->env[i]; i++) {
        if (0 == strncmp("RUSTBTL_", app->env[i], strlen("RUSTBTL_"))) {
            good = ORTE_SUCCESS == opal_argv_append_nosize(&words, app->env[i]);
        }
    }
    free(size);
    if (!good) {
        opal_argv_free(words);
        words = NULL;
    }
    return words;
}

void mca_errmgr_correlated_ask_spares(orte_job_t *job)
{
    orte_job_t *daemons = correlated_daemons();
    int left = mca_errmgr_correlated_may_recover() ? mca_errmgr_correlated_params.spares : 0;
    char **words = 0 < left ? what_guardians_know(job) : NULL;
    for (int i = 1; NULL != words && NULL != daemons && 0 < left && i < daemons->procs->size; i++) {
        orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (NULL != daemon && ORTE_FLAG_TEST(daemon, ORTE_PROC_FLAG_ALIVE)
            && !has_ranks(daemon, job)) {
            /* Without spare nodes the job is as well protected as one that has none. */
            correlated_tell_daemon(daemon, words);
            left--;
        }
    }
    opal_argv_free(words);
}

/* In the child: nothing but system calls. Descriptors of the daemon must end with it: mpirun and
 * its rsh client notice by them that it has gone. */
static void become_spare(const char *program, char **environment)
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
    char *const words[] = { "rustbtl", "spare", NULL };
    execve(program, words, environment);
    _exit(127);
}

void mca_errmgr_correlated_be_spare(char *const *words)
{
    extern char **environ;
    char **environment = opal_argv_copy(environ);
    for (int i = 1; NULL != words[0] && NULL != words[i]; i++) {
        const char *value = strchr(words[i], '=');
        char *name = NULL == value ? NULL : strndup(words[i], (size_t) (value - words[i]));
        if (NULL != name) {
            opal_setenv(name, value + 1, true, &environment);
        }
        free(name);
    }
    /* Not in the session's folder, which goes with the daemon. */
    if (NULL != orte_process_info.tmpdir_base) {
        opal_setenv("RUSTBTL_TMP", orte_process_info.tmpdir_base, true, &environment);
    }
    pid_t child = NULL == words[0] ? -1 : fork();
    if (0 == child) {
        become_spare(words[0], environment);
    }
    opal_argv_free(environment);
}

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

#include "opal/dss/dss.h"
#include "orte/mca/rmaps/rmaps_types.h"

/* Of no other message: Open MPI's own end before 70, and others begin at ORTE_RML_TAG_MAX. */
#define CORRELATED_TAG_SPARE 97
#define VARIABLES_MAX 64

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

/* What guardians find in their environment; NULL if there is no room for it. */
static opal_buffer_t *what_guardians_know(const orte_job_t *job)
{
    orte_app_context_t *app = opal_pointer_array_get_item(job->apps, 0);
    opal_buffer_t *message = OBJ_NEW(opal_buffer_t);
    char *size = NULL;
    bool good = NULL != app && NULL != message
                && 0 < asprintf(&size, "OMPI_COMM_WORLD_SIZE=%u", (unsigned) job->num_procs);
    good = good && OPAL_SUCCESS == opal_dss.pack(message, &size, 1, OPAL_STRING);
    for (int i = 0; good && NULL != app->env && NULL != app->env[i]; i++) {
        if (0 == strncmp("RUSTBTL_", app->env[i], strlen("RUSTBTL_"))) {
            good = OPAL_SUCCESS == opal_dss.pack(message, &app->env[i], 1, OPAL_STRING);
        }
    }
    free(size);
    if (!good && NULL != message) {
        OBJ_RELEASE(message);
        message = NULL;
    }
    return message;
}

void mca_errmgr_correlated_ask_spares(orte_job_t *job)
{
    orte_job_t *daemons = correlated_daemons();
    int left = mca_errmgr_correlated_may_recover() ? mca_errmgr_correlated_params.spares : 0;
    for (int i = 1; NULL != daemons && 0 < left && i < daemons->procs->size; i++) {
        orte_proc_t *daemon = opal_pointer_array_get_item(daemons->procs, i);
        if (NULL == daemon || !ORTE_FLAG_TEST(daemon, ORTE_PROC_FLAG_ALIVE)
            || has_ranks(daemon, job)) {
            continue;
        }
        opal_buffer_t *message = what_guardians_know(job);
        /* Without spare nodes the job is as well protected as one that has none. */
        if (NULL != message
            && 0 > orte_rml.send_buffer_nb(orte_mgmt_conduit, &daemon->name, message,
                                           CORRELATED_TAG_SPARE, orte_rml_send_callback, NULL)) {
            OBJ_RELEASE(message);
        }
        left--;
    }
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

/* A daemon hears that its node is a spare one. */
static void on_spare(int status, orte_process_name_t *sender, opal_buffer_t *message,
                     orte_rml_tag_t tag, void *unused)
{
    (void) status;
    (void) sender;
    (void) tag;
    (void) unused;
    extern char **environ;
    char **environment = opal_argv_copy(environ);
    char *variable = NULL;
    int32_t one = 1;
    for (int i = 0; i < VARIABLES_MAX
                    && OPAL_SUCCESS == opal_dss.unpack(message, &variable, &one, OPAL_STRING)
                    && NULL != variable;
         i++) {
        char *value = strchr(variable, '=');
        if (NULL != value) {
            *value = '\0';
            opal_setenv(variable, value + 1, true, &environment);
        }
        free(variable);
        variable = NULL;
    }
    /* Not in the session's folder, which goes with the daemon. */
    if (NULL != orte_process_info.tmpdir_base) {
        opal_setenv("RUSTBTL_TMP", orte_process_info.tmpdir_base, true, &environment);
    }
    const char *program = mca_errmgr_correlated_program();
    pid_t child = fork();
    if (0 == child) {
        become_spare(program, environment);
    }
    opal_argv_free(environment);
}

void mca_errmgr_correlated_hear_spare(void)
{
    orte_rml.recv_buffer_nb(ORTE_PROC_MY_HNP, CORRELATED_TAG_SPARE, ORTE_RML_NON_PERSISTENT,
                            on_spare, NULL);
}

/*
 * ORTE's names in PRRTE, its descendant in Open MPI 5.0: for the files of component correlated
 * that are written for both. What is not a matter of names alone is at the end, as in
 * orte_correlated.h.
 */
#ifndef PRRTE_CORRELATED_H
#define PRRTE_CORRELATED_H

#include "prte_config.h"
#include "constants.h"
#include "src/class/pmix_bitmap.h"
#include "src/event/event-internal.h"
#include "src/mca/base/pmix_mca_base_var.h"
#include "src/mca/errmgr/errmgr.h"
#include "src/mca/oob/base/base.h"
#include "src/mca/plm/plm.h"
#include "src/mca/rmaps/rmaps_types.h"
#include "src/mca/state/state.h"
#include "src/pmix/pmix-internal.h"
#include "src/rml/rml.h"
#include "src/runtime/prte_globals.h"
#include "src/runtime/runtime.h"
#include "src/threads/pmix_threads.h"
#include "src/util/name_fns.h"
#include "src/util/pmix_environ.h"
#include "src/util/pmix_os_path.h"
#include "src/util/pmix_show_help.h"
#include "src/util/proc_info.h"

/* Jobs are protected by default. */
#define CORRELATED_PROTECTS_BY_DEFAULT 1

/* Its ranks start BTLs only where windows are Open MPI's, which need those that the user names. */
#define mca_errmgr_correlated_choose_btls(job) ((void) (job))

/* ---- OPAL's -------------------------------------------------------------------------------- */

#define OPAL_PATH_MAX PRTE_PATH_MAX
#define OPAL_SUCCESS PRTE_SUCCESS
#define OPAL_LIST_FOREACH PMIX_LIST_FOREACH
#define OPAL_EV_READ PRTE_EV_READ
#define OPAL_EV_PERSIST PRTE_EV_PERSIST
#define OBJ_CONSTRUCT PMIX_CONSTRUCT
#define OBJ_DESTRUCT PMIX_DESTRUCT
#define OBJ_RETAIN PMIX_RETAIN
#define OBJ_RELEASE PMIX_RELEASE
#define opal_buffer_t pmix_data_buffer_t
#define opal_argv_append_nosize PMIX_ARGV_APPEND_NOSIZE_COMPAT
#define opal_argv_copy PMIX_ARGV_COPY_COMPAT
#define opal_argv_split PMIX_ARGV_SPLIT_COMPAT
#define opal_argv_free PMIX_ARGV_FREE_COMPAT
#define opal_bitmap_t pmix_bitmap_t
#define opal_bitmap_clear_bit pmix_bitmap_clear_bit
#define opal_bitmap_init pmix_bitmap_init
#define opal_bitmap_set_bit pmix_bitmap_set_bit
#define opal_bitmap_is_set_bit pmix_bitmap_is_set_bit
#define opal_event_t prte_event_t
#define opal_event_set prte_event_set
#define opal_event_add prte_event_add
#define opal_event_del prte_event_del
#define opal_event_evtimer_set prte_event_evtimer_set
#define opal_event_evtimer_add prte_event_evtimer_add
#define opal_event_evtimer_del prte_event_evtimer_del
#define opal_os_path pmix_os_path
#define opal_pointer_array_t pmix_pointer_array_t
#define opal_pointer_array_add pmix_pointer_array_add
#define opal_pointer_array_set_item pmix_pointer_array_set_item
#define opal_pointer_array_get_item pmix_pointer_array_get_item
#define opal_setenv PMIX_SETENV_COMPAT
#define opal_unsetenv pmix_unsetenv

/* ---- MCA variables: here they are values of the job (prrte_correlated_values.c) -------------- */

#define OPAL_INFO_LVL_1 1
#define OPAL_INFO_LVL_2 2
#define OPAL_INFO_LVL_3 3
#define OPAL_INFO_LVL_5 5
#define OPAL_INFO_LVL_9 9
#define MCA_BASE_VAR_SCOPE_READONLY 0
#define MCA_BASE_VAR_TYPE_STRING PMIX_MCA_BASE_VAR_TYPE_STRING
#define MCA_BASE_VAR_TYPE_INT PMIX_MCA_BASE_VAR_TYPE_INT
#define MCA_BASE_VAR_TYPE_BOOL PMIX_MCA_BASE_VAR_TYPE_BOOL
#define MCA_BASE_VAR_TYPE_DOUBLE PMIX_MCA_BASE_VAR_TYPE_DOUBLE
#define mca_base_var_type_t pmix_mca_base_var_type_t
#define mca_base_var_info_lvl_t int
#define mca_base_var_register(project, framework, component, name, help, type, enumerator, bind, \
                              flags, level, scope, where)                                        \
    prrte_correlated_value(framework, component, name, type,                                     \
                           ((void) (help), (void) (level), (where)))

/* The new name counts where both are given. There is no warning about the old one. */
#define correlated_old_value(name, type, where) \
    ((void) prrte_correlated_value("vprotocol", "correlated", name, type, where))
#define MCA_BASE_VAR_SYN_FLAG_DEPRECATED 0
#define mca_base_var_register_synonym(index, project, framework, component, name, flags) \
    ((void) (index), (void) (name), 0)

/* Sets `where` if the user has given a value to FRAMEWORK_COMPONENT_NAME (without the last two:
 * FRAMEWORK). */
int prrte_correlated_value(const char *framework, const char *component, const char *name,
                           pmix_mca_base_var_type_t type, void *where);
/* The job whose values are meant from now on. NULL: the one that mpirun will start, as far as its
 * command line says. */
void prrte_correlated_values_of(const prte_job_t *job);

/* A daemon: connections are probed from now on, and ended where its own node is cut off. `settings`
 * are those of the job's guardians. */
void prrte_correlated_watch_connections(char *const *settings);

/* ---- ORTE's --------------------------------------------------------------------------------- */

#define ORTE_SUCCESS PRTE_SUCCESS
#define ORTE_ERR_NOT_FOUND PRTE_ERR_NOT_FOUND
#define ORTE_ERROR_DEFAULT_EXIT_CODE PRTE_ERROR_DEFAULT_EXIT_CODE
#define ORTE_ACQUIRE_OBJECT PMIX_ACQUIRE_OBJECT
#define ORTE_ACTIVATE_PROC_STATE PRTE_ACTIVATE_PROC_STATE
#define ORTE_FLAG_TEST PRTE_FLAG_TEST
#define ORTE_FLAG_UNSET PRTE_FLAG_UNSET
#define ORTE_ACTIVATE_JOB_STATE PRTE_ACTIVATE_JOB_STATE
#define ORTE_JOB_STATE_ALLOCATE PRTE_JOB_STATE_ALLOCATE
#define ORTE_JOB_STATE_DAEMONS_TERMINATED PRTE_JOB_STATE_DAEMONS_TERMINATED
#define ORTE_JOB_STATE_LAUNCH_APPS PRTE_JOB_STATE_LAUNCH_APPS
#define ORTE_PROC_FLAG_ALIVE PRTE_PROC_FLAG_ALIVE
#define ORTE_PROC_FLAG_LOCAL PRTE_PROC_FLAG_LOCAL
#define ORTE_PROC_STATE_ABORTED_BY_SIG PRTE_PROC_STATE_ABORTED_BY_SIG
#define ORTE_PROC_STATE_COMM_FAILED PRTE_PROC_STATE_COMM_FAILED
#define ORTE_PROC_STATE_ERROR PRTE_PROC_STATE_ERROR
#define ORTE_PROC_STATE_FAILED_TO_CONNECT PRTE_PROC_STATE_FAILED_TO_CONNECT
#define ORTE_PROC_STATE_FAILED_TO_START PRTE_PROC_STATE_FAILED_TO_START
#define ORTE_PROC_STATE_HEARTBEAT_FAILED PRTE_PROC_STATE_HEARTBEAT_FAILED
#define ORTE_PROC_STATE_IOF_COMPLETE PRTE_PROC_STATE_IOF_COMPLETE
#define ORTE_PROC_STATE_NO_PATH_TO_TARGET PRTE_PROC_STATE_NO_PATH_TO_TARGET
#define ORTE_PROC_STATE_RUNNING PRTE_PROC_STATE_RUNNING
#define ORTE_PROC_STATE_TERMINATED PRTE_PROC_STATE_TERMINATED
#define ORTE_PROC_STATE_UNABLE_TO_SEND_MSG PRTE_PROC_STATE_UNABLE_TO_SEND_MSG
#define ORTE_PROC_STATE_WAITPID_FIRED PRTE_PROC_STATE_WAITPID_FIRED
#define ORTE_PROC_MY_NAME PRTE_PROC_MY_NAME
#define ORTE_RML_TAG_IOF_HNP PRTE_RML_TAG_IOF_HNP
#define ORTE_UPDATE_EXIT_STATUS PRTE_UPDATE_EXIT_STATUS
#define orte_abnormal_term_ordered prte_abnormal_term_ordered
#define orte_app_context_t prte_app_context_t
#define orte_event_base prte_event_base
#define orte_exit_status prte_exit_status
#define orte_job_states prte_job_states
#define orte_job_t prte_job_t
/* Ctrl-C: it sets this, too. */
#define orte_job_term_ordered prte_dvm_abort_ordered
#define orte_node_t prte_node_t
#define orte_oob_base_get_addr prte_oob_base_get_addr
#define orte_plm prte_plm
#define orte_proc_states prte_proc_states
#define orte_proc_t prte_proc_t
#define orte_process_info prte_process_info
#define orte_process_name_t pmix_proc_t
#define orte_rml_base prte_rml_base
#define orte_rml_buffer_callback_fn_t prte_rml_buffer_callback_fn_t
#define orte_rml_posted_recv_t prte_rml_posted_recv_t
#define orte_rml_tag_t prte_rml_tag_t
#define orte_show_help pmix_show_help
#define orte_state_caddy_t prte_state_caddy_t
#define orte_state_cbfunc_t prte_state_cbfunc_t
#define orte_state_t prte_state_t

/* ---- more than names ------------------------------------------------------------------------ */

#define CORRELATED_SESSION_DIR prte_process_info.top_session_dir

/* Of a receive that was posted. */
#define CORRELATED_CALLBACK cbfunc
/* PRRTE has that field, too, and sets it nowhere: all of its receives take a buffer. */
#define CORRELATED_TAKES_BUFFER(posted) true

/* Where PRRTE's own component for Slurm has the user's arguments for srun; NULL: no Slurm. */
static inline char **correlated_srun_arguments(void)
{
    char **given = NULL;
    int index = pmix_mca_base_var_find("prte", "plm", "slurm", "args");
    bool is_there = 0 <= index
                    && PMIX_SUCCESS == pmix_mca_base_var_get_value(index, &given, NULL, NULL);
    return is_there ? given : NULL;
}

static inline bool correlated_are_daemons(const prte_job_t *job)
{
    return PMIX_CHECK_NSPACE(job->nspace, PRTE_PROC_MY_NAME->nspace);
}

static inline prte_job_t *correlated_daemons(void)
{
    return prte_get_job_data_object(PRTE_PROC_MY_NAME->nspace);
}

static inline int correlated_rank(const pmix_proc_t *name)
{
    return (int) name->rank;
}

static inline bool correlated_is_other_daemon(const pmix_proc_t *name)
{
    return PMIX_CHECK_NSPACE(name->nspace, PRTE_PROC_MY_NAME->nspace)
           && PRTE_PROC_MY_NAME->rank != name->rank;
}

/* Is this a process of the job? */
static inline bool correlated_is_of(const pmix_proc_t *name, const prte_job_t *job)
{
    return PMIX_CHECK_NSPACE(name->nspace, job->nspace);
}

static inline void correlated_route_lost(const pmix_proc_t *daemon)
{
    (void) prte_rml_route_lost(daemon->rank);
}

static inline bool correlated_is_ending(void)
{
    return prte_finalizing || prte_prteds_term_ordered || prte_abnormal_term_ordered
           || prte_dvm_abort_ordered;
}

/* A process of mpirun's own node counts as one that has ended. Not by way of its states: PRRTE
 * would have its PMIx server forget the rank while others of the node continue, and in one of six
 * jobs that blocked the server (openpmix of Open MPI 5.0.7: it waits for a lock for ever). */
static inline void correlated_has_ended(prte_job_t *job, prte_proc_t *proc)
{
    PRTE_FLAG_UNSET(proc, PRTE_PROC_FLAG_ALIVE);
    proc->state = PRTE_PROC_STATE_TERMINATED;
    job->num_terminated++;
    if (job->num_terminated == job->num_procs) {
        PRTE_ACTIVATE_JOB_STATE(job, PRTE_JOB_STATE_TERMINATED);
    }
}

static inline prte_job_t *correlated_next_job(void **at)
{
    uintptr_t next = (uintptr_t) *at;
    while (next < (uintptr_t) prte_job_data->size) {
        prte_job_t *job = pmix_pointer_array_get_item(prte_job_data, (int) next++);
        if (NULL != job) {
            *at = (void *) next;
            return job;
        }
    }
    return NULL;
}

#endif

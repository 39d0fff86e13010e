/*
 * What the shared files of component correlated need of ORTE, where PRRTE differs
 * (prrte_correlated.h).
 */
#ifndef ORTE_CORRELATED_H
#define ORTE_CORRELATED_H

#include "orte_config.h"
#include "orte/constants.h"
#include "opal/class/opal_bitmap.h"
#include "opal/class/opal_hash_table.h"
#include "opal/mca/base/mca_base_var.h"
#include "opal/mca/event/event.h"
#include "opal/util/argv.h"
#include "opal/util/opal_environ.h"
#include "opal/util/os_path.h"
#include "orte/mca/errmgr/errmgr.h"
#include "orte/mca/oob/base/base.h"
#include "orte/mca/plm/plm.h"
#include "orte/mca/rmaps/rmaps_types.h"
#include "orte/mca/rml/base/base.h"
#include "orte/mca/rml/rml.h"
#include "orte/mca/routed/routed.h"
#include "orte/mca/state/state.h"
#include "orte/runtime/orte_globals.h"
#include "orte/runtime/runtime.h"
#include "orte/util/name_fns.h"
#include "orte/util/proc_info.h"
#include "orte/util/show_help.h"
#include "orte/util/threads.h"

/* Plain jobs, without a directory for checkpoints, are protected. */
#define CORRELATED_PROTECTS_BY_DEFAULT 1

/* Of a receive that was posted. */
#define CORRELATED_CALLBACK cbfunc.buffer
#define CORRELATED_TAKES_BUFFER(posted) ((posted)->buffer_data)

#define CORRELATED_SESSION_DIR orte_process_info.jobfam_session_dir

/* Is this the job that the daemons are? */
static inline bool correlated_are_daemons(const orte_job_t *job)
{
    return job->jobid == ORTE_PROC_MY_NAME->jobid;
}

static inline orte_job_t *correlated_daemons(void)
{
    return orte_get_job_data_object(ORTE_PROC_MY_NAME->jobid);
}

static inline int correlated_rank(const orte_process_name_t *name)
{
    return (int) name->vpid;
}

static inline bool correlated_is_other_daemon(const orte_process_name_t *name)
{
    return ORTE_PROC_MY_NAME->jobid == name->jobid && ORTE_PROC_MY_NAME->vpid != name->vpid;
}

/* Is this a process of the job? */
static inline bool correlated_is_of(const orte_process_name_t *name, const orte_job_t *job)
{
    return job->jobid == name->jobid;
}

/* Messages to all do not go by way of this daemon any more. */
static inline void correlated_route_lost(const orte_process_name_t *daemon)
{
    orte_process_name_t gone = *daemon;
    orte_routed.route_lost(orte_rml.get_routed(orte_mgmt_conduit), &gone);
}

static inline bool correlated_is_ending(void)
{
    return orte_finalizing || orte_orteds_term_ordered || orte_abnormal_term_ordered
           || orte_job_term_ordered;
}

/* Ranks of a protected job open no BTL that nobody uses. */
void mca_errmgr_correlated_btls_register(void);
void mca_errmgr_correlated_choose_btls(orte_job_t *job);

/* Where Open MPI's own component for Slurm has the user's arguments for srun; NULL: no Slurm. */
static inline char **correlated_srun_arguments(void)
{
    char **given = NULL;
    int index = mca_base_var_find("orte", "plm", "slurm", "args");
    bool is_there = 0 <= index
                    && OPAL_SUCCESS == mca_base_var_get_value(index, &given, NULL, NULL);
    return is_there ? given : NULL;
}

/* A process of mpirun's own node counts as one that has ended. As one that is not of this node:
 * otherwise mpirun's PMIx server forgets the rank, and then did not answer ranks of the node in
 * MPI_Finalize (10 of 60 jobs). */
static inline void correlated_has_ended(orte_job_t *job, orte_proc_t *proc)
{
    (void) job;
    ORTE_FLAG_UNSET(proc, ORTE_PROC_FLAG_LOCAL);
    ORTE_ACTIVATE_PROC_STATE(&proc->name, ORTE_PROC_STATE_WAITPID_FIRED);
}

/* One job after the other, NULL at the end; `at` is NULL at the beginning. */
static inline orte_job_t *correlated_next_job(void **at)
{
    orte_job_t *job = NULL;
    uint32_t key;
    int rc;
    do {
        rc = NULL == *at ? opal_hash_table_get_first_key_uint32(orte_job_data, &key,
                                                                (void **) &job, at)
                         : opal_hash_table_get_next_key_uint32(orte_job_data, &key,
                                                               (void **) &job, *at, at);
        /* Jobs that have ended leave an empty entry. */
    } while (OPAL_SUCCESS == rc && NULL == job);
    return OPAL_SUCCESS == rc ? job : NULL;
}

#endif

/*
 * MCA variables of protection. They have the names of the component of framework vprotocol, since
 * users know only that one; here they are read by mpirun and orteds.
 */
#include "errmgr_correlated.h"

#include <stdio.h>
#include <string.h>

mca_errmgr_correlated_params_t mca_errmgr_correlated_params = { .keep = 2,
                                                                .compression = "none",
                                                                .recover = true,
                                                                .copies = 1,
                                                                .spares = 2 };

char *mca_errmgr_correlated_images(void)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    char *text = NULL;
    int length = asprintf(&text, "%s %d", NULL == p->compression ? "" : p->compression,
                          p->incremental);
    return 0 > length ? NULL : text;
}

static bool is_given(const char *text)
{
    return NULL != text && '\0' != text[0];
}

bool mca_errmgr_correlated_keeps_local(void)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    bool wanted = CORRELATED_PROTECTS_BY_DEFAULT || is_given(p->local);
    return p->recover && wanted && !is_given(p->dir) && !is_given(p->restore);
}

bool mca_errmgr_correlated_may_recover(void)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    return p->recover && (is_given(p->dir) || mca_errmgr_correlated_keeps_local());
}

bool mca_errmgr_correlated_wanted(void)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    if (NULL == p->vprotocol || 0 != strcmp("correlated", p->vprotocol)) {
        return false;
    }
    /* Not by default as long as a job gains nothing from it. */
    bool interval = is_given(p->interval) && 0 != strcmp("0", p->interval);
    return p->guard || interval || 0 < p->set_interval || is_given(p->dir) || is_given(p->restore)
           || mca_errmgr_correlated_keeps_local();
}

static void variable(const char *name, mca_base_var_type_t type, mca_base_var_info_lvl_t level,
                     void *where, const char *help)
{
    (void) mca_base_var_register("ompi", "vprotocol", "correlated", name, help, type, NULL, 0, 0,
                                 level, MCA_BASE_VAR_SCOPE_READONLY, where);
}

void mca_errmgr_correlated_register_params(void)
{
    mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
#ifndef CORRELATED_VPROTOCOL /* there it is the framework's */
    (void) mca_base_var_register("ompi", "vprotocol", NULL, NULL, "", MCA_BASE_VAR_TYPE_STRING,
                                 NULL, 0, 0, OPAL_INFO_LVL_9, MCA_BASE_VAR_SCOPE_READONLY,
                                 &p->vprotocol);
#endif
    variable("dir", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_1, &p->dir,
             "Directory for checkpoints (lines), the same on all nodes. They outlive the job, "
             "which can be restarted from them.");
    variable("interval", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_1, &p->interval,
             "Seconds between lines of the whole job, from which it can be restarted. auto: what "
             "loses least time, from vprotocol_correlated_mtbf and from what lines cost. 0: only "
             "when asked for. Empty: 300 if vprotocol_correlated_recover is set, otherwise 0.");
    variable("mtbf", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_3, &p->mtbf,
             "Mean time between failures of one correlated set (a node) in seconds, for "
             "vprotocol_correlated_interval auto.");
    variable("set_interval", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_3, &p->set_interval,
             "Seconds between lines of each correlated set. 0: only when asked for.");
    variable("keep", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->keep,
             "Complete lines that are kept.");
    variable("compression", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p->compression,
             "How checkpoints are compressed: none, lz4 (fast) or zstd (smaller). Memory that "
             "does not become an eighth smaller is stored as it is.");
    variable("incremental", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->incremental,
             "One checkpoint of a process in so many is a full one; the others store only the "
             "pages that have changed, and need the older ones beside them (hard links). 0: all "
             "are full.");
    variable("signal", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p->signal,
             "Signals that mean a line of the whole job when mpirun gets them: USR1, USR2, XCPU, "
             "PWR, URG, WINCH, RTMIN+N, separated by commas; with :exit behind it the job ends at "
             "that line. They are not passed on to the programs. Empty: none.");
    variable("guard", MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_5, &p->guard,
             "Switches protection on without a directory for lines.");
    variable("recover", MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_3, &p->recover,
             "The job survives the death of programs and the loss of nodes: their ranks go on "
             "from their last line, on other nodes if need be. 0: the job ends, as with stock "
             "Open MPI.");
    variable("local", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p->local,
             "Folder of each node (not a shared one) in which it keeps the checkpoints of its "
             "processes, and copies of those of other nodes, as long as the job runs and "
             "vprotocol_correlated_dir is not given; below /dev/shm for nodes without a disk. "
             "Empty: where Open MPI keeps temporary files.");
    variable("copies", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->copies,
             "Without vprotocol_correlated_dir: on so many other nodes each checkpoint is kept, "
             "too; so many nodes may be lost at a time. 0: only the death of programs is "
             "survived.");
    variable("spares", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->spares,
             "So many nodes of the allocation on which no rank runs wait for the ranks of nodes "
             "that are lost, as many ranks as a node has at most; without any, those go to nodes "
             "where others run. 0: nodes without ranks are left alone.");
    variable("command", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_5, &p->command,
             "Path of the rustbtl program on all nodes. Empty: beside mca_errmgr_correlated.so.");
    variable("restore", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_9, &p->restore,
             "Folder of a line: its images are restored in place of starting programs (set by "
             "`rustbtl restart`).");
}

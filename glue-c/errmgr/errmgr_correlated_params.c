/*
 * MCA variables of protection. They have the names of the component of framework vprotocol, since
 * users know only that one; here they are read by mpirun and orteds.
 */
#include "errmgr_correlated.h"

#include <stdio.h>
#include <string.h>

mca_errmgr_correlated_params_t mca_errmgr_correlated_params = { .checkpoints_kept = 2,
                                                                .compression = "none",
                                                                .recover = true,
                                                                .notices = true,
                                                                .overhead_max = 3,
                                                                .secret = "auto",
                                                                .failure_timeout =
                                                                    CORRELATED_FAILURE_TIMEOUT,
                                                                .launch_timeout = 60,
                                                                .image_replicas = 1,
                                                                .spare_nodes = 2 };

char *mca_errmgr_correlated_image_settings(void)
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
    bool wanted = CORRELATED_PROTECTS_BY_DEFAULT || is_given(p->local_dir);
    return p->recover && wanted && !is_given(p->checkpoint_dir) && !is_given(p->restore);
}

bool mca_errmgr_correlated_may_recover(void)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    return p->recover && (is_given(p->checkpoint_dir) || mca_errmgr_correlated_keeps_local());
}

static bool is_selected(void)
{
    const char *vprotocol = mca_errmgr_correlated_params.vprotocol;
    return NULL != vprotocol && 0 == strcmp("correlated", vprotocol);
}

/* Framework pml's selection list leaves out the PML "v", of which "correlated" is a part. */
static bool selects_another_pml(void)
{
    const char *rest = mca_errmgr_correlated_params.pml;
    if (!is_given(rest)) {
        return false;
    }
    const bool without = '^' == rest[0];
    rest += without ? 1 : 0;
    bool named = false;
    while ('\0' != rest[0]) {
        size_t length = strcspn(rest, ",");
        named = named || (1 == length && 'v' == rest[0]);
        rest += length + (',' == rest[length] ? 1 : 0);
    }
    return named == without;
}

bool mca_errmgr_correlated_other_pml(void)
{
    return is_selected() && mca_errmgr_correlated_params.recover && selects_another_pml();
}

bool mca_errmgr_correlated_wanted(void)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    if (!is_selected() || selects_another_pml()) {
        return false;
    }
    /* Not by default as long as a job gains nothing from it. */
    bool interval = is_given(p->checkpoint_interval) && 0 != strcmp("0", p->checkpoint_interval);
    return p->protect_without_dir || interval || 0 < p->set_checkpoint_interval
           || is_given(p->checkpoint_dir) || is_given(p->restore)
           || mca_errmgr_correlated_keeps_local();
}

static int variable(const char *name, mca_base_var_type_t type, mca_base_var_info_lvl_t level,
                    void *where, const char *help)
{
    return mca_base_var_register("ompi", "vprotocol", "correlated", name, help, type, NULL, 0, 0,
                                 level, MCA_BASE_VAR_SCOPE_READONLY, where);
}

/* One that had another name in 0.1.0, which is still valid. ompi_info shows it as deprecated. */
static void renamed(const char *old, const char *name, mca_base_var_type_t type,
                    mca_base_var_info_lvl_t level, void *where, const char *help)
{
    correlated_old_value(old, type, where);
    int index = variable(name, type, level, where, help);
    if (0 <= index) {
        (void) mca_base_var_register_synonym(index, "ompi", "vprotocol", "correlated", old,
                                             MCA_BASE_VAR_SYN_FLAG_DEPRECATED);
    }
}

void mca_errmgr_correlated_register_params(void)
{
    mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
#ifndef CORRELATED_VPROTOCOL /* there it is the framework's */
    (void) mca_base_var_register("ompi", "vprotocol", NULL, NULL, "", MCA_BASE_VAR_TYPE_STRING,
                                 NULL, 0, 0, OPAL_INFO_LVL_9, MCA_BASE_VAR_SCOPE_READONLY,
                                 &p->vprotocol);
    (void) mca_base_var_register("ompi", "pml", NULL, NULL, "", MCA_BASE_VAR_TYPE_STRING, NULL, 0,
                                 0, OPAL_INFO_LVL_9, MCA_BASE_VAR_SCOPE_READONLY, &p->pml);
#endif
    renamed("dir", "checkpoint_dir", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_1, &p->checkpoint_dir,
             "Directory for checkpoints, the same on all nodes. They outlive the job, "
             "which can be restarted from them.");
    renamed("interval", "checkpoint_interval", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_1,
            &p->checkpoint_interval,
             "Seconds between global checkpoints, from which the whole job can be restarted. auto: "
             "what loses least time, from vprotocol_correlated_mtbf and from what checkpoints "
             "cost. 0: only on request. Empty: as often as a third of "
             "vprotocol_correlated_overhead_max pays for, at most every 3 s, if "
             "vprotocol_correlated_recover is set (300 s without a limit); otherwise 0.");
    (void) variable("mtbf", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_3, &p->mtbf,
             "Mean time between failures of one correlated set (a node) in seconds, for "
             "vprotocol_correlated_checkpoint_interval auto.");
#ifndef CORRELATED_VPROTOCOL /* there it is registered for the ranks, with its help */
    (void) variable("overhead_max", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_2, &p->overhead_max,
             "What protection may cost while nothing fails, in percent of the time. Checkpoints "
             "are taken as often as a third of it pays for (if "
             "vprotocol_correlated_checkpoint_interval does not say when); where the payload log "
             "costs more than the rest, logging towards the set that causes it is suspended until "
             "its next checkpoint, and until then a failure of that set rolls back all ranks. 0: "
             "no limit.");
#endif
    renamed("set_interval", "set_checkpoint_interval", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_3,
            &p->set_checkpoint_interval,
             "Seconds between checkpoints of each correlated set. 0: only on request.");
    renamed("keep", "checkpoints_kept", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3,
            &p->checkpoints_kept,
             "Complete checkpoints that are kept.");
    (void) variable("compression", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p->compression,
             "How checkpoints are compressed: none, lz4 (fast) or zstd (smaller). Memory that "
             "does not become an eighth smaller is stored as it is.");
    (void) variable("incremental", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->incremental,
             "One checkpoint of a process in so many is a full one; the others store only the "
             "pages that have changed, and need the older ones beside them (hard links). 0: all "
             "are full.");
    (void) variable("shadow_verbs", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_5, &p->shadow_verbs,
             "For programs that call libibverbs themselves, beside MPI (Open MPI 4.1): 1 loads "
             "librustbtl_verbs.so, which is beside rustbtl, in front of it; a path loads that "
             "file. Checkpoints of all ranks drain their queue pairs, and a restart makes them "
             "again; a failure rolls all ranks back. 0: such programs have no checkpoints.");
    renamed("signal", "checkpoint_signal", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3,
            &p->checkpoint_signal,
             "Signals to mpirun that request a global checkpoint: USR1, USR2, XCPU, "
             "PWR, URG, WINCH, RTMIN+N, separated by commas; with :exit behind it the job ends at "
             "that checkpoint. They are not passed on to the programs. Empty: none.");
    renamed("guard", "protect_without_dir", MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_5,
            &p->protect_without_dir,
             "Switches protection on without a directory for checkpoints.");
    (void) variable("recover", MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_3, &p->recover,
             "The job survives the failure of programs and nodes: their ranks are rolled back to "
             "their last checkpoint, on other nodes if need be. 0: the job ends, as with stock "
             "Open MPI.");
    (void) variable("failure_timeout", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_3,
             &p->failure_timeout,
             "Seconds, 2 to 600. A node from which nothing has come for so long has failed, and "
             "its ranks are restarted elsewhere. If nothing comes from any other node, mpirun's "
             "own node is cut off: the job waits until it is not.");
    (void) variable("launch_timeout", MCA_BASE_VAR_TYPE_DOUBLE, OPAL_INFO_LVL_3,
             &p->launch_timeout,
             "Seconds, 5 or more. Under Slurm: if for so long no more of mpirun's daemons report "
             "that they have been started, one cannot be, and the job ends.");
    (void) variable("secret", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p->secret,
             "How the secret with which the processes of the job recognise each other gets to the "
             "other nodes. clear: in Open MPI's launch message, where who can read the network "
             "learns it. munge or munge:SOCKET: encrypted by munge. file:PATH: it depends on the "
             "key in this file, 32 bytes or more that only you can read, the same on all nodes. "
             "auto: munge in an allocation of Slurm, otherwise clear.");
    (void) variable("notices", MCA_BASE_VAR_TYPE_BOOL, OPAL_INFO_LVL_3, &p->notices,
             "A line on standard error after each recovery: which ranks failed, the checkpoint "
             "and the node on which they run again, and how long it took. 0: none.");
    renamed("local", "local_dir", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_3, &p->local_dir,
             "Folder of each node (not a shared one) in which it keeps the checkpoints of its "
             "processes, and replicas of those of other nodes, as long as the job runs and "
             "vprotocol_correlated_checkpoint_dir is not given; below /dev/shm for nodes without "
             "a disk. Empty: where Open MPI keeps temporary files.");
    renamed("copies", "image_replicas", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->image_replicas,
             "Without vprotocol_correlated_checkpoint_dir: on so many other nodes each checkpoint "
             "is kept, too; so many nodes may fail at a time. 0: only the failure of programs is "
             "survived.");
    renamed("spares", "spare_nodes", MCA_BASE_VAR_TYPE_INT, OPAL_INFO_LVL_3, &p->spare_nodes,
             "So many nodes of the allocation on which no rank runs wait for the ranks of nodes "
             "that fail, as many ranks as a node has at most; without any, those go to nodes "
             "where others run. 0: nodes without ranks are left alone.");
    (void) variable("command", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_5, &p->command,
             "Path of the rustbtl program on all nodes. Empty: beside mca_errmgr_correlated.so.");
    (void) variable("restore", MCA_BASE_VAR_TYPE_STRING, OPAL_INFO_LVL_9, &p->restore,
             "Folder of a checkpoint: its images are restored in place of starting programs (set "
             "by `rustbtl restart`).");
}

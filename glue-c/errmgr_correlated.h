/*
 * Shared by the C files of mca_errmgr_correlated.so, which is loaded by mpirun and by orteds.
 */
#ifndef ERRMGR_CORRELATED_H
#define ERRMGR_CORRELATED_H

#include "orte_config.h"
#include "orte/constants.h"
#include "orte/mca/errmgr/errmgr.h"
#include "orte/runtime/orte_globals.h"

#define CORRELATED_ERRMGR_HELP "help-mca-errmgr-correlated.txt"

/* MCA variables of the job; strings may be NULL or empty. */
typedef struct {
    char *vprotocol; /* the selection list of framework vprotocol */
    char *dir;       /* vprotocol_correlated_dir */
    char *restore;   /* vprotocol_correlated_restore */
    char *command;   /* vprotocol_correlated_command: path of the rustbtl program */
    char *interval; /* vprotocol_correlated_interval: seconds, "auto" or 0 */
    double set_interval;
    double mtbf; /* vprotocol_correlated_mtbf, seconds */
    int keep;
    bool guard;
    char *signal; /* vprotocol_correlated_signal */
} mca_errmgr_correlated_params_t;

extern mca_errmgr_correlated_params_t mca_errmgr_correlated_params;

/* Does the user want protection? THE place where that is decided. */
bool mca_errmgr_correlated_wanted(void);

void mca_errmgr_correlated_register_params(void);
/* Path of the rustbtl program: the parameter, or beside this DSO. */
const char *mca_errmgr_correlated_program(void);

/* mpirun: hook into the launch of jobs; end what was started. */
int mca_errmgr_correlated_launch_open(void);
void mca_errmgr_correlated_launch_close(void);

/* The path, as it is from the root (to be freed); NULL if there is none. */
char *mca_errmgr_correlated_absolute(const char *path);

/* The coordinator of a job. 0, or a text that says why not (to be freed). */
char *mca_errmgr_correlated_coordinator_start(orte_job_t *job, char **port, char **name,
                                              char **secret);
/* Its requests, to be watched; -1 if there is no coordinator. */
int mca_errmgr_correlated_coordinator_fd(void);
/* The next thing it says ("end"), NULL when it has gone. */
char *mca_errmgr_correlated_coordinator_read(void);
/* Tell it: a key, a blank, a value. False: it has gone. */
bool mca_errmgr_correlated_coordinator_tell(const char *key, const char *value);
void mca_errmgr_correlated_coordinator_stop(void);

/* Which signals mean a line? NULL, or a text that says what makes no sense (to be freed). */
char *mca_errmgr_correlated_signal_check(void);
/* mpirun: from now on they do. */
void mca_errmgr_correlated_signal_open(void);
void mca_errmgr_correlated_signal_close(void);

#endif

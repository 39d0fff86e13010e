/*
 * Shared by the C files of the component correlated of framework errmgr, which mpirun and orteds
 * have: of Open MPI 4.1's ORTE, or of 5.0's PRRTE. Those of them that both use speak ORTE's words.
 */
#ifndef ERRMGR_CORRELATED_H
#define ERRMGR_CORRELATED_H

#if defined(CORRELATED_PRRTE)
#include "prrte_correlated.h"
#elif defined(CORRELATED_VPROTOCOL)
/* Only the list of parameters, in Open MPI's own processes: PRRTE's cannot tell ompi_info. */
#include "ompi_config.h"
#include "opal/mca/base/mca_base_var.h"
typedef struct orte_job_t orte_job_t;
typedef struct orte_proc_t orte_proc_t;
typedef struct orte_process_name_t orte_process_name_t;
#define CORRELATED_PROTECTS_BY_DEFAULT 0 /* nobody asks */
#else
#include "orte_correlated.h"
#endif

/* Values of variables under an old name: Open MPI's own synonyms do that, where it is Open MPI. */
#ifndef correlated_old_value
#define correlated_old_value(name, type, where) ((void) 0)
#endif

#define CORRELATED_ERRMGR_HELP "help-mca-errmgr-correlated.txt"

/* A daemon that says nothing for so long is lost: keepalive's first probe, the time between probes,
 * their number; and all of it for messages that are not acknowledged. It is the other node's kernel
 * that has to answer, which it does however busy its processes are. */
#define CORRELATED_SILENCE_FIRST "2"
#define CORRELATED_SILENCE_NEXT "1"
#define CORRELATED_SILENCE_PROBES "2"
#define CORRELATED_SILENCE_MS (2000 + 2 * 1000)

/* MCA variables of the job; strings may be NULL or empty. */
typedef struct {
    char *vprotocol; /* the selection list of framework vprotocol */
    char *dir;       /* vprotocol_correlated_checkpoint_dir */
    char *restore;   /* vprotocol_correlated_restore */
    char *command;   /* vprotocol_correlated_command: path of the rustbtl program */
    char *interval; /* vprotocol_correlated_checkpoint_interval: seconds, "auto" or 0 */
    double set_interval;
    double mtbf; /* vprotocol_correlated_mtbf, seconds */
    char *compression; /* vprotocol_correlated_compression: none, lz4, zstd */
    int incremental;   /* vprotocol_correlated_incremental: one image in so many is full */
    int keep;
    bool guard;
    bool recover; /* vprotocol_correlated_recover */
    char *local;  /* vprotocol_correlated_local_dir: where nodes keep images if there is no dir */
    int copies;   /* vprotocol_correlated_image_replicas: other nodes that have each of them, too */
    int spares;   /* vprotocol_correlated_spare_nodes: nodes that wait for failed ones */
    char *signal; /* vprotocol_correlated_checkpoint_signal */
} mca_errmgr_correlated_params_t;

extern mca_errmgr_correlated_params_t mca_errmgr_correlated_params;

/* Does the user want protection? THE place where that is decided. */
bool mca_errmgr_correlated_wanted(void);

void mca_errmgr_correlated_register_params(void);
/* How images are written, as the rustbtl program understands it (to be freed). */
char *mca_errmgr_correlated_images(void);
/* Path of the rustbtl program: the parameter, or beside this DSO. */
const char *mca_errmgr_correlated_program(void);

/* mpirun: hook into the launch of jobs; end what was started. */
int mca_errmgr_correlated_launch_open(void);
void mca_errmgr_correlated_launch_close(void);

/* The job that has a coordinator, NULL before there is one and after it has gone. */
orte_job_t *mca_errmgr_correlated_protected_job(void);

/* Where ORTE and PRRTE differ: a job is about to be launched, do we want to protect it? It has
 * guardians. It is to end, without an error. It is not started, and the user was told why. */
bool mca_errmgr_correlated_job_is_wanted(orte_job_t *job);
void mca_errmgr_correlated_job_is_guarded(orte_job_t *job);
void mca_errmgr_correlated_end_job(orte_job_t *job);
void mca_errmgr_correlated_refuse_job(orte_job_t *job);

/* Nodes without ranks are asked to take those of nodes that are lost: in mpirun. A daemon may be
 * asked, and is, with the program's path and variables for it. */
void mca_errmgr_correlated_ask_spares(orte_job_t *job);
void mca_errmgr_correlated_hear_spare(void);
void mca_errmgr_correlated_be_spare(char *const *words);
/* Where ORTE and PRRTE differ: words for a daemon; the last one is NULL. It takes so many. */
#define CORRELATED_WORDS_MAX 64
void correlated_tell_daemon(orte_proc_t *daemon, char **words);

/* mpirun: go on when a node is lost, if the job can. */
int mca_errmgr_correlated_loss_open(void);
void mca_errmgr_correlated_loss_close(void);
/* Daemons are connected: have their silence noticed, if there is an answer to it; in any case. */
void mca_errmgr_correlated_loss_watch(void);
void mca_errmgr_correlated_notice_silence(void);
/* Was it declared lost? */
bool mca_errmgr_correlated_is_lost(const orte_process_name_t *daemon);
/* Does the user want that, and is there a place for lines? */
bool mca_errmgr_correlated_may_recover(void);
/* Do the nodes keep images themselves, since there is no directory that all share? */
bool mca_errmgr_correlated_keeps_local(void);
/* What the coordinator says of the nodes that were lost. */
void mca_errmgr_correlated_loss_failed(const char *reason);
void mca_errmgr_correlated_loss_recovered(void);
/* What it says of a process that has ended by a signal: the job goes on without it, or it is as
 * always. */
void mca_errmgr_correlated_loss_decided(const char *rank, bool goes_on);
/* It has not said anything yet. */
bool mca_errmgr_correlated_loss_is_open(void);
/* Tell another coordinator what the one before was told. */
void mca_errmgr_correlated_loss_tell_again(void);
/* The coordinator did not take what it was told: it has ended. True: there is another one now. */
bool mca_errmgr_correlated_coordinator_revive(void);

#if !defined(CORRELATED_VPROTOCOL)
/* What has come of the output of a job's ranks is counted from now on. The coordinator is told of
 * one whose node is lost: "came RANK OUT ERR". */
void mca_errmgr_correlated_output_watch(orte_job_t *job);
void mca_errmgr_correlated_output_tell(const orte_proc_t *proc);
void mca_errmgr_correlated_output_close(void);
/* Will what the coordinator brings of ranks without a daemon be printed? "RANK STREAM POSITION HEX"
 * is; the answer is "printed RANK STREAM POSITION". Another coordinator is told where each of them
 * is: "reached RANK OUT ERR". */
bool mca_errmgr_correlated_output_prints(void);
void mca_errmgr_correlated_output_print(const char *what);
void mca_errmgr_correlated_output_tell_again(void);

/* Where ORTE and PRRTE differ. A piece of output: its stream (1 standard output, 2 standard error,
 * 0 something else), whose it is, and the bytes, as many as there is room for; as one of a rank
 * (NULL: no memory is left), to be released. */
#define CORRELATED_PIECE_BYTES_MAX 4096
int correlated_output_unpack(opal_buffer_t *message, orte_process_name_t *from,
                             unsigned char *data, int32_t *bytes);
opal_buffer_t *correlated_output_pack(const orte_job_t *job, int rank, int stream,
                                      unsigned char *data, int32_t bytes);
void correlated_output_release(opal_buffer_t *message);
/* Is all that a rank prints sent to mpirun, and each stream as what it is? Does it go to files? */
bool correlated_output_is_whole(orte_job_t *job);
bool correlated_output_has_files(orte_job_t *job);
#endif

/* The path, as it is from the root (to be freed); NULL if there is none. */
char *mca_errmgr_correlated_absolute(const char *path);

/* The coordinator of a job. 0, or a text that says why not (to be freed). */
char *mca_errmgr_correlated_coordinator_start(orte_job_t *job, char **port, char **name,
                                              char **secret);
/* The same after it has ended: another one goes on in its place, under the same name, port and
 * secret. */
char *mca_errmgr_correlated_coordinator_again(orte_job_t *job);
/* Its requests, to be watched; -1 if there is no coordinator. */
int mca_errmgr_correlated_coordinator_fd(void);
/* The next thing it says ("end", "fail TEXT", "recovered", "let RANK", "stock RANK", "print …"),
 * NULL when it has gone. */
char *mca_errmgr_correlated_coordinator_read(void);
/* Has it said one more thing that was read already? Then nothing is to be seen on the pipe. */
bool mca_errmgr_correlated_coordinator_pending(void);
/* Tell it: a key, a blank, a value. False: it has gone. */
bool mca_errmgr_correlated_coordinator_tell(const char *key, const char *value);
void mca_errmgr_correlated_coordinator_stop(void);

/* Which signals mean a line? NULL, or a text that says what makes no sense (to be freed). */
char *mca_errmgr_correlated_signal_check(void);
/* mpirun: from now on they do. */
void mca_errmgr_correlated_signal_open(void);
void mca_errmgr_correlated_signal_close(void);

#endif

/*
 * Shared by the C files of the component correlated of framework errmgr, which mpirun and orteds
 * have: of Open MPI 4.1's ORTE, or of 5.0's PRRTE. Files that both use are written with ORTE's
 * names.
 *
 * A file calls only functions of the files before it in this list, and of the component of the
 * runtime: params, state, coordinator, signal, output, silence, daemons, spares, loss, launch.
 */
#ifndef ERRMGR_CORRELATED_H
#define ERRMGR_CORRELATED_H

#if defined(CORRELATED_PRRTE)
#include "prrte_correlated.h"
#elif defined(CORRELATED_VPROTOCOL)
/* Only the list of parameters, in Open MPI's own processes: PRRTE's are not shown by ompi_info. */
#include "ompi_config.h"
#include "opal/mca/base/mca_base_var.h"
typedef struct orte_job_t orte_job_t;
typedef struct orte_proc_t orte_proc_t;
typedef struct orte_process_name_t orte_process_name_t;
#define CORRELATED_PROTECTS_BY_DEFAULT 0 /* of no use there */
#else
#include "orte_correlated.h"
#endif

/* Values of variables under an old name. In Open MPI its own synonyms do that. */
#ifndef correlated_old_value
#define correlated_old_value(name, type, where) ((void) 0)
#endif

#define CORRELATED_ERRMGR_HELP "help-mca-errmgr-correlated.txt"

/* Connections between daemons are probed several times in the time after which a silent node counts
 * as failed (vprotocol_correlated_failure_timeout). The kernel of the other node answers, however
 * busy its processes are. The connection itself lasts as long as Open MPI's own would: whether a
 * silent node has failed is the coordinator's decision (docs/adr/0030). */
#define CORRELATED_FAILURE_TIMEOUT 4.0 /* seconds */
#define CORRELATED_PROBES_IN_IT 4
#define CORRELATED_PROBES_MAX 127
#define CORRELATED_USER_TIMEOUT_MS ((300 + 9 * 20) * 1000)

/* MCA variables of the job, vprotocol_correlated_NAME; strings may be NULL or empty. */
typedef struct {
    char *vprotocol; /* the selection list of framework vprotocol */
    char *pml;       /* that of framework pml */
    char *checkpoint_dir;
    char *restore;             /* a checkpoint from which the job restarts */
    char *command;             /* path of the rustbtl program */
    char *checkpoint_interval; /* seconds, "auto" or 0 */
    double set_checkpoint_interval;
    double mtbf;         /* seconds */
    double overhead_max; /* percent of the time that protection may cost */
    double failure_timeout; /* seconds of silence after which a node counts as failed */
    double launch_timeout; /* seconds without a report of a daemon that is to be started */
    char *compression; /* none, lz4, zstd */
    int incremental;   /* one image in so many is full */
    char *shadow_verbs; /* 0, 1 or the library in front of libibverbs */
    int checkpoints_kept;
    bool protect_without_dir;
    bool recover;
    bool notices; /* a line to the user after each recovery */
    char *secret; /* how the job's secret gets to the other nodes */
    char *local_dir;    /* where nodes keep images if there is no checkpoint_dir */
    int image_replicas; /* other nodes that have each of them, too */
    int spare_nodes;    /* nodes that wait for failed ones */
    char *checkpoint_signal;
} mca_errmgr_correlated_params_t;

extern mca_errmgr_correlated_params_t mca_errmgr_correlated_params;

/* Does the user want protection? It is decided here and nowhere else. */
bool mca_errmgr_correlated_wanted(void);
/* Would there be protection, if the user had not asked for another PML? */
bool mca_errmgr_correlated_other_pml(void);

void mca_errmgr_correlated_register_params(void);
/* How images are written, as the rustbtl program reads it (to be freed). */
char *mca_errmgr_correlated_image_settings(void);
/* Path of the rustbtl program: the parameter, or beside this DSO. */
const char *mca_errmgr_correlated_program(void);

/* mpirun: hook into the launch of jobs; end what was started. */
int mca_errmgr_correlated_launch_open(void);
void mca_errmgr_correlated_launch_close(void);

/* The state of mpirun that several files read. */

/* The job that has a coordinator, NULL before there is one and after protection was disabled. */
orte_job_t *mca_errmgr_correlated_protected_job(void);
void mca_errmgr_correlated_set_protected_job(orte_job_t *job);
/* Was this daemon declared lost? Any daemon? */
bool mca_errmgr_correlated_is_lost(const orte_process_name_t *daemon);
bool mca_errmgr_correlated_has_lost(void);
/* It is now; there are so many daemons. */
void mca_errmgr_correlated_set_lost(const orte_process_name_t *daemon, int daemons);
void mca_errmgr_correlated_state_close(void);

/* Where ORTE and PRRTE differ: a job is about to be launched, is it to be protected? Does a value
 * that was given for it make no sense (a text that the caller frees, or NULL)? Its programs are
 * started by guardians. It ends, without an error. It is not started, and a help text has said
 * why. */
bool mca_errmgr_correlated_job_is_wanted(orte_job_t *job);
char *mca_errmgr_correlated_values_check(void);
void mca_errmgr_correlated_job_is_guarded(orte_job_t *job);
/* The same as far as can be known before there is a job: daemons are started first. */
bool mca_errmgr_correlated_will_be_wanted(void);
void mca_errmgr_correlated_end_job(orte_job_t *job);
void mca_errmgr_correlated_refuse_job(orte_job_t *job);

/* mpirun under Slurm: daemons continue without one that is lost; one that cannot be started is
 * named. */
int mca_errmgr_correlated_daemons_open(void);
void mca_errmgr_correlated_daemons_close(void);

/* mpirun: request that daemons of nodes without ranks start `rustbtl spare`, which takes ranks of
 * lost nodes. A daemon: receive such a request; fulfil it, with the program's path and variables
 * for it. */
void mca_errmgr_correlated_request_spares(orte_job_t *job);
void mca_errmgr_correlated_receive_spare(void);
void mca_errmgr_correlated_start_spare(char *const *arguments);
/* Where ORTE and PRRTE differ: arguments for a daemon; the last one is NULL. It reads so many. */
#define CORRELATED_ARGUMENTS_MAX 64
void correlated_send_to_daemon(orte_proc_t *daemon, char **arguments);

/* mpirun: the job continues when a node is lost, if it can be recovered. */
int mca_errmgr_correlated_loss_open(void);
void mca_errmgr_correlated_loss_close(void);
/* Daemons are connected. Detect soon that one is unreachable, if the job can be recovered then.
 * `failover`: starts another coordinator if there is none any more; false: there will be none. */
void mca_errmgr_correlated_loss_watch(bool (*failover)(void));
/* Set keepalive for all connections. */
void mca_errmgr_correlated_set_keepalive(void);
/* Seconds between two probes. */
int mca_errmgr_correlated_probe_interval(void);
/* The coordinator wants to know from which connections to other hosts nothing has come for long:
 * "quiet COUNT SILENT ID:MS …", how many there are, how many are silent, and these, with ! behind
 * those for which this host's own interface has no carrier. It has decided that the node behind one
 * has failed: end it. */
void mca_errmgr_correlated_silence_measure(void);
void mca_errmgr_correlated_silence_cut(const char *id);
/* A daemon: if its own interface has no carrier, this node is cut off, and others take its ranks.
 * End connections that have been silent for the timeout. */
void mca_errmgr_correlated_silence_end_without_carrier(void);
/* Does the user want that, and is there storage for checkpoints? */
bool mca_errmgr_correlated_may_recover(void);
/* Do the nodes keep images themselves, since there is no directory that all share? */
bool mca_errmgr_correlated_keeps_local(void);
/* What the coordinator reports of the nodes that were lost. */
void mca_errmgr_correlated_loss_failed(const char *reason);
void mca_errmgr_correlated_loss_recovered(void);
/* What it decides about a process that was ended by a signal: the job continues without it, or does
 * what stock Open MPI does. */
void mca_errmgr_correlated_loss_decided(const char *rank, bool tolerate);
/* A node is lost, and the coordinator has not reported yet how that ends. */
bool mca_errmgr_correlated_loss_is_open(void);
/* Send another coordinator what the failed one was sent. */
void mca_errmgr_correlated_loss_resend(void);

#if !defined(CORRELATED_VPROTOCOL)
/* What has come of the output of a job's ranks is counted from now on. It is reported to the
 * coordinator for a rank whose node is lost: "came RANK OUT ERR". */
void mca_errmgr_correlated_output_watch(orte_job_t *job);
void mca_errmgr_correlated_output_report(const orte_proc_t *proc);
void mca_errmgr_correlated_output_close(void);
/* Will output of ranks without a daemon be printed, which the coordinator forwards? "RANK STREAM
 * OFFSET HEX" is; the answer is "printed RANK STREAM OFFSET". Another coordinator is sent the
 * offsets: "reached RANK OUT ERR". */
bool mca_errmgr_correlated_output_prints(void);
void mca_errmgr_correlated_output_print(const char *what);
void mca_errmgr_correlated_output_resend(void);

/* Where ORTE and PRRTE differ. A piece of output: its stream (1 standard output, 2 standard error,
 * 0 something else), the name of the process, and the bytes, as many as there is room for. The
 * reverse: a piece as one of a rank, to be released (NULL: no memory is left). */
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

/* The coordinator of a job; `prints`: mpirun prints output that it forwards. NULL, or a text that
 * says why not (to be freed). */
char *mca_errmgr_correlated_coordinator_start(orte_job_t *job, bool prints, char **port,
                                              char **name, char **secret);
/* The same after it has failed: another one takes over, under the same name, port and secret. */
char *mca_errmgr_correlated_coordinator_restart(orte_job_t *job, bool prints);
/* Its requests, to be watched; -1 if there is no coordinator. */
int mca_errmgr_correlated_coordinator_fd(void);
/* Its next line (errmgr_correlated_pipe.h), NULL when it has ended. */
char *mca_errmgr_correlated_coordinator_read(void);
/* Has another line of it been read already? Then poll does not report the pipe. */
bool mca_errmgr_correlated_coordinator_pending(void);
/* Send it a key, a blank, a value. False: it has ended. */
bool mca_errmgr_correlated_coordinator_send(const char *key, const char *value);
/* From time to time: one that somebody has suspended, and does not have go on, is ended. */
void mca_errmgr_correlated_coordinator_look(void);
void mca_errmgr_correlated_coordinator_stop(void);

/* Which signals request a checkpoint? NULL, or a text that says what is invalid (to be freed). */
char *mca_errmgr_correlated_signal_check(void);
/* mpirun: handle them from now on. */
void mca_errmgr_correlated_signal_open(void);
void mca_errmgr_correlated_signal_close(void);

#endif

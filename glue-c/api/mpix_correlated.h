/*
 * For programs that want to request checkpoints themselves. No program has to.
 *
 * Link with -lmpix_correlated. Without the vprotocol component "correlated", or without protection
 * (--mca vprotocol_correlated_recover 0), the functions do nothing and return that: the same binary
 * runs everywhere.
 */
#ifndef MPIX_CORRELATED_H
#define MPIX_CORRELATED_H

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of MPIX_Correlated_checkpoint. */
#define MPIX_CORRELATED_SET 0   /* a checkpoint of the caller's correlated set */
#define MPIX_CORRELATED_ALL 1   /* a global checkpoint: the whole job can be restarted from it */
#define MPIX_CORRELATED_WAIT 2  /* return when the checkpoint is complete and stored */
#define MPIX_CORRELATED_EXIT 4  /* end the job when the checkpoint is complete */

/* Values that are returned. */
#define MPIX_CORRELATED_OK 0
/* Requested, but there is no checkpoint: a message has said why. */
#define MPIX_CORRELATED_NO_CHECKPOINT 1
#define MPIX_CORRELATED_NO_LINE MPIX_CORRELATED_NO_CHECKPOINT /* its name in 0.1.0 */
#define MPIX_CORRELATED_NO_COMPONENT 2

/*
 * Request a checkpoint. Any one process may call it, at any time between MPI_Init and MPI_Finalize;
 * the others need not. If several do, a checkpoint that is being taken serves all of them.
 * `checkpoint`: NULL, or the number of the checkpoint, 0 if there is none.
 * With MPIX_CORRELATED_WAIT it also returns, with the same number, in the process that is restored
 * from that checkpoint.
 */
int MPIX_Correlated_checkpoint(int flags, unsigned long long *checkpoint);

/* How often this process was restored from an image; 0 in one that mpirun has started. */
int MPIX_Correlated_restarts(void);

#ifdef __cplusplus
}
#endif
#endif

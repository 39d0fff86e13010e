/*
 * For programs that want to say themselves when a checkpoint is taken. No program has to.
 *
 * Link with -lmpix_correlated. Without the vprotocol component "correlated", or without protection
 * (--mca vprotocol_correlated_checkpoint_dir), the functions say so and do nothing: the same binary
 * runs everywhere.
 */
#ifndef MPIX_CORRELATED_H
#define MPIX_CORRELATED_H

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of MPIX_Correlated_checkpoint. */
#define MPIX_CORRELATED_SET 0   /* a line of the caller's correlated set */
#define MPIX_CORRELATED_ALL 1   /* a global line: the whole job can be restarted from it */
#define MPIX_CORRELATED_WAIT 2  /* come back when the line is complete and stored */
#define MPIX_CORRELATED_EXIT 4  /* end the job when the line is complete */

/* Values that are returned. */
#define MPIX_CORRELATED_OK 0
#define MPIX_CORRELATED_NO_LINE 1     /* asked, but there is no line: a message has said why */
#define MPIX_CORRELATED_NO_COMPONENT 2

/*
 * Ask for a checkpoint. Any one process may call it, at any time between MPI_Init and MPI_Finalize;
 * the others need not. If several do, a line that is being taken answers all of them.
 * `line`: NULL, or the number of the line, 0 if there is none.
 * With MPIX_CORRELATED_WAIT it also comes back, with the same number, in the process that is
 * restored from that line.
 */
int MPIX_Correlated_checkpoint(int flags, unsigned long long *line);

/* How often this process was restored from an image; 0 in one that mpirun has started. */
int MPIX_Correlated_restarts(void);

#ifdef __cplusplus
}
#endif
#endif

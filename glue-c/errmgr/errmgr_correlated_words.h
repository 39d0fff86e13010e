/* The words of the pipe between mpirun's component and the coordinator: the first of each line.
 * runtime/src/coordinator/job/tables/mpirun_orders.rs has the same; a test there compares them. */
#ifndef ERRMGR_CORRELATED_WORDS_H
#define ERRMGR_CORRELATED_WORDS_H

/* From the coordinator: it listens (port, job, secret), or why it cannot start. */
#define RUSTBTL_WORD_OK "ok"
#define RUSTBTL_WORD_ERROR "error"
/* End the job: without an error, or with this text as its error. */
#define RUSTBTL_WORD_END "end"
#define RUSTBTL_WORD_FAIL "fail"
/* The ranks of the lost node run again. */
#define RUSTBTL_WORD_RECOVERED "recovered"
/* A guardian has ended: go on without it, or do what stock Open MPI does. */
#define RUSTBTL_WORD_TOLERATE "let"
#define RUSTBTL_WORD_STOCK "stock"
/* Output of a rank that has no daemon: rank, stream, position, bytes in hexadecimal. */
#define RUSTBTL_WORD_PRINT "print"

/* To the coordinator: how much of a rank's output has come by way of its lost daemon. */
#define RUSTBTL_WORD_CAME "came"
/* A piece was printed; mpirun's output of a rank stands there. */
#define RUSTBTL_WORD_PRINTED "printed"
#define RUSTBTL_WORD_REACHED "reached"
/* The user's signal: "stay" or "exit". */
#define RUSTBTL_WORD_CHECKPOINT "checkpoint"
/* A node is lost. A guardian has ended as if by a signal. */
#define RUSTBTL_WORD_LOST "lost"
#define RUSTBTL_WORD_GUARDIAN "guardian"

#endif

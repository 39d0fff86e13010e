/* The pipe between mpirun's component and the coordinator: the key that each line begins with.
 * runtime/src/coordinator/job/tables/mpirun_orders.rs has the same; a test there compares them. */
#ifndef ERRMGR_CORRELATED_PIPE_H
#define ERRMGR_CORRELATED_PIPE_H

/* To the coordinator, before the job is launched: a key and a value. RUSTBTL_SETUP_GO is last. */
#define RUSTBTL_SETUP_DIR "dir"
#define RUSTBTL_SETUP_RESTORE "restore"
#define RUSTBTL_SETUP_LOG "log"
#define RUSTBTL_SETUP_INTERVAL "interval"
#define RUSTBTL_SETUP_MTBF "mtbf"
#define RUSTBTL_SETUP_SET_INTERVAL "set_interval"
/* In thousandths. */
#define RUSTBTL_SETUP_OVERHEAD "overhead"
#define RUSTBTL_SETUP_IMAGES "images"
#define RUSTBTL_SETUP_KEEP "keep"
#define RUSTBTL_SETUP_REPLICAS "copies"
#define RUSTBTL_SETUP_RECOVER "recover"
#define RUSTBTL_SETUP_NOTICES "notices"
/* In milliseconds. */
#define RUSTBTL_SETUP_FAILURE_TIMEOUT "failure_timeout"
#define RUSTBTL_SETUP_PRINTS "prints"
/* How the job's secret gets to the other nodes. */
#define RUSTBTL_SETUP_SECRET "secret"
/* In place of a coordinator that has failed: job, port, token of the secret. */
#define RUSTBTL_SETUP_FAILOVER "again"
#define RUSTBTL_SETUP_SIZE "size"
#define RUSTBTL_SETUP_ARG "arg"
/* mpirun's own addresses, as Open MPI writes them: the coordinator listens there. */
#define RUSTBTL_SETUP_ADDRESSES "at"
#define RUSTBTL_SETUP_GO "go"

/* From the coordinator: it listens (port, job, token of the secret), or why it cannot start. */
#define RUSTBTL_KEY_OK "ok"
#define RUSTBTL_KEY_ERROR "error"
/* End the job: without an error, or with this text as its error. */
#define RUSTBTL_KEY_END "end"
#define RUSTBTL_KEY_FAIL "fail"
/* The ranks of the lost node run again. */
#define RUSTBTL_KEY_RECOVERED "recovered"
/* A guardian has ended: continue without it, or do what stock Open MPI does. */
#define RUSTBTL_KEY_TOLERATE "let"
#define RUSTBTL_KEY_STOCK "stock"
/* Output of a rank that has no daemon: rank, stream, offset, bytes in hexadecimal. */
#define RUSTBTL_KEY_PRINT "print"
/* Answer with "quiet". End this connection, the node behind it has failed. */
#define RUSTBTL_KEY_MEASURE "measure"
#define RUSTBTL_KEY_CUT "cut"

/* To the coordinator: how much of a rank's output has come through its lost daemon. */
#define RUSTBTL_KEY_CAME "came"
/* A piece was printed; mpirun's output of a rank has this offset. */
#define RUSTBTL_KEY_PRINTED "printed"
#define RUSTBTL_KEY_REACHED "reached"
/* The user's signal: "stay" or "exit". */
#define RUSTBTL_KEY_CHECKPOINT "checkpoint"
/* A node is lost. A guardian has ended as if by a signal. */
#define RUSTBTL_KEY_LOST "lost"
#define RUSTBTL_KEY_GUARDIAN "guardian"
/* Connections to other hosts: how many, how many are silent, and these. */
#define RUSTBTL_KEY_QUIET "quiet"

#endif

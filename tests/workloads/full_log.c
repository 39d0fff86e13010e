/* Sends far more to another node than the log's budget holds. Given patience, the sender waits
 * whenever its log is three quarters full until a checkpoint has let it be trimmed; nobody but the
 * log requests one. At the end it prints that it is through.
 * usage: full_log BUDGET_BYTES TOTAL_BYTES [SECONDS_TO_WAIT_AT_MOST] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE 32768

static MPI_T_pvar_session session;
static MPI_T_pvar_handle log_bytes;

static int find_log(void)
{
    int index, count, provided;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    if (MPI_T_pvar_get_index("vprotocol_correlated_log_bytes", MPI_T_PVAR_CLASS_LEVEL, &index))
        return 0;
    MPI_T_pvar_session_create(&session);
    return MPI_SUCCESS == MPI_T_pvar_handle_alloc(session, index, NULL, &log_bytes, &count);
}

static unsigned long long in_log(void)
{
    unsigned long long bytes = 0;
    MPI_T_pvar_read(session, log_bytes, &bytes);
    return bytes;
}

int main(int argc, char **argv)
{
    static char data[MESSAGE];
    int me, np;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    unsigned long long budget = argc > 1 ? strtoull(argv[1], NULL, 0) : 1 << 24;
    unsigned long long total = argc > 2 ? strtoull(argv[2], NULL, 0) : 1 << 26;
    int patience = argc > 3 ? atoi(argv[3]) : 0;
    if (!find_log()) {
        fprintf(stderr, "there is no variable for the log\n");
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    unsigned long long sum = 0;
    for (unsigned long long sent = 0; sent < total; sent += MESSAGE) {
        if (0 == me) {
            time_t end = time(NULL) + patience;
            while (patience > 0 && in_log() > budget / 4 * 3) {
                if (time(NULL) > end) {
                    fprintf(stderr, "the log is not trimmed: %llu bytes\n", in_log());
                    MPI_Abort(MPI_COMM_WORLD, 4);
                }
                /* What was sent is complete when it is in the log; it travels in MPI calls. */
                int flag;
                MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
                usleep(1000);
            }
            memset(data, (int) (sent / MESSAGE), sizeof data);
            MPI_Send(data, MESSAGE, MPI_BYTE, np - 1, 0, MPI_COMM_WORLD);
        } else if (np - 1 == me) {
            MPI_Recv(data, MESSAGE, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            sum = sum * 31 + (unsigned char) data[sent % MESSAGE];
        }
    }
    if (np - 1 == me) {
        printf("HASH %llu\n", sum);
        fflush(stdout);
    }
    /* Of ranks in MPI_Finalize no checkpoint can be taken, hence none of their sets. */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}

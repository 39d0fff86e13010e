/* Sends far more to another node than the log's budget holds. Given patience, the sender waits
 * whenever its log is three quarters full until a checkpoint has let it be trimmed; nobody but the
 * log requests one. At the end it prints that it is through. With "gets" the other node fetches the
 * same from a window: what fills the log are answers.
 * usage: full_log BUDGET_BYTES TOTAL_BYTES [SECONDS_TO_WAIT_AT_MOST [gets]] */
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

/* From rank 0's window, when it says so; it goes on when the answer is here. */
static void get(char *data, int me, int np, MPI_Win window)
{
    char turn = 0;
    if (0 == me) {
        MPI_Send(&turn, 1, MPI_BYTE, np - 1, 1, MPI_COMM_WORLD);
        MPI_Recv(&turn, 1, MPI_BYTE, np - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(&turn, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Get(data, MESSAGE, MPI_BYTE, 0, 0, MESSAGE, MPI_BYTE, window);
        MPI_Win_flush(0, window);
        MPI_Send(&turn, 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv)
{
    static char data[MESSAGE];
    const int gets = argc > 4;
    char *memory;
    int me, np;
    MPI_Win window;
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
    MPI_Win_allocate(MESSAGE, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    for (int i = 0; i < MESSAGE; i++)
        memory[i] = (char) (i * 7);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, window);
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
            if (gets)
                get(data, me, np, window);
            else
                MPI_Send(data, MESSAGE, MPI_BYTE, np - 1, 0, MPI_COMM_WORLD);
        } else if (np - 1 == me) {
            if (gets)
                get(data, me, np, window);
            else
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
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}

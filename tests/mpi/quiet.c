/* ranks: 2 ; nodes: 1
 *
 * A short message inside a node costs no allocation, no mutex and no system call: neither MPI_Send
 * and MPI_Isend of what goes out at once, nor MPI_Recv and MPI_Irecv of what has come. Messages are
 * sent in batches; the ranks tell each other in memory that both map when a batch is there, so that
 * nobody waits inside MPI. malloc, calloc, realloc and pthread_mutex_lock are counted here; a
 * system call inside MPI raises SIGSYS (PR_SET_SYSCALL_USER_DISPATCH).
 *
 * Sockets have to be polled now and then, which is a system call (poll) with a few mutexes of the
 * event library around it: one message in 100 may have one. Each way of counting is tried out first.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

enum { BATCH = 16, BATCHES = 400, WARM = 40, BYTES = 8, LOCKS_PER_LOOK = 4 };

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static volatile int inside;
static volatile char blocks; /* the kernel's selector: 0 allow, 1 block */
static volatile long allocations, locks, calls, last_call;

void *malloc(size_t bytes)
{
    allocations += inside;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += inside;
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    allocations += inside;
    return __libc_realloc(old, bytes);
}

static int (*real_lock)(pthread_mutex_t *);

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locks += inside;
    if (NULL == real_lock) *(void **) &real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    return real_lock(mutex);
}

/* The call is not made; it is made again by stepping back over the instruction, and let through. */
static void on_call(int signal, siginfo_t *info, void *context)
{
    (void) signal;
    ucontext_t *at = context;
    blocks = 0;
    calls++;
    last_call = info->si_syscall;
#ifdef __x86_64__
    at->uc_mcontext.gregs[REG_RAX] = info->si_syscall;
    at->uc_mcontext.gregs[REG_RIP] -= 2;
#else
    (void) at;
#endif
}

static void enter(void)
{
    inside = 1;
    blocks = 1;
}

static void leave(void)
{
    blocks = 0;
    inside = 0;
}

static char data[BATCH][BYTES];
static MPI_Request requests[BATCH];

static void send_batch(int batch)
{
    for (int i = 0; i < BATCH; i++) {
        memset(data[i], batch + i, BYTES);
        enter();
        if (batch & 1) {
            MPI_Isend(data[i], BYTES, MPI_CHAR, 1, i, MPI_COMM_WORLD, &requests[i]);
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        } else {
            MPI_Send(data[i], BYTES, MPI_CHAR, 1, i, MPI_COMM_WORLD);
        }
        leave();
    }
}

static void receive_batch(int batch)
{
    for (int i = 0; i < BATCH; i++) {
        enter();
        if (batch & 2) {
            MPI_Irecv(data[i], BYTES, MPI_CHAR, 0, i, MPI_COMM_WORLD, &requests[i]);
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(data[i], BYTES, MPI_CHAR, 0, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        leave();
        for (int k = 0; k < BYTES; k++) {
            if (data[i][k] != (char) (batch + i)) {
                fprintf(stderr, "batch %d, message %d: wrong byte\n", batch, i);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
    }
}

/* Does it count at all? */
static void try_out(int traps)
{
    enter();
    void *volatile some = malloc(1);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    (void) getppid();
    leave();
    free(some);
    if (1 != allocations || 1 != locks || (traps && 1 != calls)) {
        fprintf(stderr, "counted %ld, %ld, %ld instead of 1\n", allocations, locks, calls);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void await(atomic_int *turn, int value)
{
    while (atomic_load(turn) != value) sched_yield();
}

int main(int argc, char **argv)
{
    int me;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Win window;
    atomic_int *turn;
    MPI_Win_allocate_shared(0 == me ? 4096 : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &turn, &window);
    if (0 == me) atomic_init(turn, 0);
    MPI_Aint size;
    int unit;
    MPI_Win_shared_query(window, 0, &size, &unit, &turn);
    struct sigaction action = { .sa_sigaction = on_call, .sa_flags = SA_SIGINFO };
    sigaction(SIGSYS, &action, NULL);
    int traps = 0 == prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &blocks);
    try_out(traps);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int batch = 0; batch < BATCHES; batch++) {
        if (WARM == batch) allocations = locks = calls = 0;
        if (0 == me) {
            await(turn, 2 * batch);
            send_batch(batch);
            atomic_store(turn, 2 * batch + 1);
        } else {
            await(turn, 2 * batch + 1);
            receive_batch(batch);
            atomic_store(turn, 2 * batch + 2);
        }
    }
    long all = (long) (BATCHES - WARM) * BATCH;
    long looks = traps ? calls : all / 100;
    if (allocations > 0 || locks > LOCKS_PER_LOOK * looks || calls > all / 100) {
        fprintf(stderr,
                "rank %d: %ld allocations, %ld mutexes, %ld system calls (the last: %ld) in %ld "
                "messages\n",
                me, allocations, locks, calls, last_call, all);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    MPI_Finalize();
    if (0 == me) puts("OK");
    return 0;
}

/* A zoo of threads: every kind of wait, registers of every size. Each animal checks for itself that
 * nothing strange has happened to it: no EINTR, no early or late end, no lost lock. At the end
 * there is one line per animal and the exit code 0; a checkpoint in between may not change that. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static volatile int open_gate; /* set when the waits are to end */
static double start_time, pause_seconds = 1.5;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_mutex_t recursive, checking, robust;
static sem_t semaphore, timed;
static int cond_flag, pipe_read[2], pipe_poll[2], pipe_epoll[2], pipe_select[2], event;
static const char *verdict[64];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define MUST(what) do { if (!(what)) { \
    static char text[200]; \
    snprintf(text, sizeof text, "%s failed: errno %d (%s)", #what, errno, strerror(errno)); \
    return text; } } while (0)

static void spin(void) { while (!open_gate) sched_yield(); }

static const char *in_cond(void) {
    MUST(pthread_mutex_lock(&mutex) == 0);
    while (!cond_flag) MUST(pthread_cond_wait(&cond, &mutex) == 0);
    MUST(pthread_mutex_unlock(&mutex) == 0);
    return "ok";
}
static const char *in_sem(void) { MUST(sem_wait(&semaphore) == 0); return "ok"; }
static const char *in_sem_timed(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += 100;
    MUST(sem_timedwait(&timed, &t) == 0);
    return "ok";
}
static const char *in_epoll(void) {
    int fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = 0x1234567890abcdef}, got;
    MUST(epoll_ctl(fd, EPOLL_CTL_ADD, pipe_epoll[0], &e) == 0);
    MUST(epoll_wait(fd, &got, 1, 100000) == 1);
    MUST(got.data.u64 == 0x1234567890abcdef && got.events == EPOLLIN);
    MUST(epoll_ctl(fd, EPOLL_CTL_DEL, pipe_epoll[0], &e) == 0);
    return "ok";
}
static const char *in_poll(void) {
    struct pollfd p = {.fd = pipe_poll[0], .events = POLLIN};
    MUST(poll(&p, 1, -1) == 1 && p.revents == POLLIN);
    return "ok";
}
static const char *in_select(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipe_select[0], &set);
    struct timeval t = {100, 0};
    MUST(select(pipe_select[0] + 1, &set, NULL, NULL, &t) == 1);
    return "ok";
}
static const char *in_nanosleep(void) {
    double before = now();
    struct timespec t = {2, 500000000}, rest = {7, 7};
    MUST(nanosleep(&t, &rest) == 0);
    MUST(now() - before >= 2.499);
    return "ok";
}
static const char *in_sleep_without_rest(void) {
    struct timespec t = {2, 0};
    MUST(nanosleep(&t, NULL) == 0);
    return "ok";
}
static const char *in_sleep(void) { MUST(sleep(2) == 0); return "ok"; }
static const char *in_absolute_sleep(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += 2;
    MUST(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == 0);
    return "ok";
}
static const char *in_read(void) {
    char text[16] = "";
    MUST(read(pipe_read[0], text, 16) == 5 && !strcmp(text, "hello"));
    return "ok";
}
static const char *in_event(void) {
    uint64_t value;
    MUST(read(event, &value, 8) == 8 && value == 7);
    return "ok";
}
static const char *in_recursive(void) {
    MUST(pthread_mutex_lock(&recursive) == 0 && pthread_mutex_lock(&recursive) == 0);
    MUST(pthread_mutex_lock(&checking) == 0 && pthread_mutex_lock(&robust) == 0);
    spin();
    MUST(pthread_mutex_lock(&recursive) == 0);
    for (int i = 0; i < 3; i++) MUST(pthread_mutex_unlock(&recursive) == 0);
    MUST(pthread_mutex_lock(&checking) == EDEADLK);
    MUST(pthread_mutex_unlock(&checking) == 0 && pthread_mutex_unlock(&robust) == 0);
    return "ok";
}
static const char *in_lock(void) {
    MUST(pthread_mutex_lock(&held) == 0 && pthread_mutex_unlock(&held) == 0);
    return "ok";
}
static const char *in_rwlock(void) {
    MUST(pthread_rwlock_rdlock(&rwlock) == 0 && pthread_rwlock_unlock(&rwlock) == 0);
    return "ok";
}
static const char *in_barrier(void) { pthread_barrier_wait(&barrier); return "ok"; }
static const char *in_timerfd(void) {
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec t = {.it_value = {2, 0}};
    uint64_t value;
    MUST(timerfd_settime(fd, 0, &t, NULL) == 0);
    MUST(read(fd, &value, 8) == 8 && value == 1);
    return "ok";
}
static void *sleeper(void *unused) { (void)unused; spin(); return (void *)77; }
static const char *in_join(void) {
    pthread_t thread;
    void *result;
    MUST(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    MUST(pthread_join(thread, &result) == 0 && result == (void *)77);
    return "ok";
}
static const char *in_sigwait(void) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    MUST(sigwait(&set, &got) == 0 && got == SIGUSR1);
    return "ok";
}
static volatile int suspended;
static void on_usr2(int signal) { (void)signal; suspended = 1; }
static const char *in_sigsuspend(void) {
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, SIGUSR2);
    MUST(sigsuspend(&set) == -1 && errno == EINTR && suspended);
    return "ok";
}
static const char *all_blocked(void) {
    sigset_t set, old;
    sigfillset(&set);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    spin();
    pthread_sigmask(SIG_SETMASK, NULL, &old);
    MUST(sigismember(&old, SIGTERM) && sigismember(&old, SIGRTMAX));
    return "ok";
}
static volatile int handled;
static char alternate[65536];
static void on_winch(int signal) {
    char here;
    handled = signal == SIGWINCH && &here >= alternate && &here < alternate + sizeof alternate;
}
static const char *in_alternate_stack(void) {
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate}, is;
    MUST(sigaltstack(&stack, NULL) == 0);
    spin();
    MUST(sigaltstack(NULL, &is) == 0 && is.ss_sp == alternate && is.ss_flags == 0);
    MUST(raise(SIGWINCH) == 0 && handled);
    return "ok";
}
static const char *in_malloc(void) {
    while (!open_gate)
        for (int i = 0; i < 100; i++) free(malloc((size_t)(i * 1000)));
    return "ok";
}
static void *nothing(void *unused) { return unused; }
static const char *in_create(void) {
    while (!open_gate) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, nothing, NULL) == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    return "ok";
}
static __thread int own = 5;
static const char *in_own_variable(void) {
    own = 55;
    spin();
    MUST(own == 55);
    MUST(sched_getcpu() >= 0);
    return "ok";
}
static const char *in_float(void) {
    unsigned before = 0x9fc0, after = 0; /* round towards zero, flush */
    unsigned short control = 0x0f7f, is = 0;
    __asm__ volatile("ldmxcsr %0; fldcw %1" : : "m"(before), "m"(control));
    spin();
    __asm__ volatile("stmxcsr %0; fnstcw %1" : "=m"(after), "=m"(is));
    MUST((after & ~63u) == before && is == control);
    return "ok";
}
static const char *in_avx512(void) {
    if (!__builtin_cpu_supports("avx512f")) return "ok";
    static unsigned char from[64], to[3][64];
    for (int i = 0; i < 64; i++) from[i] = (unsigned char)(i * 3 + 1);
    unsigned short mask = 0;
    __asm__ volatile("vmovdqu64 (%1), %%zmm5\n vmovdqu64 (%1), %%zmm15\n vmovdqu64 (%1), %%zmm31\n"
                     "mov $0x5aa5, %%eax\n kmovw %%eax, %%k3\n"
                     "1: pause\n cmpl $0, (%2)\n je 1b\n"
                     "vmovdqu64 %%zmm5, (%3)\n vmovdqu64 %%zmm15, 64(%3)\n"
                     "vmovdqu64 %%zmm31, 128(%3)\n kmovw %%k3, %%eax\n mov %%ax, %0"
                     : "=m"(mask)
                     : "r"(from), "r"(&open_gate), "r"(to)
                     : "memory", "rax", "xmm5", "xmm15");
    for (int i = 0; i < 3; i++) MUST(!memcmp(from, to[i], 64));
    MUST(mask == 0x5aa5);
    return "ok";
}
static const char *in_amx(void) {
    /* The tiles and, in the same thread, the registers that are lost if tiles are forgotten. */
    if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return "ok";
    static unsigned char from[64], to[64], tile[1024], back[1024];
    static unsigned char configuration[64] = {[0] = 1, [16] = 64, [48] = 16};
    for (int i = 0; i < 64; i++) from[i] = (unsigned char)(i * 5 + 1);
    for (int i = 0; i < 1024; i++) tile[i] = (unsigned char)(i * 7 + i / 64);
    __asm__ volatile("ldtilecfg (%0)\n mov $64, %%rax\n tileloadd (%1, %%rax), %%tmm0\n"
                     "vmovdqu64 (%2), %%zmm20\n"
                     "1: pause\n cmpl $0, (%3)\n je 1b\n"
                     "tilestored %%tmm0, (%4, %%rax)\n vmovdqu64 %%zmm20, (%5)\n tilerelease"
                     :
                     : "r"(configuration), "r"(tile), "r"(from), "r"(&open_gate), "r"(back),
                       "r"(to)
                     : "memory", "rax");
    MUST(!memcmp(tile, back, 1024) && !memcmp(from, to, 64));
    return "ok";
}

static const struct { const char *name; const char *(*animal)(void); } zoo[] = {
    {"cond", in_cond}, {"sem", in_sem}, {"sem_timed", in_sem_timed}, {"epoll", in_epoll},
    {"poll", in_poll}, {"select", in_select}, {"nanosleep", in_nanosleep},
    {"nanosleep without rest", in_sleep_without_rest}, {"sleep", in_sleep},
    {"absolute sleep", in_absolute_sleep}, {"read", in_read}, {"eventfd", in_event},
    {"recursive and checking locks", in_recursive}, {"lock", in_lock}, {"rwlock", in_rwlock},
    {"barrier", in_barrier}, {"timerfd", in_timerfd}, {"join", in_join}, {"sigwait", in_sigwait},
    {"sigsuspend", in_sigsuspend}, {"all signals blocked", all_blocked},
    {"alternate stack", in_alternate_stack}, {"malloc", in_malloc}, {"create", in_create},
    {"own variable", in_own_variable}, {"float control", in_float}, {"avx512", in_avx512},
    {"amx", in_amx},
};
enum { ANIMALS = sizeof zoo / sizeof *zoo };

static void *live(void *number) {
    long n = (long)number;
    pthread_setname_np(pthread_self(), zoo[n].name);
    verdict[n] = zoo[n].animal();
    return NULL;
}

static void lock_of(pthread_mutex_t *lock, int type, int robustness) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, type);
    pthread_mutexattr_setrobust(&a, robustness);
    pthread_mutex_init(lock, &a);
}

int main(int argc, char **argv)
{
    pthread_t thread[ANIMALS];
    sigset_t set;
    (void)argv;
    if (argc > 1) pause_seconds = atof(argv[1]);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    struct sigaction winch = {.sa_handler = on_winch, .sa_flags = SA_ONSTACK};
    sigaction(SIGWINCH, &winch, NULL);
    signal(SIGUSR2, on_usr2);
    sem_init(&semaphore, 0, 0);
    sem_init(&timed, 0, 0);
    pthread_barrier_init(&barrier, NULL, 2);
    lock_of(&recursive, PTHREAD_MUTEX_RECURSIVE, PTHREAD_MUTEX_STALLED);
    lock_of(&checking, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_STALLED);
    lock_of(&robust, PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST);
    if (pipe(pipe_read) || pipe(pipe_poll) || pipe(pipe_epoll) || pipe(pipe_select)) return 3;
    event = eventfd(0, 0);
    pthread_mutex_lock(&held);
    pthread_rwlock_wrlock(&rwlock);
    for (long i = 0; i < ANIMALS; i++) pthread_create(&thread[i], NULL, live, (void *)i);
    usleep(100000);
    printf("ready\n");
    fflush(stdout);
    start_time = now();
    while (now() - start_time < pause_seconds) usleep(1000);
    open_gate = 1;
    pthread_mutex_lock(&mutex);
    cond_flag = 1;
    pthread_cond_broadcast(&cond);
    pthread_mutex_unlock(&mutex);
    sem_post(&semaphore);
    sem_post(&timed);
    uint64_t seven = 7;
    if (write(pipe_read[1], "hello", 5) != 5 || write(pipe_poll[1], "x", 1) != 1
        || write(pipe_epoll[1], "x", 1) != 1 || write(pipe_select[1], "x", 1) != 1
        || write(event, &seven, 8) != 8)
        return 4;
    pthread_mutex_unlock(&held);
    pthread_rwlock_unlock(&rwlock);
    pthread_barrier_wait(&barrier);
    kill(getpid(), SIGUSR1);
    kill(getpid(), SIGUSR2);
    int bad = 0;
    for (int i = 0; i < ANIMALS; i++) {
        pthread_join(thread[i], NULL);
        printf("%s: %s\n", zoo[i].name, verdict[i]);
        bad |= strcmp(verdict[i], "ok") != 0;
    }
    return bad;
}

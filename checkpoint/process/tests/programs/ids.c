/* Threads that query and signal each other by their handles, all the time: that works whatever ids
 * they have. One has its own files open, and those of a thread that has ended. Ends with threads
 * that are cancelled where they wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static pthread_t worker, reader, spinner;
static atomic_int signals, values, wrong, over;
static int pipe_fds[2];

static void on_signal(int signal, siginfo_t *info, void *unused)
{
    (void)signal, (void)unused;
    if (!pthread_equal(pthread_self(), worker)) atomic_fetch_add(&wrong, 1);
    if (info->si_code == SI_QUEUE && info->si_value.sival_int == 77) atomic_fetch_add(&values, 1);
    atomic_fetch_add(&signals, 1);
}

/* A file of this thread. */
static void *own_name(void *fd)
{
    *(int *)fd = open("/proc/thread-self/comm", O_RDWR);
    return NULL;
}

static int gone = -1;

static void *work(void *unused)
{
    char name[16], found[17] = "";
    int own = -1, copy;
    own_name(&own);
    copy = dup(own);
    while (!atomic_load(&over)) {
        if (pread(own, found, 16, 0) < 1 || pread(copy, found, 16, 0) < 1) {
            atomic_fetch_add(&wrong, 1);
        }
        usleep(300);
    }
    /* No other id is assigned to it now. */
    prctl(PR_GET_NAME, name);
    long count = pread(copy, found, 16, 0);
    if (count != (long)strlen(name) + 1 || memcmp(name, found, count - 1)) {
        atomic_fetch_add(&wrong, 1);
    }
    if (pread(gone, found, 16, 0) >= 0) atomic_fetch_add(&wrong, 1);
    return unused;
}

static void *read_for_ever(void *unused)
{
    char byte;
    while (read(pipe_fds[0], &byte, 1) >= 0) {}
    return unused;
}

static void *spin_for_ever(void *unused)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (;;) atomic_load(&over);
    return unused;
}

static void must(int answer, const char *what)
{
    if (answer == 0) return;
    printf("%s: %s\n", what, strerror(answer));
    exit(1);
}

static void wait_for(atomic_int *count, int wanted, const char *what)
{
    for (int i = 0; atomic_load(count) < wanted; i++) {
        if (i > 20000) must(ETIMEDOUT, what);
        usleep(500);
    }
}

static void once(int round)
{
    union sigval value = { .sival_int = 77 };
    int before = atomic_load(&signals), queued = atomic_load(&values), policy;
    must(pthread_kill(worker, SIGUSR1), "pthread_kill");
    wait_for(&signals, before + 1, "the signal");
    must(pthread_sigqueue(worker, SIGUSR1, value), "pthread_sigqueue");
    wait_for(&values, queued + 1, "the value");
    cpu_set_t set;
    memset(&set, 0xff, sizeof set);
    must(pthread_getaffinity_np(worker, sizeof set, &set), "pthread_getaffinity_np");
    must(CPU_COUNT(&set) < 1 || CPU_COUNT(&set) > 512 ? EINVAL : 0, "the affinity");
    must(pthread_setaffinity_np(worker, sizeof set, &set), "pthread_setaffinity_np");
    struct sched_param with = { 0 };
    must(pthread_getschedparam(worker, &policy, &with), "pthread_getschedparam");
    must(pthread_setschedparam(worker, policy, &with), "pthread_setschedparam");
    must(pthread_setschedprio(worker, with.sched_priority), "pthread_setschedprio");
    clockid_t clock;
    struct timespec used;
    must(pthread_getcpuclockid(worker, &clock), "pthread_getcpuclockid");
    must(clock_gettime(clock, &used) ? errno : 0, "clock_gettime");
    char name[16], found[16];
    snprintf(name, sizeof name, "worker %d", round);
    must(pthread_setname_np(worker, name), "pthread_setname_np");
    must(pthread_getname_np(worker, found, sizeof found), "pthread_getname_np");
    must(strcmp(name, found) ? EINVAL : 0, "the name");
    must(pthread_kill(worker, 33) == EINVAL ? 0 : ENOTSUP, "a signal of the C library's");
    must(pthread_kill(pthread_self(), 0), "pthread_kill of oneself");
    must(raise(0), "raise");
}

static void cancel(pthread_t thread, const char *what)
{
    void *result;
    struct timespec until;
    must(pthread_cancel(thread), what);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    must(pthread_timedjoin_np(thread, &result, &until), what);
    must(result == PTHREAD_CANCELED ? 0 : EINVAL, what);
}

int main(void)
{
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGUSR1, &action, NULL);
    must(pipe(pipe_fds), "pipe");
    must(pthread_create(&reader, NULL, own_name, &gone), "pthread_create");
    must(pthread_join(reader, NULL), "pthread_join");
    must(pthread_create(&worker, NULL, work, NULL), "pthread_create");
    must(pthread_create(&reader, NULL, read_for_ever, NULL), "pthread_create");
    must(pthread_create(&spinner, NULL, spin_for_ever, NULL), "pthread_create");
    printf("ready\n");
    fflush(stdout);
    for (int round = 0; round < 400; round++) {
        once(round);
        usleep(1000);
    }
    cancel(reader, "cancel a thread that reads");
    cancel(spinner, "cancel a thread that computes");
    /* One that was started later has the id that the C library knows. */
    must(pthread_create(&reader, NULL, read_for_ever, NULL), "pthread_create");
    must(pthread_kill(reader, 0), "pthread_kill of a new thread");
    cancel(reader, "cancel a new thread");
    atomic_store(&over, 1);
    must(pthread_join(worker, NULL), "pthread_join");
    must(atomic_load(&wrong) ? EINVAL : 0, "the thread that got the signal, or a file of a thread");
    printf("all right\n");
    return 0;
}

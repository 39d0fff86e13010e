/* An interval timer whose signal waits to be delivered when the image is written: the kernel starts
 * its next interval only after that. It goes on afterwards. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { \
    printf("line %d: %s failed: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static volatile int alarms;
static void on_alarm(int number) { (void)number; alarms++; }

int main(void) {
    sigset_t set, waiting;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGALRM, on_alarm);
    struct itimerval ten = {{0, 10000}, {0, 10000}}, is;
    MUST(setitimer(ITIMER_REAL, &ten, NULL) == 0);
    do
        MUST(sigpending(&waiting) == 0);
    while (!sigismember(&waiting, SIGALRM));
    printf("ready\n");
    fflush(stdout);
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while (now.tv_sec < start.tv_sec + 2);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    for (int i = 0; i < 5000 && alarms < 4; i++) usleep(1000);
    MUST(getitimer(ITIMER_REAL, &is) == 0);
    printf("%s %ld\n", alarms >= 4 ? "goes on" : "stands", (long)is.it_interval.tv_usec);
    return 0;
}

/* Files with offsets, pipes with content, private and shared mappings, heap, stack, limits. Half
 * of the work is done before "ready", the other half after; at the end everything must fit. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FAR (1LL << 40)
#define MUST(what) do { if (!(what)) { \
    printf("line %d: %s failed: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static volatile int alarms, ticks;
static void on_alarm(int s) { (void)s; alarms++; }
static void on_tick(int s, siginfo_t *info, void *c) {
    (void)s; (void)c;
    if (info->si_value.sival_int == 4711) ticks++;
}
static uint64_t deep(int n) {
    volatile char room[1000];
    memset((char *)room, n, sizeof room);
    return n == 0 ? 0 : deep(n - 1) + (uint64_t)room[n % 1000];
}

int main(int argc, char **argv)
{
    MUST(argc == 2);
    MUST(chdir(argv[1]) == 0);
    umask(027);
    int out = open("out.txt", O_RDWR | O_CREAT | O_TRUNC, 0600);
    int log = open("log.txt", O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0600);
    int in = open("/etc/passwd", O_RDONLY), twin = dup(in), null = open("/dev/null", O_RDWR);
    char first[8] = "", again[8] = "";
    MUST(out > 0 && log > 0 && in > 0 && null > 0 && read(in, first, 4) == 4);
    MUST(write(out, "first half, ", 12) == 12 && write(log, "1", 1) == 1);
    char name_of_one[40];
    mkdir("folder", 0700);
    for (int i = 0; i < 300; i++) {
        snprintf(name_of_one, sizeof name_of_one, "folder/%d", i);
        close(open(name_of_one, O_WRONLY | O_CREAT, 0600));
    }
    DIR *listing = opendir("folder");
    int listed = 0;
    MUST(listing != NULL);
    while (listed < 10 && readdir(listing) != NULL) listed++;
    int pipes[2], big[2], gone[2];
    MUST(pipe2(pipes, O_NONBLOCK | O_CLOEXEC) == 0 && pipe(big) == 0 && pipe(gone) == 0);
    MUST(write(pipes[1], "in the pipe", 11) == 11);
    MUST(fcntl(big[1], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
    static char block[200000], back[200000];
    for (size_t i = 0; i < sizeof block; i++) block[i] = (char)(i * 31);
    MUST(write(big[1], block, sizeof block) == sizeof block);
    MUST(write(gone[1], "last words", 10) == 10);
    close(gone[1]);
    char name[] = "/tmp/unnamed-XXXXXX";
    int unnamed = mkstemp(name);
    MUST(unnamed > 0 && unlink(name) == 0 && write(unnamed, "nobody", 6) == 6);
    char other[] = "/tmp/sparse-XXXXXX"; /* nearly all of it is a hole: nobody could read it */
    int sparse = mkstemp(other);
    MUST(sparse > 0 && unlink(other) == 0 && write(sparse, "begin", 5) == 5);
    MUST(pwrite(sparse, "middle", 6, FAR - 3) == 6 && ftruncate(sparse, 2 * FAR + 7) == 0);
    int memory = memfd_create("memory", 0);
    MUST(memory > 0 && ftruncate(memory, 3 << 12) == 0);
    char *seen = mmap(NULL, 3 << 12, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    char *twice = mmap(NULL, 1 << 12, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 1 << 12);
    MUST(seen != MAP_FAILED && twice != MAP_FAILED);
    strcpy(seen + (1 << 12), "seen twice");
    char *shared = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(shared != MAP_FAILED);
    strcpy(shared + 70000, "shared");
    int data = open("data.bin", O_RDWR | O_CREAT | O_TRUNC, 0600);
    MUST(data > 0 && ftruncate(data, 10000) == 0);
    char *mapped = mmap(NULL, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, data, 0);
    MUST(mapped != MAP_FAILED);
    strcpy(mapped + 5000, "in the file, too");
    char *private = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, in, 0);
    MUST(private != MAP_FAILED);
    private[5000 % 2000] = '#';
    char *fixed = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(fixed, "read only");
    MUST(mprotect(fixed, 4096, PROT_READ) == 0 && mprotect(fixed + 4096, 4096, PROT_NONE) == 0);
    char *secret = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(secret, "not for children");
    MUST(madvise(secret, 8192, MADV_DONTFORK) == 0);
    char *heap = sbrk(100000);
    strcpy(heap + 99990, "heap");
    char *end_of_heap;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    MUST(bind(listener, (void *)&address, length) == 0 && listen(listener, 5) == 0);
    MUST(getsockname(listener, (void *)&address, &length) == 0);
    struct rlimit files = {500, 1000};
    MUST(setrlimit(RLIMIT_NOFILE, &files) == 0);
    signal(SIGALRM, on_alarm);
    struct itimerval soon = {{0, 0}, {2, 0}};
    setitimer(ITIMER_REAL, &soon, NULL);
    struct sigaction tick = {.sa_sigaction = on_tick, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN + 3, &tick, NULL);
    timer_t skipped, timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3};
    event.sigev_value.sival_int = 4711;
    MUST(timer_create(CLOCK_MONOTONIC, &event, &skipped) == 0);
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_delete(skipped) == 0);
    struct itimerspec ten = {{0, 10000000}, {0, 10000000}};
    MUST(timer_settime(timer, 0, &ten, NULL) == 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    raise(SIGUSR1); /* waits for this thread */
    kill(getpid(), SIGUSR2); /* and for the process */
    setenv("COLOUR", "green", 1);

    printf("ready\n");
    fflush(stdout);
    end_of_heap = sbrk(0);
    struct timespec start, is;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do
        clock_gettime(CLOCK_MONOTONIC, &is);
    while (is.tv_sec < start.tv_sec + 2);

    char text[200001] = "";
    MUST(sigpending(&set) == 0 && sigismember(&set, SIGUSR1) && sigismember(&set, SIGUSR2));
    int before = ticks;
    while (ticks < before + 3) usleep(1000);
    MUST(timer_delete(timer) == 0);
    while (!alarms) usleep(1000);
    MUST(alarms == 1);
    MUST(write(out, "second half", 11) == 11 && write(log, "2", 1) == 1);
    MUST(pread(out, text, 100, 0) == 23 && !strcmp(text, "first half, second half"));
    MUST(lseek(log, 0, SEEK_END) == 2);
    MUST(read(twin, again, 4) == 4 && lseek(in, 0, SEEK_CUR) == 8);
    while (readdir(listing) != NULL) listed++;
    MUST(listed == 302);
    rewinddir(listing);
    while (readdir(listing) != NULL) listed++;
    MUST(listed == 604);
    memset(text, 0, sizeof text);
    MUST(read(pipes[0], text, 100) == 11 && !strcmp(text, "in the pipe"));
    MUST(read(pipes[0], text, 100) == -1 && errno == EAGAIN);
    size_t got = 0;
    while (got < sizeof back) {
        ssize_t n = read(big[0], back + got, sizeof back - got);
        MUST(n > 0);
        got += (size_t)n;
    }
    MUST(!memcmp(block, back, sizeof back) && fcntl(big[0], F_GETPIPE_SZ) == 1 << 20);
    memset(text, 0, sizeof text);
    MUST(read(gone[0], text, 100) == 10 && read(gone[0], text, 100) == 0);
    memset(text, 0, sizeof text);
    MUST(lseek(unnamed, 0, SEEK_CUR) == 6 && pread(unnamed, text, 100, 0) == 6);
    MUST(!strcmp(text, "nobody"));
    memset(text, 0, sizeof text);
    MUST(lseek(sparse, 0, SEEK_CUR) == 5 && pread(sparse, text, 6, FAR - 3) == 6);
    MUST(!strcmp(text, "middle") && pread(sparse, text, 9, 2 * FAR) == 7 && text[0] == 0);
    MUST(pread(sparse, text, 5, 0) == 5 && !strncmp(text, "begin", 5));
    MUST(!strcmp(twice, "seen twice") && (strcpy(twice, "both"), !strcmp(seen + 4096, "both")));
    MUST(pread(memory, text, 5, 4096) == 5 && !strcmp(text, "both"));
    struct stat stat;
    MUST(fstat(memory, &stat) == 0 && stat.st_size == 3 << 12);
    MUST(!strcmp(shared + 70000, "shared"));
    MUST(!strcmp(mapped + 5000, "in the file, too"));
    strcpy(mapped + 9000, "written later");
    MUST(pread(data, text, 14, 9000) == 14 && !strcmp(text, "written later"));
    pid_t child = fork();
    if (child == 0) {
        strcpy(shared, secret == NULL ? "?" : "from the child");
        _exit(7);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    MUST(!strcmp(shared, "from the child"));
    MUST(private[1000] == '#' && private[0] == first[0] && private[3] == first[3]);
    MUST(!strcmp(fixed, "read only") && mprotect(fixed, 4096, PROT_READ | PROT_WRITE) == 0);
    MUST(!strcmp(secret, "not for children") && !strcmp(heap + 99990, "heap"));
    MUST(sbrk(0) == end_of_heap && sbrk(1 << 22) == end_of_heap);
    memset(end_of_heap, 1, 1 << 22);
    MUST(getsockname(listener, (void *)&address, &length) == 0 && address.sin_port != 0);
    int to = socket(AF_INET, SOCK_STREAM, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    MUST(connect(to, (void *)&address, length) == 0 && accept(listener, NULL, NULL) > 0);
    MUST(getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur == 500);
    MUST(umask(0) == 027);
    MUST(deep(5000) != 1);
    MUST(!strcmp(getenv("COLOUR"), "green"));
    char *folder = getcwd(NULL, 0);
    MUST(!strcmp(folder, argv[1]));
    char command[100] = "";
    FILE *line = fopen("/proc/self/cmdline", "r");
    MUST(fread(command, 1, 99, line) > 5 && strstr(command, "files"));
    void *blocks[1000];
    for (int i = 0; i < 1000; i++) blocks[i] = malloc((size_t)i * 500);
    for (int i = 0; i < 1000; i++) free(blocks[i]);
    printf("all is well\n");
    return 0;
}

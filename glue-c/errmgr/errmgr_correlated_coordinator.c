/*
 * The coordinator: a child of mpirun with a pipe in each direction. It ends when its input does.
 * One that ends before has failed: another one is started and sent the same setup. The job's name,
 * its port and its secret stay the same.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long it may take to start, and to end. */
#define START_MS 30000
#define STOP_MS 3000
/* After so many failures in a row, each within so long of the start, no other one is started. */
#define FAILURES_MAX 8
#define STABLE_MS 60000
/* One that was seen suspended so many times in a row has failed: nobody has it go on. */
#define LOOKS_MAX 3

static int to_coordinator = -1, from_coordinator = -1;
static char line[4096];
static size_t line_bytes = 0;
/* "JOB PORT SECRET", which the first one has chosen. */
static char *identity = NULL;
static long started_ms = 0;
static int failures = 0;
static pid_t coordinator = 0;
static int looks = 0;

static void close_all(int *fds, int count)
{
    for (int i = 0; i < count; i++) {
        if (0 <= fds[i]) {
            close(fds[i]);
        }
    }
}

/* In the child: nothing but system calls. */
static void exec_coordinator(const char *program, int input, int output)
{
    sigset_t none;
    /* mpirun handles Ctrl-C, and then closes the pipe. */
    setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* Batch systems send such signals to all processes of a job at once. */
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
    signal(SIGXCPU, SIG_IGN);
    if (0 <= dup2(input, 0) && 0 <= dup2(output, 1)) {
        execl(program, "rustbtl", "coordinator", (char *) NULL);
    }
    _exit(127);
}

/* A key and a value; a value with a line end in it is left out. */
static void send_value(FILE *to, const char *key, const char *value)
{
    if (NULL != value && '\0' != value[0] && NULL == strchr(value, '\n')) {
        fprintf(to, "%s %s\n", key, value);
    }
}

char *mca_errmgr_correlated_absolute(const char *path)
{
    char here[OPAL_PATH_MAX];
    if (NULL == path || '\0' == path[0]) {
        return NULL;
    }
    if ('/' != path[0] && NULL != getcwd(here, sizeof(here))) {
        return opal_os_path(false, here, path, NULL);
    }
    return strdup(path);
}

static void send_path(FILE *to, const char *key, const char *value)
{
    char *whole = mca_errmgr_correlated_absolute(value);
    send_value(to, key, whole);
    free(whole);
}

static char *send_setup(orte_job_t *job, bool prints, bool failover)
{
    const mca_errmgr_correlated_params_t *p = &mca_errmgr_correlated_params;
    int copy = fcntl(to_coordinator, F_DUPFD_CLOEXEC, 3);
    FILE *to = 0 > copy ? NULL : fdopen(copy, "w");
    if (NULL == to) {
        return strdup("no file descriptor is left");
    }
    send_path(to, RUSTBTL_SETUP_DIR, p->checkpoint_dir);
    send_path(to, RUSTBTL_SETUP_RESTORE, p->restore);
    send_path(to, RUSTBTL_SETUP_LOG, CORRELATED_SESSION_DIR);
    send_value(to, RUSTBTL_SETUP_INTERVAL, p->checkpoint_interval);
    fprintf(to, RUSTBTL_SETUP_MTBF " %.0f\n", 0 < p->mtbf ? p->mtbf * 1000 : 0);
    fprintf(to, RUSTBTL_SETUP_OVERHEAD " %.0f\n", 0 < p->overhead_max ? p->overhead_max * 10 : 0);
    fprintf(to, RUSTBTL_SETUP_SET_INTERVAL " %.0f\n",
            0 < p->set_checkpoint_interval ? p->set_checkpoint_interval * 1000 : 0);
    char *images = mca_errmgr_correlated_image_settings();
    send_value(to, RUSTBTL_SETUP_IMAGES, images);
    free(images);
    fprintf(to, RUSTBTL_SETUP_FAILURE_TIMEOUT " %.0f\n", p->failure_timeout * 1000);
    fprintf(to, RUSTBTL_SETUP_NOTICES " %d\n", p->notices);
    fprintf(to, RUSTBTL_SETUP_KEEP " %d\n", 0 < p->checkpoints_kept ? p->checkpoints_kept : 1);
    if (mca_errmgr_correlated_keeps_local()) {
        fprintf(to, RUSTBTL_SETUP_REPLICAS " %d\n",
                0 < p->image_replicas ? p->image_replicas : 0);
    }
    fprintf(to, RUSTBTL_SETUP_RECOVER " %d\n", p->recover ? 1 : 0);
    fprintf(to, RUSTBTL_SETUP_PRINTS " %d\n", prints ? 1 : 0);
    send_value(to, RUSTBTL_SETUP_SECRET, p->secret);
    if (failover) {
        send_value(to, RUSTBTL_SETUP_FAILOVER, identity);
    }
    char *uri = NULL;
    orte_oob_base_get_addr(&uri);
    send_value(to, RUSTBTL_SETUP_ADDRESSES, uri);
    free(uri);
    fprintf(to, RUSTBTL_SETUP_SIZE " %u\n", (unsigned) job->num_procs);
    for (int i = 0; i < job->apps->size; i++) {
        orte_app_context_t *app = opal_pointer_array_get_item(job->apps, i);
        for (int word = 0; NULL != app && NULL != app->argv && NULL != app->argv[word]; word++) {
            send_value(to, RUSTBTL_SETUP_ARG, app->argv[word]);
        }
    }
    fprintf(to, RUSTBTL_SETUP_GO "\n");
    return 0 == fclose(to) ? NULL : strdup("it ended at once");
}

static long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000L + now.tv_nsec / 1000000L;
}

/* Wait until it sends something; false: it did not. */
static bool wait_for_answer(int ms)
{
    long until = now_ms() + ms;
    struct pollfd on = { .fd = from_coordinator, .events = POLLIN };
    int got;
    do {
        long left = until - now_ms();
        got = poll(&on, 1, 0 < left ? (int) left : 0);
    } while (0 > got && EINTR == errno);
    return 0 < got;
}

char *mca_errmgr_correlated_coordinator_read(void)
{
    for (;;) {
        char *end = memchr(line, '\n', line_bytes);
        if (NULL != end) {
            size_t length = (size_t) (end - line);
            char *text = strndup(line, length);
            line_bytes -= length + 1;
            memmove(line, end + 1, line_bytes);
            return text;
        }
        if (line_bytes == sizeof(line)) {
            return NULL;
        }
        ssize_t got = read(from_coordinator, line + line_bytes, sizeof(line) - line_bytes);
        if (0 == got || (0 > got && EINTR != errno)) {
            return NULL;
        }
        line_bytes += 0 < got ? (size_t) got : 0;
    }
}

bool mca_errmgr_correlated_coordinator_pending(void)
{
    return NULL != memchr(line, '\n', line_bytes);
}

bool mca_errmgr_correlated_coordinator_send(const char *key, const char *value)
{
    char text[1024];
    int length = snprintf(text, sizeof(text), "%s %s\n", key, value);
    if (0 > to_coordinator || 0 >= length || sizeof(text) <= (size_t) length) {
        return false;
    }
    /* In one piece: less than PIPE_BUF. */
    ssize_t wrote;
    do {
        wrote = write(to_coordinator, text, (size_t) length);
    } while (0 > wrote && EINTR == errno);
    return length == wrote;
}

/* Its answer: "ok PORT JOB SECRET" or "error TEXT". */
static char *parse_answer(char *answer, char **port, char **name, char **secret)
{
    char *rest = NULL;
    if (NULL == answer) {
        return strdup("it ended without an answer");
    }
    if (0 == strncmp(answer, RUSTBTL_KEY_ERROR " ", sizeof(RUSTBTL_KEY_ERROR))) {
        return strdup(answer + sizeof(RUSTBTL_KEY_ERROR));
    }
    const char *ok = strtok_r(answer, " ", &rest);
    const char *words[3] = { strtok_r(NULL, " ", &rest), strtok_r(NULL, " ", &rest),
                             strtok_r(NULL, " ", &rest) };
    if (NULL == ok || 0 != strcmp(ok, RUSTBTL_KEY_OK) || NULL == words[2]) {
        return strdup("it gave an answer of another version");
    }
    *port = strdup(words[0]);
    *name = strdup(words[1]);
    *secret = strdup(words[2]);
    return NULL;
}

static bool is_suspended(void)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long) coordinator);
    FILE *file = 0 < coordinator ? fopen(path, "r") : NULL;
    size_t length = NULL == file ? 0 : fread(text, 1, sizeof(text) - 1, file);
    if (NULL != file) {
        fclose(file);
    }
    text[length] = '\0';
    /* The name before it may hold anything. */
    const char *name_end = strrchr(text, ')');
    return NULL != name_end && 0 == strncmp(name_end, ") T", 3);
}

void mca_errmgr_correlated_coordinator_look(void)
{
    looks = is_suspended() ? looks + 1 : 0;
    if (LOOKS_MAX <= looks) {
        kill(coordinator, SIGKILL);
    }
}

/* Start a process, and read its first answer. */
static char *launch(orte_job_t *job, bool prints, bool failover, char **port, char **name,
                    char **secret)
{
    const char *program = mca_errmgr_correlated_program();
    int fds[4] = { -1, -1, -1, -1 };
    if (0 != pipe2(fds, O_CLOEXEC) || 0 != pipe2(fds + 2, O_CLOEXEC)) {
        close_all(fds, 4);
        return strdup("no file descriptor is left");
    }
    pid_t child = fork();
    if (0 == child) {
        exec_coordinator(program, fds[0], fds[3]);
    }
    close(fds[0]);
    close(fds[3]);
    if (0 > child) {
        close(fds[1]);
        close(fds[2]);
        return strdup("no process can be started");
    }
    coordinator = child;
    looks = 0;
    to_coordinator = fds[1];
    from_coordinator = fds[2];
    line_bytes = 0;
    started_ms = now_ms();
    char *problem = send_setup(job, prints, failover);
    if (NULL == problem && !wait_for_answer(START_MS)) {
        problem = strdup("it does not answer");
    }
    if (NULL == problem) {
        char *answer = mca_errmgr_correlated_coordinator_read();
        problem = parse_answer(answer, port, name, secret);
        free(answer);
    }
    if (NULL != problem) {
        mca_errmgr_correlated_coordinator_stop();
    }
    return problem;
}

char *mca_errmgr_correlated_coordinator_start(orte_job_t *job, bool prints, char **port,
                                              char **name, char **secret)
{
    char *problem = launch(job, prints, false, port, name, secret);
    if (NULL == problem && 0 > asprintf(&identity, "%s %s %s", *name, *port, *secret)) {
        identity = NULL;
    }
    return problem;
}

char *mca_errmgr_correlated_coordinator_restart(orte_job_t *job, bool prints)
{
    char *port = NULL, *name = NULL, *secret = NULL;
    failures = now_ms() - started_ms < STABLE_MS ? failures + 1 : 1;
    if (0 <= to_coordinator) {
        close(to_coordinator);
        to_coordinator = -1;
    }
    if (0 <= from_coordinator) {
        close(from_coordinator);
        from_coordinator = -1;
    }
    if (NULL == identity) {
        return strdup("there is no memory left");
    }
    if (FAILURES_MAX < failures) {
        return strdup("it fails again and again");
    }
    char *problem = launch(job, prints, true, &port, &name, &secret);
    free(port);
    free(name);
    free(secret);
    return problem;
}

int mca_errmgr_correlated_coordinator_fd(void)
{
    return from_coordinator;
}

void mca_errmgr_correlated_coordinator_stop(void)
{
    if (0 <= to_coordinator) {
        close(to_coordinator);
        to_coordinator = -1;
    }
    if (0 <= from_coordinator) {
        /* Wait until it has ended, so that it does not outlive mpirun. */
        bool ended = false;
        while (!ended && wait_for_answer(STOP_MS)) {
            char *rest = mca_errmgr_correlated_coordinator_read();
            ended = NULL == rest;
            free(rest);
        }
        if (!ended && 0 < coordinator) {
            kill(coordinator, SIGKILL);
        }
        coordinator = 0;
        close(from_coordinator);
        from_coordinator = -1;
    }
}

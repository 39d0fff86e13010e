/*
 * mpirun: signals that request a global checkpoint. Those that the user has chosen for it are not
 * passed on to the programs any more; mpirun handles all others as before.
 */
#include "errmgr_correlated.h"
#include "errmgr_correlated_pipe.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Those that neither Open MPI nor the kernel uses. */
static const struct {
    const char *name;
    int number;
} names[] = { { "USR1", SIGUSR1 }, { "USR2", SIGUSR2 }, { "XCPU", SIGXCPU },
              { "PWR", SIGPWR },   { "URG", SIGURG },   { "WINCH", SIGWINCH } };

enum meaning { NOTHING = 0, TAKE_CHECKPOINT, TAKE_CHECKPOINT_AND_EXIT };

#define SIGNALS_MAX 128
static enum meaning meanings[SIGNALS_MAX];
static struct sigaction before[SIGNALS_MAX];
/* Numbers of signals that came: from the handler to the event loop. */
static int signal_pipe[2] = { -1, -1 };
static opal_event_t event;

/* 0: there is no such signal to choose. */
static int number_of(const char *name, size_t length)
{
    char text[16], rest;
    int offset = 0;
    if (3 < length && 0 == strncmp(name, "SIG", 3)) {
        name += 3;
        length -= 3;
    }
    if (sizeof(text) <= length) {
        return 0;
    }
    snprintf(text, sizeof(text), "%.*s", (int) length, name);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (0 == strcmp(text, names[i].name)) {
            return names[i].number;
        }
    }
    if (0 != strcmp(text, "RTMIN") && 1 != sscanf(text, "RTMIN+%d%c", &offset, &rest)) {
        return 0;
    }
    int number = SIGRTMIN + offset;
    return 0 <= offset && number <= SIGRTMAX && number < SIGNALS_MAX ? number : 0;
}

/* One of the list: NAME or NAME:exit. */
static bool choose(const char *word)
{
    const char *colon = strchr(word, ':');
    size_t length = NULL == colon ? strlen(word) : (size_t) (colon - word);
    int number = number_of(word, length);
    if (0 == number || (NULL != colon && 0 != strcmp(":exit", colon))) {
        return false;
    }
    meanings[number] = NULL == colon ? TAKE_CHECKPOINT : TAKE_CHECKPOINT_AND_EXIT;
    return true;
}

char *mca_errmgr_correlated_signal_check(void)
{
    const char *list = mca_errmgr_correlated_params.checkpoint_signal;
    char **words = opal_argv_split(NULL == list ? "" : list, ',');
    char *problem = NULL;
    for (int i = 0; NULL != words && NULL != words[i] && NULL == problem; i++) {
        if (!choose(words[i])
            && 0 > asprintf(&problem,
                            "vprotocol_correlated_checkpoint_signal is \"%s\": give USR1, USR2, "
                            "XCPU, PWR, URG, WINCH or RTMIN+N (a global checkpoint), each with "
                            ":exit behind it if the job shall end at that checkpoint, separated by "
                            "commas",
                            list)) {
            problem = strdup("vprotocol_correlated_checkpoint_signal is invalid");
        }
    }
    opal_argv_free(words);
    return problem;
}

static void on_signal(int number)
{
    int saved = errno;
    unsigned char byte = (unsigned char) number;
    /* A full pipe: enough checkpoints are requested. */
    ssize_t wrote = write(signal_pipe[1], &byte, 1);
    (void) wrote;
    errno = saved;
}

static void on_signal_pipe(int fd, short flags, void *unused)
{
    unsigned char byte;
    (void) flags;
    (void) unused;
    while (1 == read(fd, &byte, 1)) {
        if (byte < SIGNALS_MAX && NOTHING != meanings[byte]) {
            const char *after = TAKE_CHECKPOINT_AND_EXIT == meanings[byte] ? "exit" : "stay";
            (void) mca_errmgr_correlated_coordinator_send(RUSTBTL_KEY_CHECKPOINT, after);
        }
    }
}

void mca_errmgr_correlated_signal_open(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    bool any = false;
    for (int number = 1; number < SIGNALS_MAX; number++) {
        any = any || NOTHING != meanings[number];
    }
    if (!any || 0 != pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK)) {
        return;
    }
    opal_event_set(orte_event_base, &event, signal_pipe[0], OPAL_EV_READ | OPAL_EV_PERSIST,
                   on_signal_pipe, NULL);
    opal_event_add(&event, NULL);
    sigemptyset(&action.sa_mask);
    for (int number = 1; number < SIGNALS_MAX; number++) {
        /* Replaces the handler that passes it on to the job. */
        if (NOTHING != meanings[number] && 0 != sigaction(number, &action, &before[number])) {
            meanings[number] = NOTHING;
        }
    }
}

void mca_errmgr_correlated_signal_close(void)
{
    if (0 > signal_pipe[0]) {
        return;
    }
    for (int number = 1; number < SIGNALS_MAX; number++) {
        if (NOTHING != meanings[number]) {
            sigaction(number, &before[number], NULL);
        }
    }
    opal_event_del(&event);
    close(signal_pipe[0]);
    close(signal_pipe[1]);
    signal_pipe[0] = signal_pipe[1] = -1;
}

/* ranks: 0 ; library: yes */
/* A program that handles SIGTERM and then exits as if all were well, as many do: a library for
 * LD_PRELOAD.
 *     gcc -shared -fPIC -o exit_on_term.so exit_on_term.c */
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>

static void on_term(int number)
{
    (void) number;
    _exit(0);
}

__attribute__((constructor)) static void handle_term(void)
{
    struct sigaction action = { .sa_handler = on_term };
    sigaction(SIGTERM, &action, NULL);
}

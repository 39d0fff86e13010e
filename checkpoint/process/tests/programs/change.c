/* MIB of numbers, half of them a smooth field, half indexes of a sparse matrix. PERCENT of the
 * pages change at each SIGUSR1, in one piece or SCATTERED. Prints how often they have. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE 4096

static uint64_t draw(uint64_t *state)
{
    return *state = *state * 6364136223846793005ull + 1442695040888963407ull;
}

/* Round 0 is the beginning. */
static void fill(char *page, size_t number, unsigned round)
{
    if (number % 2) {
        double *field = (double *)page, value = (double)number + round * 0.01;
        for (int i = 0; i < PAGE / 8; i++) field[i] = value = value * 0.999 + 0.01 * i;
    } else {
        uint32_t *index = (uint32_t *)page;
        uint64_t state = number + ((uint64_t)round << 32);
        for (int i = 0; i < PAGE / 4; i++)
            index[i] = (uint32_t)number * 27 + i + (uint32_t)(draw(&state) >> 40) % 8;
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) return 3;
    size_t pages = (size_t)atol(argv[1]) * 256, count = pages * (size_t)atol(argv[2]) / 100;
    int scattered = atoi(argv[3]);
    char *memory = aligned_alloc(PAGE, pages * PAGE);
    if (!memory) return 4;
    for (size_t page = 0; page < pages; page++) fill(memory + page * PAGE, page, 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    size_t start = 0;
    uint64_t state = 1;
    for (unsigned round = 1;; round++) {
        int signal;
        printf("round %u\n", round);
        fflush(stdout);
        sigwait(&set, &signal);
        for (size_t k = 0; k < count; k++) {
            size_t page = (scattered ? draw(&state) >> 33 : start + k) % pages;
            fill(memory + page * PAGE, page, round);
        }
        start = (start + count) % pages;
    }
}

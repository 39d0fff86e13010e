/* Fills memory, prints how long memcpy of the same amount takes, waits, and sums it up. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? (size_t)atol(argv[1]) : 64, words = (mib << 20) / 8;
    double seconds = argc > 2 ? atof(argv[2]) : 3;
    uint64_t *from = malloc(words * 8), *to = malloc(words * 8), state = 1, sum = 0;
    for (size_t i = 0; i < words; i++) {
        state = state * 6364136223846793005u + 1;
        from[i] = state;
    }
    double start = now();
    __asm__ volatile("" : : "r"(to), "r"(from) : "memory");
    memcpy(to, from, words * 8);
    __asm__ volatile("" : : "r"(to), "r"(from) : "memory");
    double cold = now() - start;
    start = now();
    memcpy(to, from, words * 8);
    __asm__ volatile("" : : "r"(to), "r"(from) : "memory");
    double warm = now() - start;
    sum = to[words / 3] - from[words / 3];
    free(to);
    fprintf(stderr, "memcpy of %zu MiB: %.1f ms to fresh memory, %.1f ms again\n", mib, cold * 1e3,
            warm * 1e3);
    printf("ready\n");
    fflush(stdout);
    for (start = now(); now() - start < seconds;) usleep(1000);
    for (size_t i = 0; i < words; i++) sum = sum * 31 + from[i];
    printf("sum %016lx\n", sum);
    return 0;
}

/* Counts, with a hash over all steps: only a program that makes them all has the answer. */
#include <stdio.h>
#include <unistd.h>
#include <stdint.h>

int main(void)
{
    volatile uint64_t hash = 1469598103934665603u;
    double sum = 0;
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 300; i++) {
        for (int j = 0; j < 100000; j++) {
            hash = (hash ^ (uint64_t)j) * 1099511628211u;
            sum += 1.0 / (double)(1 + (hash & 1023));
        }
        usleep(1000);
    }
    printf("hash %016lx sum %a\n", hash, sum);
    return 42;
}

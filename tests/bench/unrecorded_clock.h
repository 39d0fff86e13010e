/* A clock whose readings are no determinants. Those of MPI_Wtime and clock_gettime() are recorded
 * where everything is on, and the next access or message sends them: that is a cost of its own
 * (outcomes.c), not one of the operation that is measured.
 */
#ifndef UNRECORDED_CLOCK_H
#define UNRECORDED_CLOCK_H

#include <mpi.h>

#if defined(__x86_64__)
#include <x86intrin.h>
static double clock_ticks(void)
{
    return (double) __rdtsc();
}
#elif defined(__aarch64__)
static double clock_ticks(void)
{
    unsigned long ticks;
    __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(ticks));
    return (double) ticks;
}
#else
#error "no counter of ticks is known on this processor"
#endif

static double seconds_a_tick;

/* Compares the ticks with MPI_Wtime for 0.1 s. */
static void start_clock(void)
{
    double seconds = MPI_Wtime(), ticks = clock_ticks(), now;
    do
        now = MPI_Wtime();
    while (now - seconds < 0.1);
    seconds_a_tick = (now - seconds) / (clock_ticks() - ticks);
}

/* Seconds since some moment. */
static double clock_s(void)
{
    return clock_ticks() * seconds_a_tick;
}

#endif

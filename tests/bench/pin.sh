#!/bin/sh
# Runs a rank's program pinned to the processor of its number. For jobs of several emulated nodes:
# each orted would bind its ranks to the first processors, all to the same ones. (Not nproc, which
# answers 1 where OMP_NUM_THREADS is 1.)
exec taskset -c $((OMPI_COMM_WORLD_RANK % $(getconf _NPROCESSORS_ONLN))) "$@"

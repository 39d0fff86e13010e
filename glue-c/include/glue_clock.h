/*
 * Collectives of components that bypass the engine, counted
 * (component/src/mpi/collectives/counted.rs, docs/adr/0038).
 */
#ifndef RUSTBTL_GLUE_CLOCK_H
#define RUSTBTL_GLUE_CLOCK_H

#include <stdint.h>

#pragma GCC visibility push(hidden)

/* What the calls of a communicator are counted by. NOT_COUNTED: it is to use no functions that
 * bypass the engine. The same at all members. */
#define RUSTBTL_NOT_COUNTED UINT32_MAX
uint32_t rustbtl_clock_register(void *comm, uint32_t size, uint32_t context);
/* A function that bypasses the engine stays: there is none that could take its place. */
void rustbtl_clock_uncovered(void);
/* Around each call, which may wait here. 0: use the function below, now and ever; no `leave`. */
int32_t rustbtl_clock_enter(uint32_t handle, int32_t tag);
void rustbtl_clock_leave(void);

#pragma GCC visibility pop

#endif

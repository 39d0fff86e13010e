"""heat.c in Python, with numpy and mpi4py. usage: heat.py [STEPS]"""

import sys

import numpy as np
from mpi4py import MPI

CELLS = 1000
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
left = rank - 1 if rank > 0 else MPI.PROC_NULL
right = rank + 1 if rank < size - 1 else MPI.PROC_NULL

now = np.zeros(CELLS + 2)
for step in range(steps):
    comm.Sendrecv(now[1:2], left, 0, now[CELLS + 1:], right, 0)
    comm.Sendrecv(now[CELLS:CELLS + 1], right, 1, now[:1], left, 1)
    if rank == 0:
        now[0] = 1.0  # the rod is heated at one end
    now[1:-1] += 0.25 * (now[:-2] - 2.0 * now[1:-1] + now[2:])

total = comm.reduce(float(now[1:-1].sum()), root=0)
if rank == 0:
    print(f"heat in the rod after {steps} steps: {total:.6f}", flush=True)

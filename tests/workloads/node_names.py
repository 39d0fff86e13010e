"""Ranks that ask on which node they are, as Python programs do, before every step.

usage: node_names.py ITERATIONS GATE
GATE: see gate.h. What they were told first must be true for ever.
"""

import os
import socket
import sys
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
me, size = comm.Get_rank(), comm.Get_size()
iterations, gate, limit = int(sys.argv[1]), sys.argv[2], 0


def look_at(path):
    """Iterations that may be gone through now: rank 0 reads the gate, all know."""
    number = 0
    if me == 0:
        with open(path) as file:
            number = int(file.read() or 0)
    return comm.bcast(number, root=0)


def told():
    """The name of the node, and how many processors it has."""
    names = {socket.gethostname(), os.uname().nodename, MPI.Get_processor_name()}
    return sorted(names), os.cpu_count()


first, total = told(), me + 1
color = sum(ord(c) * 31**i for i, c in enumerate(first[0][0])) % 2**30
for k in range(iterations):
    while k >= limit:
        limit = look_at(gate)
        if k >= limit:
            time.sleep(0.001)
    if told() != first or len(first[0]) != 1:
        print(f"DIFFERENT in step {k} of rank {me}: {told()}, it was {first}", flush=True)
        comm.Abort(3)
    node = comm.Split(color, me)
    total = (total * 31 + node.allreduce(total) * node.Get_size()) % 2**40
    node.Free()
    total = (total + comm.allreduce(total)) % 2**40
total = comm.reduce(total, op=MPI.BXOR, root=0)
if me == 0:
    print(f"HASH {total:016x}", flush=True)

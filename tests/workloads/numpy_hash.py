"""A Python program with numpy and mpi4py. usage: numpy_hash.py ITERATIONS [GATE]

GATE: see gate.h.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
me, size = comm.Get_rank(), comm.Get_size()
iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 300
rng = np.random.default_rng(me)
block = rng.integers(0, 1 << 62, size=20000, dtype=np.uint64)
incoming = np.empty_like(block)
gate = sys.argv[2] if len(sys.argv) > 2 else None
limit = 0


def look_at(path):
    """Iterations that may be gone through now: rank 0 reads the gate, all know."""
    number = 0
    if me == 0:
        with open(path) as file:
            number = int(file.read() or 0)
    return comm.bcast(number, root=0)


for k in range(iterations):
    while gate and k >= limit:
        limit = look_at(gate)
        if k >= limit:
            time.sleep(0.001)
    comm.Sendrecv(block, (me + 1) % size, 1, incoming, (me - 1) % size, 1)
    block = block * np.uint64(6364136223846793005) + (incoming ^ np.roll(block, k % 97))
    if k % 50 == 7:
        words = comm.allgather({"rank": me, "word": int(block[k % len(block)])})
        block[0] ^= np.uint64(sum(w["word"] * (w["rank"] + 1) for w in words) & ((1 << 62) - 1))
total = comm.reduce(int(np.bitwise_xor.reduce(block)), op=MPI.BXOR, root=0)
if me == 0:
    print(f"HASH {total:016x}", flush=True)

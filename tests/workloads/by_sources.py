"""As by_sources.cpp: rank 1 reads a clock or draws random numbers in each round, as Python does.

usage: by_sources.py ITERATIONS GATE (see gate.h)
"""

import datetime
import os
import random
import secrets
import sys
import time
import uuid

from mpi4py import MPI

comm = MPI.COMM_WORLD
me = comm.Get_rank()
iterations, gate = int(sys.argv[1]), sys.argv[2]
ROUND_S, ROUNDS_AFTER, LOOK_EACH = 500e-6, 200, 10


def seeded():
    """The system's random numbers are the seed."""
    random.seed()
    return random.getrandbits(32)


def from_device():
    with open("/dev/urandom", "rb", buffering=0) as file:
        return file.read(8)


def late():
    """A generator of a module that is imported after MPI_Init, and draws when it is made."""
    import numpy

    return int(numpy.random.default_rng().integers(1 << 30))


SOURCES = {
    "time.time": time.time,
    "time.time_ns": time.time_ns,
    "time.monotonic": time.monotonic,
    "time.perf_counter_ns": time.perf_counter_ns,
    "time.process_time_ns": time.process_time_ns,
    "time.thread_time_ns": time.thread_time_ns,
    "datetime.now": lambda: datetime.datetime.now().isoformat(),
    "os.times": lambda: tuple(os.times()),
    "random.seed": seeded,
    "random.SystemRandom": random.SystemRandom().random,
    "os.urandom": lambda: os.urandom(8),
    "secrets": lambda: secrets.token_hex(8),
    "uuid.uuid4": lambda: str(uuid.uuid4()),
    "/dev/urandom": from_device,
    "numpy.random": late,
}


def look_at(path):
    """Iterations that may be gone through now: rank 0 reads the gate, all know."""
    number = 0
    if me == 0:
        with open(path) as file:
            number = int(file.read() or 0)
    return comm.bcast(number, root=0)


seen = {name: [] for name in SOURCES}
names = list(SOURCES)
left, i = -1, 0
while left != 0:
    name = names[i % len(names)]
    got = comm.bcast(SOURCES[name]() if me == 1 else None, root=1)
    seen[name].append(got)
    if left < 0 and i % LOOK_EACH == 0 and look_at(gate) >= iterations:
        left = ROUNDS_AFTER
    if left > 0:
        left -= 1
    i += 1
    time.sleep(ROUND_S)
first = comm.bcast(seen, root=1)
wrong = [name for name in names if first[name] != seen[name]]
for name in wrong:
    print(f"rank {me}: rank 1 got something else from {name}", file=sys.stderr, flush=True)
if comm.allreduce(len(wrong)):
    answer = "contradicts itself"
else:
    answer = "consistent"
if me == 0:
    print("HASH", answer, flush=True)

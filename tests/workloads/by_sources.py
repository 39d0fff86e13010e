"""As by_sources.cpp: rank 1 reads a clock or draws random numbers in each round, as Python does.

usage: by_sources.py ITERATIONS GATE (see gate.h)
       by_sources.py ITERATIONS FOLDER killed
"""

import ctypes
import datetime
import os
import random
import secrets
import signal
import sys
import time
import uuid

from mpi4py import MPI

comm = MPI.COMM_WORLD
me = comm.Get_rank()
iterations, gate = int(sys.argv[1]), sys.argv[2]
killed = "killed" in sys.argv[3:]
if killed:
    gate, failed = os.path.join(gate, "checkpoint"), os.path.join(gate, "failed")
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
    if me == 0 and os.path.exists(path):
        with open(path) as file:
            number = int(file.read() or 0)
    return comm.bcast(number, root=0)


def is_first_time():
    """A restored process has failed once. By the kernel's call mkdir: what is made by the C
    library's is gone after a rollback."""
    return ctypes.CDLL(None).syscall(83, failed.encode(), 0o700) == 0


seen = {name: [] for name in SOURCES}
names = list(SOURCES)
left, i = -1, 0
while left != 0:
    name = names[i % len(names)]
    got = comm.bcast(SOURCES[name]() if me == 1 else None, root=1)
    seen[name].append(got)
    if left < 0 and i % LOOK_EACH == 0 and look_at(gate) >= iterations:
        left = ROUNDS_AFTER + killed * 3 * len(names)
    if killed and left == ROUNDS_AFTER and me == 1 and is_first_time():
        os.kill(os.getpid(), signal.SIGKILL)
    if left > 0:
        left -= 1
    i += 1
    time.sleep(ROUND_S)
first = comm.bcast(seen, root=1)
wrong = [name for name in names if first[name] != seen[name]]
for name in wrong:
    print(f"rank {me}: rank 1 got something else from {name}", file=sys.stderr, flush=True)
most = comm.allreduce(len(wrong), op=MPI.MAX)
answer = f"contradicts itself in {most} of {len(names)} sources" if most else "consistent"
if me == 0:
    print("HASH", answer, flush=True)

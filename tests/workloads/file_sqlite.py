"""Each rank has databases of SQLite, one with a rollback journal and one with a write-ahead log,
reads what it has written to them, and changes it. What it finds must be what it has in memory.
usage: file_sqlite.py ITERATIONS FOLDER GATE (see gate.h)
"""

import os
import sqlite3
import sys
import time

from mpi4py import MPI

ROWS = 32
comm = MPI.COMM_WORLD
me, size = comm.Get_rank(), comm.Get_size()
iterations, folder, gate = int(sys.argv[1]), sys.argv[2], sys.argv[3]
limit = 0


def look_at(path):
    """Iterations that may be gone through now: rank 0 reads the gate, all know."""
    number = 0
    if me == 0:
        with open(path) as file:
            number = int(file.read() or 0)
    return comm.bcast(number, root=0)


def database(mode):
    path = f"{folder}/rank-{me}.{mode}.db"
    for ending in ("", "-journal", "-wal", "-shm"):
        if os.path.exists(path + ending):
            os.remove(path + ending)
    base = sqlite3.connect(path, isolation_level=None)
    base.execute(f"PRAGMA journal_mode={mode}")
    base.execute("PRAGMA synchronous=OFF")
    base.execute("CREATE TABLE t (slot INTEGER PRIMARY KEY, value INTEGER, text TEXT)")
    return base


bases = [database(mode) for mode in ("DELETE", "WAL")]
memory = [None] * ROWS
value = me
for k in range(iterations):
    while k >= limit:
        limit = look_at(gate)
        if k >= limit:
            time.sleep(0.001)
    other = comm.sendrecv(value, dest=(me + 1) % size, source=(me - 1) % size)
    value = (value * 6364136223846793005 + 2 * other + 1) & (1 << 62) - 1
    slot = k % ROWS
    for base in bases:
        found = base.execute("SELECT value FROM t WHERE slot=?", (slot,)).fetchone()
        if (found and found[0]) != memory[slot]:
            print(f"rank {me}, iteration {k}: the database has {found}, it should have "
                  f"{memory[slot]}", file=sys.stderr, flush=True)
            comm.Abort(3)
        base.execute("BEGIN")
        base.execute("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", (slot, value, "x" * (k % 900)))
        base.execute("COMMIT")
    memory[slot] = value
for base in bases:
    kept = [row[0] for row in base.execute("SELECT value FROM t ORDER BY slot")]
    assert kept == memory[:len(kept)], "the whole table"
total = comm.reduce(value, op=MPI.BXOR, root=0)
if me == 0:
    print(f"HASH {total:016x}", flush=True)

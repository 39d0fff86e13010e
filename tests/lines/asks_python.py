"""asks.c in Python: asks for a checkpoint, dies in its first life, says in its second where it asked.

usage: asks_python.py FOLDER, in which mpix_correlated.py lies
"""

import sys

sys.path.insert(0, sys.argv[1])

import mpix_correlated  # noqa: E402
from mpi4py import MPI  # noqa: E402

comm = MPI.COMM_WORLD
line = 0
if comm.Get_rank() == 1:
    line = mpix_correlated.checkpoint(all=True, wait=True)
comm.Barrier()
if mpix_correlated.restarts() == 0:
    comm.Abort(9)
if comm.Get_rank() == 1:
    print("HASH", 0 if line else 1, line, mpix_correlated.restarts(), flush=True)

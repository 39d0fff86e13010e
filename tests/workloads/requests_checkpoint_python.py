"""requests_checkpoint.c in Python: requests a checkpoint, fails in its first incarnation, and prints
the checkpoint in its second.

usage: requests_checkpoint_python.py FOLDER, in which mpix_correlated.py lies
"""

import sys

sys.path.insert(0, sys.argv[1])

import mpix_correlated  # noqa: E402
from mpi4py import MPI  # noqa: E402

comm = MPI.COMM_WORLD
checkpoint = 0
if comm.Get_rank() == 1:
    checkpoint = mpix_correlated.checkpoint(all=True, wait=True)
comm.Barrier()
if mpix_correlated.restarts() == 0:
    comm.Abort(9)
if comm.Get_rank() == 1:
    print("HASH", 0 if checkpoint else 1, checkpoint, mpix_correlated.restarts(), flush=True)

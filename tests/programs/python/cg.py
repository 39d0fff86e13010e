"""Conjugate gradients on a Poisson problem with numpy and mpi4py: typed buffers, pickled objects,
nonblocking halo rows, a split communicator, and a comparison with the solution on one process."""

import sys

import numpy as np
from mpi4py import MPI

SIDE, TOLERANCE = 64, 1e-10
world = MPI.COMM_WORLD
rank, size = world.rank, world.size

# Everybody learns the problem as a pickled object from rank 0.
problem = {"side": SIDE, "seed": 7, "names": ["poisson"] * 3} if rank == 0 else None
problem = world.bcast(problem)
assert problem["side"] == SIDE and problem["names"][2] == "poisson", problem
rows = [SIDE * (k + 1) // size - SIDE * k // size for k in range(size)]
first = sum(rows[:rank])
up, down = (rank - 1 if rank else MPI.PROC_NULL), (rank + 1 if rank < size - 1 else MPI.PROC_NULL)


def apply(x, comm=world):
    """The five-point Laplacian on this rank's rows; the rows of the neighbours come by messages."""
    padded = np.zeros((x.shape[0] + 2, SIDE + 2))
    padded[1:-1, 1:-1] = x
    if comm is not None:
        above, below = np.zeros(SIDE), np.zeros(SIDE)
        requests = [
            comm.Irecv(above, up, 1),
            comm.Irecv(below, down, 2),
            comm.Isend(x[-1].copy(), down, 1),
            comm.Isend(x[0].copy(), up, 2),
        ]
        MPI.Request.Waitall(requests)
        padded[0, 1:-1], padded[-1, 1:-1] = above, below
    return 4 * x - padded[:-2, 1:-1] - padded[2:, 1:-1] - padded[1:-1, :-2] - padded[1:-1, 2:]


def solve(b, comm=world):
    dot = (
        (lambda u, v: comm.allreduce(float((u * v).sum())))
        if comm
        else (lambda u, v: (u * v).sum())
    )
    x, r = np.zeros_like(b), b.copy()
    p, rho = r.copy(), dot(r, r)
    for step in range(1000):
        q = apply(p, comm)
        alpha = rho / dot(p, q)
        x += alpha * p
        r -= alpha * q
        rho, before = dot(r, r), rho
        if rho < TOLERANCE**2:
            return x, step
        p = r + rho / before * p
    sys.exit("no convergence: FAILED")


whole = np.random.default_rng(problem["seed"]).random((SIDE, SIDE))
mine, steps = solve(whole[first : first + rows[rank]])
gathered = np.zeros((SIDE, SIDE)) if rank == 0 else None
counts = [n * SIDE for n in rows]
world.Gatherv(mine, [gathered, counts, None, MPI.DOUBLE] if rank == 0 else None)

# Halves of the job talk in pickled objects of their own, large and small.
half = world.Split(rank % 2, rank)
told = half.allgather({"rank": rank, "data": np.arange(rank * 1000)})
assert [entry["rank"] for entry in told] == list(range(rank % 2, size, 2)), told
assert all((entry["data"] == np.arange(entry["rank"] * 1000)).all() for entry in told)
half.Free()

if rank == 0:
    alone, _ = solve(whole, None)
    error = abs(gathered - alone).max()
    print(f"{steps} steps, error {error:.1e}: " + ("PASSED" if error < 1e-7 else "FAILED"))

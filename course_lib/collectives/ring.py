"""An all-reduce in a ring, one step at a time, to look at: MPI and NCCL do it like this for large arrays.

Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from __future__ import annotations

import numpy as np


def allreduce(mine: np.ndarray) -> np.ndarray:
    """On each of n ranks: sum an array over all, in 2 (n - 1) steps, each of which sends one piece to the next rank.

    Parameters
    ----------
    mine : numpy.ndarray
        This rank's array, of n pieces, one number each: shape ``(n,)``.

    Returns
    -------
    numpy.ndarray
        What the rank held at first, and after each step: shape ``(2 n - 1, n)``.

    Raises
    ------
    ValueError
        The array has another shape.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    n, rank = comm.Get_size(), comm.Get_rank()
    if np.shape(mine) != (n,):
        raise ValueError(f"ring.allreduce takes one number for each of {n} ranks; got shape {np.shape(mine)}, on rank {rank}.")
    held, came = [np.array(mine, float)], np.empty(1)
    for step in range(2 * n - 2):
        adds = step < n - 1
        turn = step if adds else step - (n - 1)
        goes, comes = (rank - turn + (not adds)) % n, (rank - turn - adds) % n
        now = held[-1].copy()
        comm.Sendrecv(now[goes : goes + 1].copy(), (rank + 1) % n, 0, came, (rank - 1) % n, 0)
        now[comes] = now[comes] + came[0] if adds else came[0]
        held.append(now)
    return np.array(held)

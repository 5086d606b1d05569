"""Ring all-reduce that records each step, for display; MPI and NCCL use this algorithm for large arrays.

Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from __future__ import annotations

import numpy as np


def allreduce(mine: np.ndarray) -> np.ndarray:
    """Sum an array over all n ranks in 2 (n - 1) steps, each of which sends one piece to the next rank; collective.

    Parameters
    ----------
    mine : numpy.ndarray
        This rank's array, of n pieces with one number each: shape ``(n,)``.

    Returns
    -------
    numpy.ndarray
        This rank's array at the start and after each step: shape ``(2 n - 1, n)``, float64.

    Raises
    ------
    ValueError
        The shape is not ``(n,)``.
    """
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    n, rank = comm.Get_size(), comm.Get_rank()
    if np.shape(mine) != (n,):
        raise ValueError(f"ring.allreduce takes one number for each of the {n} ranks; got shape {np.shape(mine)} on rank {rank}.")
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

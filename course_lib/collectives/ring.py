"""A ring all-reduce step by step, for display; MPI and NCCL use this algorithm for large arrays.

Patarasuk and Yuan, 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
"""

from __future__ import annotations

import numpy as np


def allreduce(mine: np.ndarray) -> np.ndarray:
    """Compute what this rank holds at each of the 2 (n - 1) steps of a ring, from the arrays of all n ranks; collective.

    Piece p starts at rank p. It is complete on the rank before that after n - 1 steps, and from there it goes round once more.

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
    everyone = np.empty((n, n))  # by rank and piece
    comm.Allgather(np.array(mine, float), everyone)
    held = np.tile(everyone[rank], (2 * n - 1, 1))
    for piece, values in enumerate(everyone.T):
        way = (rank - piece) % n  # steps from where the piece starts
        held[way:, piece] = np.roll(values, -piece)[: way + 1].sum()
        held[n - 1 + (way + 1) % n :, piece] = values.sum()
    return held

"""The calls that ranks can make together, as the status board has them: in numbers."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

OPERATIONS = ["", "Allreduce", "Allgather", "Reduce_scatter", "Split", "Barrier", "Bcast", "Scatter", "Gather", "Iallreduce"]
ALLREDUCE, ALLGATHER, REDUCE_SCATTER, SPLIT, BARRIER, BCAST, SCATTER, GATHER, IALLREDUCE = range(1, len(OPERATIONS))
ROOTED = ("Bcast", "Scatter", "Gather")
REDUCTIONS = ["", "SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "your own"]
_CODES = [(getattr(MPI, name), code) for code, name in enumerate(REDUCTIONS[:-1]) if name]
DTYPES = {np.dtype(c).num: np.dtype(c).name for c in "?bBhHiIlLqQefdgFDG"}


def reduction_code(op: MPI.Op) -> int:
    """The place of an operation in `REDUCTIONS`."""
    for known, code in _CODES:
        if op is known or op == known:
            return code
    return len(REDUCTIONS) - 1

"""The calls that ranks can make together, as the status board has them: in numbers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

COLLECTIVES = ["", "Allreduce", "Allgather", "Reduce_scatter", "Split", "Barrier", "Bcast", "Scatter", "Gather", "Iallreduce"]
COLLECTIVES += ["Iallgather", "Ireduce_scatter", "Alltoall", "Alltoallv"]
OPERATIONS = [*COLLECTIVES, "Send", "Recv", "Sendrecv", "Isend", "Irecv"]
ALLREDUCE, ALLGATHER, REDUCE_SCATTER, SPLIT, BARRIER, BCAST, SCATTER, GATHER, IALLREDUCE = range(1, 10)
IALLGATHER, IREDUCE_SCATTER, ALLTOALL, ALLTOALLV, SEND, RECV, SENDRECV, ISEND, IRECV = range(10, len(OPERATIONS))
LARGEST_TAG = 32767  # what each MPI takes
ROOTED = ("Bcast", "Scatter", "Gather")
REDUCTIONS = ["", "SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "your own"]
DTYPES = {np.dtype(c).num: np.dtype(c).name for c in "?bBhHiIlLqQefdgFDG"}


def reduction_code(op: MPI.Op) -> int:
    """The place of an operation in `REDUCTIONS`."""
    if not isinstance(op, type(_reductions()[0])):
        raise TypeError(f"op must be an operation of MPI, such as MPI.MAX; got {op!r}. Leave it out for the sum.")
    for code, known in enumerate(_reductions()):
        if op is known or op == known:
            return code + 1
    return len(REDUCTIONS) - 1


@cache
def _reductions() -> tuple[MPI.Op, ...]:
    from mpi4py import MPI

    return tuple(getattr(MPI, name) for name in REDUCTIONS[1:-1])

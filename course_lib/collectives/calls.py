"""The calls that ranks make: operations, reductions and dtypes in one table, and `Call`, one of them with its arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

# By number, as the status board and the frames to the coordinator have them.
COLLECTIVES = ["", "Allreduce", "Allgather", "Reduce_scatter", "Split", "Barrier", "Bcast", "Scatter", "Gather", "Iallreduce"]
COLLECTIVES += ["Iallgather", "Ireduce_scatter", "Alltoall", "Alltoallv", "Ibarrier"]
OPERATIONS = [*COLLECTIVES, "Send", "Recv", "Sendrecv", "Isend", "Irecv"]
ALLREDUCE, ALLGATHER, REDUCE_SCATTER, SPLIT, BARRIER, BCAST, SCATTER, GATHER, IALLREDUCE = range(1, 10)
IALLGATHER, IREDUCE_SCATTER, ALLTOALL, ALLTOALLV, IBARRIER, SEND, RECV = range(10, 17)
BLOCKING_FORM = {IALLREDUCE: ALLREDUCE, IALLGATHER: ALLGATHER, IREDUCE_SCATTER: REDUCE_SCATTER, IBARRIER: BARRIER}  # of a non-blocking one
REDUCING = {ALLREDUCE, REDUCE_SCATTER, IALLREDUCE, IREDUCE_SCATTER}
ROOTED = {BCAST, SCATTER, GATHER}
UNEVEN = {ALLTOALLV}  # whose parts differ in size: a rank's call says in `counts` what goes to whom
WILDCARD, LARGEST_TAG = -1, 32767  # any source or tag; what each MPI takes

# The name of each of MPI's reductions, and NumPy's function for it; the place is its code, from 1.
REDUCTIONS = [
    ("SUM", np.add),
    ("PROD", np.multiply),
    ("MIN", np.minimum),
    ("MAX", np.maximum),
    ("LAND", np.logical_and),
    ("LOR", np.logical_or),
    ("LXOR", np.logical_xor),
    ("BAND", np.bitwise_and),
    ("BOR", np.bitwise_or),
    ("BXOR", np.bitwise_xor),
]
SUM, USER_DEFINED = 1, len(REDUCTIONS) + 1  # codes: of the sum, and of a reduction that is the caller's own
DTYPES = {np.dtype(c).num: np.dtype(c) for c in "?bBhHiIlLqQefdgFDG"}
SUMMABLE_DTYPES = frozenset(np.dtype(c).num for c in "bBhHiIlLqQfdgFDG")  # that are added as they are


class Call:
    """A collective as one rank calls it.

    Parameters
    ----------
    operation : int
        Its place in `OPERATIONS`.
    dtype : int
        NumPy's number of the dtype; -1 where no array is exchanged.
    count : int
        Elements, which must be the same on all ranks.
    detail : int
        What else must be the same: the code of the reduction, plus 16 times root + 1 or `counts_digest` of the counts.
    send, recv : array or None
        `send` may be MPI.IN_PLACE.
    contribution : array, optional
        What this rank brings, where that is not `send`.
    op : MPI.Op, optional
    root : int

    Attributes
    ----------
    signature : tuple of int
        What must be the same on all ranks: operation, dtype, count and detail.
    counts : sequence of int, optional
        The sizes of the parts, in elements: of a reduce-scatter, or what an all-to-all sends to each rank.
    starts : sequence of int, optional
        Where the parts begin in `send`.
    recv_counts, recv_starts : sequence of int, optional
        The same for `recv`.
    """

    counts: Sequence[int] | None = None
    starts: Sequence[int] | None = None
    recv_counts: Sequence[int] | None = None
    recv_starts: Sequence[int] | None = None

    def __init__(
        self, operation: int, dtype: int = -1, count: int = 0, detail: int = 0, send=None, recv=None, contribution=None, op=None, root=0
    ):
        self.operation, self.detail, self.signature = operation, detail, (operation, dtype, count, detail)
        self.send, self.recv, self.contribution = send, recv, send if contribution is None else contribution
        self.op, self.root = op, root


def reduction_code(op: MPI.Op) -> int:
    """The code of a reduction: its place in `REDUCTIONS`, from 1, or `USER_DEFINED`.

    Raises
    ------
    TypeError
        It is no operation of MPI.
    """
    if not isinstance(op, type(_reductions()[0])):
        raise TypeError(f"op must be an operation of MPI, such as MPI.MAX; got {op!r}. Leave it out for the sum.")
    for code, known in enumerate(_reductions()):
        if op is known or op == known:
            return code + 1
    return USER_DEFINED


def counts_digest(counts: list[int]) -> int:
    """A number that tells two lists of counts from each other, as a call's detail has room for it."""
    return (hash(tuple(counts)) & 0xFFFF_FFFF_FFFF) * 16


@cache
def _reductions() -> tuple[MPI.Op, ...]:
    from mpi4py import MPI

    return tuple(getattr(MPI, name) for name, _ in REDUCTIONS)

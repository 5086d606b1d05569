"""Calls: the tables of operations, reductions and dtypes, and `Call`, a collective as one rank calls it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

# The index is the operation's code, on the status board and in the frames to the coordinator.
COLLECTIVES = ["", "Allreduce", "Allgather", "Reduce_scatter", "Split", "Barrier", "Bcast", "Scatter", "Gather", "Iallreduce"]
COLLECTIVES += ["Iallgather", "Ireduce_scatter", "Alltoall", "Alltoallv", "Ibarrier"]
OPERATIONS = [*COLLECTIVES, "Send", "Recv", "Sendrecv", "Isend", "Irecv"]
ALLREDUCE, ALLGATHER, REDUCE_SCATTER, SPLIT, BARRIER, BCAST, SCATTER, GATHER, IALLREDUCE = range(1, 10)
IALLGATHER, IREDUCE_SCATTER, ALLTOALL, ALLTOALLV, IBARRIER, SEND, RECV = range(10, 17)
BLOCKING_FORM = {IALLREDUCE: ALLREDUCE, IALLGATHER: ALLGATHER, IREDUCE_SCATTER: REDUCE_SCATTER, IBARRIER: BARRIER}  # of a nonblocking one
REDUCING = {ALLREDUCE, REDUCE_SCATTER, IALLREDUCE, IREDUCE_SCATTER}
ROOTED = {BCAST, SCATTER, GATHER}
UNEVEN = {ALLTOALLV}  # the parts differ in size and from rank to rank: `Call.counts` has the elements for each rank
WILDCARD, LARGEST_TAG = -1, 32767  # any tag; the largest one that every MPI supports (MPI 4.1, section 9.1.2)

# MPI's reductions and the NumPy function of each; the code of a reduction is its position, from 1.
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
SUM, USER_DEFINED = 1, len(REDUCTIONS) + 1  # codes: the sum, and any reduction made by MPI.Op.Create
DTYPES = {np.dtype(c).num: np.dtype(c) for c in "?bBhHiIlLqQefdgFDG"}
SUMMABLE_DTYPES = frozenset(np.dtype(c).num for c in "bBhHiIlLqQfdgFDG")  # np.add gives MPI's sum; not bool


class Call:
    """A collective as one rank calls it; `Communicator` makes it, and a `Transport` carries it out.

    Parameters
    ----------
    operation : int
        Index in `OPERATIONS`.
    dtype : int
        ``numpy.dtype.num``; -1 if no array is exchanged.
    count : int
        Elements; the same on all ranks.
    detail : int
        The remaining arguments that must agree: the reduction's code, plus 16 times (root + 1) or `counts_digest` of the counts.
    send, recv : array or None
        The buffers; `send` may be MPI.IN_PLACE.
    contribution : array, optional
        This rank's input if it is not `send`, as with MPI.IN_PLACE.
    op : MPI.Op, optional
    root : int
        Rank within the group.

    Attributes
    ----------
    signature : (int, int, int, int)
        Operation, dtype, count and detail: what all ranks of the group must agree on. Ranks compare it before any data moves.
    counts : sequence of int, optional
        Elements per rank: the parts of a reduce-scatter, or what an all-to-all sends to each rank.
    starts : sequence of int, optional
        Offset of each part in `send`, in elements.
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
    """Return the code of a reduction: its position in `REDUCTIONS`, from 1, or `USER_DEFINED`.

    Raises
    ------
    TypeError
        `op` is not an MPI.Op.
    """
    if not isinstance(op, type(_reductions()[0])):
        raise TypeError(f"op must be an MPI operation such as MPI.MAX; got {op!r}. Leave it out for the sum.")
    for code, known in enumerate(_reductions()):
        if op is known or op == known:
            return code + 1
    return USER_DEFINED


def counts_digest(counts: list[int]) -> int:
    """Hash a list of counts into the bits of `Call.detail` above the reduction's code: a multiple of 16 below 2**52."""
    return (hash(tuple(counts)) & 0xFFFF_FFFF_FFFF) * 16


@cache
def _reductions() -> tuple[MPI.Op, ...]:
    from mpi4py import MPI

    return tuple(getattr(MPI, name) for name, _ in REDUCTIONS)

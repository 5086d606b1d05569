"""Bytes that each rank sent, by operation and group.

Payload is the size of the full array, in bytes. Wire is what one rank sends when the collective runs as a ring (Patarasuk and Yuan,
2009, "Bandwidth optimal all-reduce algorithms", section 3): with n ranks and a full array of B bytes, 2 (n-1)/n B for an all-reduce
and (n-1)/n B for an all-gather or a reduce-scatter. For operations with a root, both payload and wire are what the rank itself
sends: in a scatter only the root sends, in a gather every rank but the root, and in a broadcast every rank but the last of the ring
passes the array on. A message ("Send") counts as sent; an all-to-all counts what a rank sends, of which (n-1)/n travel; an
Alltoallv counts what leaves the rank. Averages that the ready-made wrapper computes in shared memory have a payload, under a name
of their own, and nothing on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_RING_PASSES = {"Allreduce": 2, "Allgather": 1, "Reduce_scatter": 1, "Alltoall": 1, "Barrier": 0, "Allreduce in shared memory": 0}
_SENT_ONCE = ("Bcast", "Scatter", "Gather", "Send", "Alltoallv")


@dataclass(frozen=True)
class TrafficEntry:
    """Traffic of one rank: calls of one operation on one group.

    `ranks` are world ranks; `payload` and `wire` are bytes, summed over the calls.
    """

    operation: str
    ranks: tuple[int, ...]
    calls: int
    payload: int
    wire: float


class _Counts(dict):
    """Counts of one group's calls: [calls, payload] by operation."""

    def __init__(self, ranks: tuple[int, ...]):
        super().__init__()
        self.ranks = ranks

    def __missing__(self, operation: str) -> list[int]:
        if on_first_call:
            on_first_call(self.ranks, operation)
        return self.setdefault(operation, [0, 0])


_counts: dict[tuple[int, ...], _Counts] = {}
_sent_before = 0.0  # bytes on the wire that `reset` has set back to zero
on_proc_null_message: Callable[[str], None] | None = None  # called for each message to or from MPI.PROC_NULL
on_first_call: Callable[[tuple[int, ...], str], None] | None = None  # called at the first call of each operation on each group


def counters(ranks: tuple[int, ...]) -> dict[str, list[int]]:
    """Counts of this rank's calls on the group `ranks`: [calls, payload] by operation."""
    return _counts.setdefault(ranks, _Counts(ranks))


def wire_bytes(operation: str, n: int, payload: float) -> float:
    """Bytes that one of n ranks sends for a full array of `payload` bytes, by the ring formula.

    >>> wire_bytes("Allreduce", 4, 1000)
    1500.0
    """
    return float(payload) if operation in _SENT_ONCE else _RING_PASSES[operation] * (n - 1) / n * payload


def entries() -> list[TrafficEntry]:
    """Messages and collectives of this rank since the last `reset`."""
    return [
        TrafficEntry(operation, ranks, calls, payload, wire_bytes(operation, len(ranks), payload))
        for ranks, by_operation in _counts.items()
        for operation, (calls, payload) in by_operation.items()
    ]


def sent() -> float:
    """Bytes on the wire that this rank has sent since its process started; any thread may ask."""
    counted = [(operation, len(by.ranks), count[1]) for by in [*_counts.values()] for operation, count in [*by.items()]]
    return _sent_before + sum(wire_bytes(*each) for each in counted)


def reset() -> None:
    """Reset all counts to zero; `sent` still includes them."""
    global _sent_before
    _sent_before = sent()
    for by_operation in _counts.values():
        by_operation.clear()

"""Count what a rank has sent since it was asked for something, as the broker has seen it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from course_lib.cluster.isolated.reference_collectives import outgoing_data, sent_bytes
from course_lib.cluster.isolated.rendezvous import Arrival
from course_lib.collectives.calls import BLOCKING_FORM, COLLECTIVES, DTYPES, UNEVEN

MAX_KEPT_BYTES, MAX_KEPT_ARRAYS = 64 << 20, 2000  # bytes and arrays of what a rank has sent, where that is kept
FREE_EMPTY_CALLS, FREE_BARRIERS = 32, 256  # calls that carry nothing, in one request, that are not counted
TAG_BYTES = 2  # bytes that a tag carries


class TrafficCounter:
    """Calls and bytes of one rank.

    Parameters
    ----------
    keep : bool
        Whether somebody wants to look at what it sends.

    Attributes
    ----------
    kept : list of numpy.ndarray or None
        What it has sent to others, flat, the latest at the end.
    """

    def __init__(self, keep: bool = False):
        self.kept: list[np.ndarray] | None = [] if keep else None
        self._sent: dict[tuple[tuple[int, ...], str], list[int]] = {}
        self._empty: dict[str, int] = defaultdict(int)  # calls that carried nothing, by operation

    def message(self, group: tuple[int, ...], dtype: int, tag: int, data: bytes, to_itself: bool) -> None:
        """It has sent a message."""
        self._count(group, "Send", len(data) + (TAG_BYTES if tag else 0), bool(data or tag))  # the receiver learns the tag
        if not to_itself:
            self._keep(dtype, data)

    def collective(self, members: tuple[int, ...], arrival: Arrival, i: int) -> None:
        """It was member i in a collective to which all have come."""
        signature, operation = arrival.header["signature"], _operation(arrival)
        has_data = any(arrival.header["counts"]) if signature[0] in UNEVEN else signature[2] > 0
        self._count(members, operation, sent_bytes(arrival.header, i, len(members)), has_data)
        self._keep(signature[1], outgoing_data(arrival.header, arrival.payload, i, len(members)))

    def entries(self, rank: int, begun: Iterable[tuple[tuple[int, ...], Arrival]]) -> list[list]:
        """Operation, ranks, calls and payload in bytes, with what this `rank` has begun and others have not come to."""
        sent = {kind: list(counts) for kind, counts in self._sent.items()}
        for members, arrival in begun:
            nbytes = sent_bytes(arrival.header, members.index(rank), len(members))
            if nbytes is not None:
                entry = sent.setdefault((members, _operation(arrival)), [0, 0])
                entry[0] += 1
                entry[1] += nbytes
        return [[operation, list(members), *counts] for (members, operation), counts in sent.items()]

    def _count(self, members: tuple[int, ...], operation: str, nbytes: int | None, has_data: bool) -> None:
        if not has_data and len(members) > 1:
            self._empty[operation] += 1
            if self._empty[operation] > (
                FREE_BARRIERS if operation == "Barrier" else FREE_EMPTY_CALLS
            ):  # who comes first, or at all, is news as well
                operation, nbytes = "Allgather", 8 * len(members)
        if nbytes is not None:
            entry = self._sent.setdefault((members, operation), [0, 0])
            entry[0] += 1
            entry[1] += nbytes

    def _keep(self, dtype: int, data: bytes) -> None:
        """Keep it, where somebody wants to look at it and there is room."""
        if self.kept is None or not data or dtype not in DTYPES or len(self.kept) == MAX_KEPT_ARRAYS:
            return
        if sum(array.nbytes for array in self.kept) + len(data) <= MAX_KEPT_BYTES:
            self.kept.append(np.frombuffer(data, DTYPES[dtype]))


def _operation(arrival: Arrival) -> str:
    """The name under which it is counted: a call that does not block counts as the one that does."""
    operation = arrival.header["signature"][0]
    return COLLECTIVES[BLOCKING_FORM.get(operation, operation)]

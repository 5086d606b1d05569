"""Traffic of an isolated rank within one request, as counted by the coordinator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from course_lib.collectives.calls import BLOCKING_FORM, COLLECTIVES, DTYPES, UNEVEN
from course_lib.collectives.coordination.reference_collectives import outgoing_data, sent_bytes
from course_lib.collectives.coordination.rendezvous import Arrival

MAX_KEPT_BYTES, MAX_KEPT_ARRAYS = 64 << 20, 2000  # limits on the arrays that are kept
FREE_EMPTY_CALLS, FREE_BARRIERS = 32, 256  # calls without data, per operation and request, that cost nothing
TAG_BYTES = 2  # information that a tag can carry


class TrafficCounter:
    """Counts the calls and bytes of one rank.

    Parameters
    ----------
    keep : bool
        Whether to keep the arrays that it sends.

    Attributes
    ----------
    kept : list of numpy.ndarray or None
        The arrays that it has sent to others, flat and in order.
    """

    def __init__(self, keep: bool = False):
        self.kept: list[np.ndarray] | None = [] if keep else None
        self._kept_bytes = 0
        self._sent: dict[tuple[tuple[int, ...], str], list[int]] = {}
        self._empty: dict[str, int] = defaultdict(int)  # number of calls without data, by operation

    def message(self, group: tuple[int, ...], dtype: int, tag: int, data: bytes, to_itself: bool) -> None:
        """Count a message."""
        self._count(group, "Send", len(data) + (TAG_BYTES if tag else 0), bool(data or tag))  # the receiver learns the tag
        if not to_itself:
            self._keep(dtype, data)

    def collective(self, members: tuple[int, ...], arrival: Arrival, i: int) -> None:
        """Count a completed collective, in which the rank was member i."""
        signature, operation = arrival.header["signature"], _operation(arrival)
        has_data = any(arrival.header["counts"]) if signature[0] in UNEVEN else signature[2] > 0
        self._count(members, operation, sent_bytes(arrival.header, i, len(members)), has_data)
        self._keep(signature[1], outgoing_data(arrival.header, arrival.payload, i, len(members)))

    def entries(self, rank: int, begun: Iterable[tuple[tuple[int, ...], Arrival]]) -> list[list]:
        """Return the counts: operation, ranks, calls, and payload in bytes.

        Parameters
        ----------
        rank : int
            This rank.
        begun : iterable of (tuple of int, Arrival)
            Its incomplete collectives, by group, which count as well.
        """
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
            free = FREE_BARRIERS if operation == "Barrier" else FREE_EMPTY_CALLS
            if self._empty[operation] > free:  # the order of arrival carries information, too
                operation, nbytes = "Allgather", 8 * len(members)
        if nbytes is not None:
            entry = self._sent.setdefault((members, operation), [0, 0])
            entry[0] += 1
            entry[1] += nbytes

    def _keep(self, dtype: int, data: bytes) -> None:
        """Keep an array, if that is wanted and there is room."""
        if self.kept is None or not data or dtype not in DTYPES or len(self.kept) == MAX_KEPT_ARRAYS:
            return
        if self._kept_bytes + len(data) <= MAX_KEPT_BYTES:
            self._kept_bytes += len(data)
            self.kept.append(np.frombuffer(data, DTYPES[dtype]))


def _operation(arrival: Arrival) -> str:
    """Return the operation under which a call is counted; a nonblocking collective counts as its blocking form."""
    operation = arrival.header["signature"][0]
    return COLLECTIVES[BLOCKING_FORM.get(operation, operation)]

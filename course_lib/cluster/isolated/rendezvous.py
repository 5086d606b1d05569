"""Rendezvous of isolated ranks: the collectives to which some ranks have come, and not all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from course_lib.cluster.isolated.reference_collectives import ProtocolViolation

MAX_WAITING_BYTES, MAX_WAITING_CALLS = 256 << 20, 4000  # of a rank, that wait for the other ranks to come

CollectiveKey = tuple[tuple[int, ...], int]  # a group's ranks, and the number of the collective among theirs


class Arrival(NamedTuple):
    """A rank's call, as it described it, and the bytes that it brings."""

    header: dict
    payload: bytes


class ArrivalTable:
    """The arrivals of `size` ranks, by collective and by rank."""

    def __init__(self, size: int):
        self._at: dict[CollectiveKey, dict[int, Arrival]] = defaultdict(dict)
        self._of: list[dict[CollectiveKey, Arrival]] = [{} for _ in range(size)]
        self._bytes = [0] * size

    def arrive(self, rank: int, key: CollectiveKey, arrival: Arrival) -> None:
        """A rank comes to a collective."""
        self._at[key][rank] = self._of[rank][key] = arrival
        self._bytes[rank] += len(arrival.payload)
        if self._bytes[rank] > MAX_WAITING_BYTES or len(self._of[rank]) > MAX_WAITING_CALLS:
            raise ProtocolViolation("it has started more than there is room for")

    def pop_complete(self, key: CollectiveKey) -> list[Arrival] | None:
        """Return the calls of all ranks of the group, in its order, and release them; None if some have not come."""
        if len(self._at[key]) < len(key[0]):
            return None
        found = [self._at[key][r] for r in key[0]]
        for r in key[0]:
            self.leave(r, key)
        return found

    def leave(self, rank: int, key: CollectiveKey) -> None:
        """A rank waits there no longer."""
        if arrival := self._of[rank].pop(key, None):
            self._bytes[rank] -= len(arrival.payload)
            del self._at[key][rank]
            if not self._at[key]:
                del self._at[key]

    def leave_all(self, rank: int) -> None:
        """A rank waits nowhere any longer."""
        for key in list(self._of[rank]):
            self.leave(rank, key)

    def missing(self, key: CollectiveKey) -> list[int]:
        """Return the ranks that have not come."""
        return [r for r in key[0] if key not in self._of[r]]

    def of(self, rank: int) -> Iterator[tuple[tuple[int, ...], Arrival]]:
        """The groups with which a rank has begun something, and what."""
        return ((members, arrival) for (members, _), arrival in self._of[rank].items())

"""Rendezvous of isolated ranks: the collectives that some but not all ranks of a group have entered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from course_lib.collectives.coordination.reference_collectives import ProtocolViolation

MAX_WAITING_BYTES, MAX_WAITING_CALLS = 256 << 20, 4000  # one rank's incomplete collectives: bytes, and number

CollectiveKey = tuple[tuple[int, ...], int]  # the group's ranks; the request's number << 32 | twice the collective's number in it


class Arrival(NamedTuple):
    """A rank's call, as it described it, and its contribution as bytes."""

    header: dict
    payload: bytes


class ArrivalTable:
    """Arrivals of `size` ranks, by collective and by rank."""

    def __init__(self, size: int):
        self._at: dict[CollectiveKey, dict[int, Arrival]] = defaultdict(dict)
        self._of: list[dict[CollectiveKey, Arrival]] = [{} for _ in range(size)]
        self._bytes = [0] * size

    def arrive(self, rank: int, key: CollectiveKey, arrival: Arrival) -> None:
        """Record that a rank has entered a collective."""
        self._at[key][rank] = self._of[rank][key] = arrival
        self._bytes[rank] += len(arrival.payload)
        if self._bytes[rank] > MAX_WAITING_BYTES or len(self._of[rank]) > MAX_WAITING_CALLS:
            raise ProtocolViolation("it has started more collectives than there is room for")

    def waiting_bytes(self) -> int:
        """Return the bytes in all arrivals."""
        return sum(self._bytes)

    def pop_complete(self, key: CollectiveKey) -> list[Arrival] | None:
        """Remove and return the arrivals of all ranks, in the group's order; None if some rank has not entered the collective."""
        if len(self._at[key]) < len(key[0]):
            return None
        found = [self._at[key][r] for r in key[0]]
        for r in key[0]:
            self.leave(r, key)
        return found

    def leave(self, rank: int, key: CollectiveKey) -> None:
        """Remove a rank's arrival at a collective."""
        if arrival := self._of[rank].pop(key, None):
            self._bytes[rank] -= len(arrival.payload)
            del self._at[key][rank]
            if not self._at[key]:
                del self._at[key]

    def leave_all(self, rank: int) -> None:
        """Remove all arrivals of a rank."""
        for key in list(self._of[rank]):
            self.leave(rank, key)

    def missing(self, key: CollectiveKey) -> list[int]:
        """Return the ranks that have not entered a collective."""
        return [r for r in key[0] if key not in self._of[r]]

    def of(self, rank: int) -> Iterator[tuple[tuple[int, ...], Arrival]]:
        """Yield the groups and arrivals of a rank's incomplete collectives."""
        return ((members, arrival) for (members, _), arrival in self._of[rank].items())

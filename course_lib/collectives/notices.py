"""Notices in memory that all ranks see: which messages were sent to whom, and which collectives were started.

A message's notice says its tag, dtype and size before the message itself moves: so a receiver finds what was sent to it, and says what
does not fit, before MPI sees it. A notice of a start says that this rank has come to a non-blocking collective, and with which call.

Each rank has a table of its own, and only it writes there: a ring of notices for each rank that it sends to; how far it has read the
rings of others; which messages it has accepted; and its starts.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

# Other processors may show a word before one that was written earlier.
IN_ORDER = platform.machine() in ("x86_64", "AMD64")
RING = 32  # notices to one rank that it has not read yet; further messages wait for room
STARTS = 128  # collectives that one rank has started and that are not over
WORDS = 8  # of a notice
LOOKS = 8  # places where a start may stand


def words(size: int) -> int:
    """How many 64-bit words a rank's table takes, in a world of `size` ranks."""
    return _starts(size) + STARTS * WORDS


def _starts(size: int) -> int:
    """Where starts begin in a table: as any notice, each lies in one block of those that `mirror` sends."""
    return -(-(size * RING * WORDS + size + size * RING) // WORDS) * WORDS


class Notices:
    """The tables of all ranks.

    Parameters
    ----------
    tables : list of memoryview
        Of 64-bit words, zeros at first.
    rank : int
        Whose process this is.
    changed : callable, optional
        Is told which word of this rank's table has changed, and which rank waits for that (None: any), see `hosts`.
    """

    def __init__(self, tables: list[memoryview], rank: int, changed: Callable[[int, int | None], None] | None = None):
        size, self._changed = len(tables), changed
        self._tables, self._rank, self.mine = tables, rank, tables[rank]
        self._taken = size * RING * WORDS  # where these parts of a table begin
        self._accepted = self._taken + size
        self._starts = _starts(size)
        self._ring = rank * RING * WORDS  # of notices to this rank, in each table
        self.following = [1] * size  # the number of the notice that comes next from each

    def room(self, dest: int, number: int) -> bool:
        """Whether a notice with this number to a rank would write over none that it has not read."""
        return number - self._tables[dest][self._taken + self._rank] <= RING

    def announce(self, dest: int, number: int, kind: int, count: int) -> None:
        """Leave a notice of message `number` to a rank: its kind, see `mailbox.kind`, and how many numbers it has."""
        start, table = (dest * RING + number % RING) * WORDS, self.mine
        table[start + 1], table[start + 2] = kind, count
        if not IN_ORDER:  # words may be seen in another order than they were written
            table[start + 3] = hash((number, kind, count))
        table[start] = number
        if self._changed:
            self._changed(start, dest)

    def read(self, source: int) -> tuple[int, int, int] | None:
        """Return the next notice from a rank to this one: number, kind and count; None if there is none yet. See `take`."""
        number = self.following[source]
        table, start = self._tables[source], self._ring + number % RING * WORDS
        if table[start] != number:
            return None
        kind, count = table[start + 1], table[start + 2]
        if not IN_ORDER and table[start + 3] != hash((number, kind, count)):
            return None  # not all of it is to be seen yet
        self.following[source] = number + 1
        return number, kind, count

    def take(self, source: int, number: int) -> None:
        """Show that this rank has read that notice: its place is free again, and no longer counts as one that waits to be read."""
        self.mine[self._taken + source] = number
        if self._changed:
            self._changed(self._taken + source, source)

    def table(self, rank: int) -> memoryview:
        """A rank's table."""
        return self._tables[rank]

    def place_of_reads(self, dest: int) -> memoryview:
        """The word in which a rank says how far it has read this rank's notices."""
        place = self._taken + self._rank
        return self._tables[dest][place : place + 1]

    def ring_to(self, dest: int) -> int:
        """Where notices to a rank begin in this rank's table."""
        return dest * RING * WORDS

    def ring_of_mine(self) -> int:
        """Where notices to this rank begin in each table."""
        return self._ring

    def place_taken(self, source: int) -> int:
        """Where this rank says how far it has read the notices of another."""
        return self._taken + source

    def place_accepted(self, source: int) -> int:
        """Where this rank says for which messages of another it has a receive."""
        return self._accepted + source * RING

    def unread(self, source: int, dest: int) -> bool:
        """Whether a rank has not read all notices that another one has left for it."""
        number = self._tables[dest][self._taken + source] + 1
        return self._tables[source][(dest * RING + number % RING) * WORDS] == number

    def accept(self, source: int, number: int) -> None:
        """Say that this rank has a receive for that message."""
        self.mine[place := self._accepted + source * RING + number % RING] = number
        if self._changed:
            self._changed(place, source)

    def accepted(self, source: int, dest: int, number: int) -> bool:
        """Whether `dest` has a receive for that message."""
        return self._tables[dest][self._accepted + source * RING + number % RING] == number

    def start(self, key: int, call: tuple[int, ...]) -> int | None:
        """Leave a notice that this rank has started a call; its place, or None where there is no room."""
        for look in range(LOOKS):
            place = self._starts + (key + look * 17) % STARTS * WORDS
            if not self.mine[place]:
                for i, word in enumerate(call, 1):
                    self.mine[place + i] = word
                self.mine[place + 5] = hash((key, *call))
                self.mine[place] = key
                if self._changed:
                    self._changed(place, None)
                return place
        return None

    def over(self, place: int) -> None:
        """Take a start's notice away: all have seen it."""
        self.mine[place] = 0
        if self._changed:
            self._changed(place, None)

    def found(self, rank: int, key: int) -> tuple[int, ...] | None:
        """The call that a rank has started with this key."""
        table = self._tables[rank]
        for look in range(LOOKS):
            place = self._starts + (key + look * 17) % STARTS * WORDS
            if table[place] == key:
                call = tuple(table[place + 1 : place + 5])
                if table[place + 5] == hash((key, *call)):
                    return call
        return None

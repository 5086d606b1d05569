"""Messages without ranks: which receive gets which message; see `switch`. They match as in `collectives.mailbox`."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.cluster.results import DTYPES, Broken
from course_lib.collectives.explain import tagged

ANY = -1
MOST_BYTES, MOST = 64 << 20, 4000  # of messages of one rank that nobody has received


@dataclass(frozen=True)
class Notice:
    """A message that is sent, or wanted: by whom, under which name, in which group, and with whom."""

    rank: int
    call: tuple
    group: tuple[int, ...]
    tag: int
    dtype: int
    count: int
    payload: bytes
    others: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.count} {DTYPES[self.dtype]}{tagged(self.tag)}"


class Post:
    """The messages on their way between `size` ranks."""

    def __init__(self, size: int):
        self._sent: list[list[Notice]] = [[] for _ in range(size)]  # by the rank that sends
        self._wanted: list[list[Notice]] = [[] for _ in range(size)]  # by the rank that receives
        self._bytes = [0] * size  # of what is in `_sent`
        self._own = [0] * size  # of these, in messages to itself
        self.parked = [0] * size  # the most of that, since `begin`

    def begin(self, rank: int) -> None:
        """What counts as `parked` begins anew: a rank that writes to itself holds that, wherever it lies."""
        self.parked[rank] = self._own[rank]

    def _move(self, message: Notice, sign: int) -> None:
        """A message comes to what is on its way, or leaves it."""
        rank, nbytes = message.rank, sign * len(message.payload)
        self._bytes[rank] += nbytes
        if message.others == (rank,):
            self._own[rank] += nbytes
            self.parked[rank] = max(self.parked[rank], self._own[rank])

    def send(self, message: Notice) -> list[tuple[Notice, Notice]]:
        """A message comes; it and the receive that gets it, if there is one."""
        (to,) = message.others
        for wanted in self._wanted[to]:
            if _fit(message, wanted):
                self._wanted[to].remove(wanted)
                return [(message, wanted)]
        mine = self._sent[message.rank]
        mine.append(message)
        self._move(message, 1)
        if len(mine) > MOST or self._bytes[message.rank] > MOST_BYTES:
            raise Broken("it has sent more than anybody receives")
        return []

    def want(self, wanted: Notice) -> list[tuple[Notice, Notice]]:
        """A receive comes; the message that it gets, if there is one, and it."""
        for source in wanted.others:
            for message in self._sent[source]:
                if wanted.rank in message.others and _fit(message, wanted):
                    self._sent[source].remove(message)
                    self._move(message, -1)
                    return [(message, wanted)]
        self._wanted[wanted.rank].append(wanted)
        if len(self._wanted[wanted.rank]) > MOST:
            raise Broken("it wants more messages than anybody sends")
        return []

    def lies(self, rank: int, call: tuple) -> Notice | None:
        """A message for a rank that its receive under this name does not take, though it comes from where that waits for one."""
        wanted = next((notice for notice in self._wanted[rank] if notice.call == call), None)
        from_there = [message for source in (wanted.others if wanted else ()) for message in self._sent[source]]
        return next((message for message in from_there if rank in message.others and message.group == wanted.group), None)

    def forget(self, rank: int, call: tuple) -> None:
        """What a rank has begun under this name ends without success."""
        for kept in (self._sent[rank], self._wanted[rank]):
            kept[:] = [notice for notice in kept if notice.call != call]
        self._bytes[rank] = sum(len(message.payload) for message in self._sent[rank])
        self._own[rank] = sum(len(message.payload) for message in self._sent[rank] if message.others == (rank,))

    def clear(self) -> None:
        """Nothing is on its way any more."""
        for kept in (*self._sent, *self._wanted):
            kept.clear()
        self._bytes[:] = self._own[:] = [0] * len(self._bytes)


def _fit(message: Notice, wanted: Notice) -> bool:
    return message.group == wanted.group and message.rank in wanted.others and wanted.tag in (ANY, message.tag)

"""Network of the isolated ranks' messengers: it delays messages, has ranks fall silent, and keeps a virtual clock.

A deadline of `Messenger.listen` passes when the virtual clock says so, and this clock stands still while any rank runs. Once all ranks are
blocked, messages are delivered; if there are none, the clock jumps to the next deadline, or to the end of a silence. So a run depends on
nothing but the ranks' programs and the plan of silences: neither on how fast a rank is, nor on which of two frames came first.

A silence begins when the rank is about to send a message or to begin a collective. From then on all its frames are held back, as if the
rank stood still, until its silence is over. What is sent to it waits.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.cluster.isolated.mailbox import MAX_UNRECEIVED, MAX_UNRECEIVED_BYTES
from course_lib.cluster.isolated.reference_collectives import ProtocolViolation
from course_lib.collectives.calls import RECV

HeldFrame = tuple[int, dict, bytes]  # a rank, and a frame that it has sent
MAX_LISTEN_SECONDS, MAX_LOG = 1e6, 100_000


class Partition(NamedTuple):
    """A time in which messages between different sides wait: from `begin` to `end`, in virtual seconds. A rank may be on no side."""

    sides: tuple[frozenset[int], ...]
    begin: float
    end: float

    def separates(self, a: int, b: int) -> bool:
        """Return whether two ranks are on different sides."""
        return any(a in one and b in other for one in self.sides for other in self.sides if one is not other)


class Letter(NamedTuple):
    """A message on its way; letters to a rank are delivered in this order."""

    ready: float
    burst: int
    source: int
    number: int
    messenger: int
    data: bytes


@dataclass
class Take:
    """A rank that waits for a message: the number of its request, its messenger, and the deadline."""

    number: int
    messenger: int
    deadline: float


class VirtualNetwork:
    """The network of `size` ranks; runs in the broker's thread.

    Attributes
    ----------
    now : float
        The virtual clock, in seconds since the present request of the ranks began.
    silent : dict of int to float
        The ranks that are silent, and until when.
    log : list of (float, str, int, int, int)
        What has happened in this request: time; "sends", "silent", "back" or "replies"; the rank; the receiver, or -1; bytes.
    """

    def __init__(self, size: int):
        self.size, self._planned, self._planned_partitions = size, defaultdict(list), []
        self.begin()

    # Before a request.

    def plan_silence(self, rank: int, seconds: float, after: int, mark: int = 0) -> None:
        """Plan a silence of a rank in the next request: instead of its send number `after` from its mark number `mark` on.

        Sends count from 0, marks from 1; mark 0 is the beginning. A rank sets a mark when the first messenger of the request sends a
        message to that rank itself, which is not a send.
        """
        self._planned[rank].append((mark, after, seconds))

    def plan_partition(self, sides: list[set[int]], end: float, begin: float = 0.0) -> None:
        """Plan a partition in the next request."""
        self._planned_partitions.append(Partition(tuple(frozenset(side) for side in sides), begin, end))

    def begin(self) -> None:
        """Begin a request: drop all messages, set the clock to 0, and take over what was planned."""
        self.now, self._burst, self._count = 0.0, 0, 0
        self.silent: dict[int, float] = {}
        self.log: list[tuple[float, str, int, int, int]] = []
        self._to: list[list[Letter]] = [[] for _ in range(self.size)]
        self._unread: Counter[int] = Counter()  # bytes by source
        self._takes: dict[int, Take] = {}
        self._deadlines: dict[tuple[int, int], float] = {}  # by rank and number of the listen
        self._held: dict[int, list[tuple[dict, bytes]]] = defaultdict(list)
        self._sends: Counter[int] = Counter()  # by rank, since its latest mark
        self._marks: Counter[int] = Counter()
        self._first_messenger: int | None = None
        self._silences = {rank: sorted(plan) for rank, plan in self._planned.items()}
        self._partitions, self._planned, self._planned_partitions = self._planned_partitions, defaultdict(list), []

    def note(self, what: str, rank: int, to: int = -1, nbytes: int = 0) -> None:
        """Note in `log` that something has happened."""
        if len(self.log) < MAX_LOG:
            self.log.append((self.now, what, rank, to, nbytes))

    # Frames from ranks.

    def holds(self, rank: int, header: dict, payload: bytes) -> bool:
        """Hold back a frame if its rank is silent, or falls silent with it; return whether it is held back."""
        signature = header.get("signature")
        calls = "call" in header and isinstance(signature, list) and signature[:1] != [RECV]
        if rank not in self.silent and ("post" in header or calls):
            planned = self._silences.get(rank)
            if header.get("post") == rank and self._is_first(header.get("messenger")):
                self._marks[rank] += 1
                self._sends[rank] = 0
            elif planned and (self._marks[rank], self._sends[rank]) >= planned[0][:2]:
                self.silent[rank] = self.now + planned.pop(0)[2]
                self.note("silent", rank)
            else:
                self._sends[rank] += 1
        if rank in self.silent:
            self._held[rank].append((header, payload))
        return rank in self.silent

    def _is_first(self, messenger: object) -> bool:
        if self._first_messenger is None:
            self._first_messenger = messenger
        return messenger == self._first_messenger

    def post(self, rank: int, to: int, messenger: int, data: bytes) -> None:
        """Handle a ``post`` frame: a message to a rank."""
        self._unread[rank] += len(data)
        self._count += 1
        if self._unread[rank] > MAX_UNRECEIVED_BYTES or len(self._to[to]) > MAX_UNRECEIVED * self.size:
            raise ProtocolViolation("it has sent more messages than are received")
        ready = self.now
        for partition in self._partitions:
            if partition.separates(rank, to) and partition.begin <= self.now < partition.end:
                ready = max(ready, partition.end)
        self._to[to].append(Letter(ready, self._burst, rank, self._count, messenger, data))
        self.note("sends", rank, to, len(data))

    def take(self, rank: int, number: int, messenger: int, listen: int, seconds: float) -> None:
        """Handle a ``take`` frame: the rank waits for a message until `seconds` after the first take of the same listen."""
        if not 0 <= seconds <= MAX_LISTEN_SECONDS:
            seconds = 0.0 if not seconds > 0 else MAX_LISTEN_SECONDS
        deadline = self._deadlines.setdefault((rank, listen), self.now + seconds)
        self._takes[rank] = Take(number, messenger, deadline)

    def is_blocked(self, rank: int) -> bool:
        """Return whether a rank waits for a message, or is silent."""
        return rank in self._takes or rank in self.silent

    # When all ranks are blocked or done.

    def advance(self) -> tuple[list[tuple[int, dict, bytes]], list[HeldFrame]]:
        """Deliver messages; if there are none, advance the clock to the next event.

        Returns
        -------
        answers : list of (int, dict, bytes)
            Frames to ranks.
        frames : list of HeldFrame
            Frames of ranks whose silence is over, to be handled now.
        """
        while self._takes or self.silent:
            if answers := self._deliver():
                return answers, []
            moment = self._next_event()
            self.now = max(self.now, moment) if math.isfinite(moment) else self.now
            if any(letter.ready <= self.now for rank in self._takes for letter in self._to[rank]):
                continue
            if back := sorted(rank for rank, end in self.silent.items() if end <= moment):
                return [], [frame for rank in back for frame in self._wake(rank)]
            late = [rank for rank, take in self._takes.items() if take.deadline <= self.now]
            return [(rank, {"took": self._takes.pop(rank).number, "source": -1}, b"") for rank in sorted(late)], []
        return [], []

    def _deliver(self) -> list[tuple[int, dict, bytes]]:
        """Return the first message to each rank that waits for one, if it is there."""
        self._burst += 1
        answers = []
        for rank in sorted(self._takes.keys() - self.silent.keys()):
            take = self._takes[rank]
            for letter in [letter for letter in self._to[rank] if letter.messenger != take.messenger]:
                self._remove(rank, letter)  # of an earlier messenger
            first = min((letter for letter in self._to[rank] if letter.ready <= self.now), default=None)
            if first:
                self._remove(rank, first)
                answers.append((rank, {"took": self._takes.pop(rank).number, "source": first.source}, first.data))
        return answers

    def _remove(self, rank: int, letter: Letter) -> None:
        self._to[rank].remove(letter)
        self._unread[letter.source] -= len(letter.data)

    def _next_event(self) -> float:
        """Return the time of the next deadline, arrival or end of a silence."""
        times = [take.deadline for take in self._takes.values()] + list(self.silent.values())
        times += [letter.ready for rank in self._takes for letter in self._to[rank]]
        return min(times)

    def _wake(self, rank: int) -> list[HeldFrame]:
        del self.silent[rank]
        self.note("back", rank)
        return [(rank, *frame) for frame in self._held.pop(rank, [])]

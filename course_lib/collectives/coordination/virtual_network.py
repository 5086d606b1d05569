"""Network of the isolated ranks' messengers: it delays messages, has ranks fall silent, and keeps a virtual clock.

A deadline of `Messenger.listen` passes when the virtual clock says so, and this clock stands still while any rank runs. Once all ranks are
blocked, messages are delivered; if there are none, the clock jumps to the next deadline, or to the end of a silence. So a run depends on
nothing but the ranks' programs and the plan of silences: neither on how fast a rank is, nor on which of two frames came first.

A silence begins when the rank is about to send a message or to begin a collective. From then on all its frames are held back, as if the
rank stood still, until its silence is over. What is sent to it waits.

When a silence begins is planned by this clock, or by the *round* that the rank is in: messages about "round" have the round's number as
their key. It is not a matter of how many other messages the rank sends, which its program decides.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from course_lib.collectives.calls import RECV
from course_lib.collectives.coordination.mailbox import MAX_UNRECEIVED, MAX_UNRECEIVED_BYTES
from course_lib.collectives.coordination.reference_collectives import ProtocolViolation

HeldFrame = tuple[int, dict, bytes]  # a rank, and a frame that it has sent
Round = tuple[int, ...]
MAX_LISTEN_SECONDS, MAX_LOG = 1e6, 100_000
MAX_HELD_FRAMES, MAX_LISTENS = 4_000, 100_000  # of one rank, in one request
ROUND_TOPIC = "round"


class Event(NamedTuple):
    """An entry of `VirtualNetwork.log`.

    Attributes
    ----------
    time : float
    what : str
        "sends", "receives", "silent", "back" or "replies".
    rank : int
    other : int
        The receiver or the sender of a message, else -1.
    nbytes : int
    topic : str
    round : Round or None
        Of a message about "round" whose key consists of whole numbers.
    """

    time: float
    what: str
    rank: int
    other: int = -1
    nbytes: int = 0
    topic: str = ""
    round: Round | None = None


class Silence(NamedTuple):
    """A planned silence of a rank.

    It begins with the first message or collective for which all conditions hold, after the rank's previous silence.

    Attributes
    ----------
    seconds : float
    after : int
        So many messages and collectives of the request come before it.
    since : float
        It does not begin earlier, by the virtual clock.
    round : Round, optional
        It begins with the rank's messages of this round, or of the first later one in which it sends any.
    through : frozenset of int
        Ranks that still get the messages of that round, in whichever order they are sent.
    """

    seconds: float
    after: int = 0
    since: float = 0.0
    round: Round | None = None
    through: frozenset[int] = frozenset()


class Partition(NamedTuple):
    """A time in which messages between different sides wait: from `begin` to `end`, in virtual seconds. A rank may be on no side."""

    sides: tuple[frozenset[int], ...]
    begin: float
    end: float

    def separates(self, a: int, b: int) -> bool:
        """Return whether two ranks are on different sides."""
        return any(a in one and b in other for one in self.sides for other in self.sides if one is not other)


class Letter(NamedTuple):
    """A message on its way; letters of one rank to another are delivered in this order."""

    ready: float
    number: int
    source: int
    messenger: int
    data: bytes
    topic: str
    round: Round | None


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
    log : list of Event
        What has happened in this request.
    """

    def __init__(self, size: int):
        self.size, self._planned, self._planned_partitions = size, defaultdict(list), []
        self._planned_request: tuple[str | None] | None = None
        self.begin()

    # Before a request.

    def plan_silence(self, rank: int, seconds: float, after: int = 0, **when: object) -> None:
        """Plan a silence of a rank in the next request; the parameters are those of `Silence`."""
        self._planned[rank].append(Silence(seconds, after, **when))

    def plan_partition(self, sides: list[set[int]], end: float, begin: float = 0.0) -> None:
        """Plan a partition in the next request."""
        self._planned_partitions.append(Partition(tuple(frozenset(side) for side in sides), begin, end))

    def plan_rounds_only(self, request: str | None = None) -> None:
        """Plan that, in the next request, messages about other topics than "round" do not arrive.

        So no rank can take part in a round by other messages. With `request`, those about this topic arrive; so does anything that is then
        sent to the rank that has sent one, by the rank that it was sent to.
        """
        self._planned_request = (request,)

    def begin(self) -> None:
        """Begin a request: drop all messages, set the clock to 0, and take over what was planned."""
        self.now, self._burst, self._count = 0.0, 0, 0
        self.silent: dict[int, float] = {}
        self.log: list[Event] = []
        # By receiver, messenger and source: a heap of letters, the next one first.
        self._to: list[dict[int, dict[int, list[Letter]]]] = [defaultdict(lambda: defaultdict(list)) for _ in range(self.size)]
        self._letters: Counter[int] = Counter()  # their number by receiver
        self._unread: Counter[int] = Counter()  # bytes by source
        self._held_bytes = 0
        self._takes: dict[int, Take] = {}
        self._deadlines: list[dict[int, float]] = [{} for _ in range(self.size)]  # by listen
        self._held: dict[int, list[tuple[dict, bytes]]] = defaultdict(list)
        self._sends: Counter[int] = Counter()
        self._silences = {rank: sorted(plan, key=lambda silence: silence.after) for rank, plan in self._planned.items()}
        self._last_rounds: dict[int, tuple[Silence, Round | None]] = {}  # of ranks that fall silent at the end of it, or (None) at once
        self._requests: set[tuple[int, int]] = set()  # who has sent a request to whom
        self._partitions, self._planned, self._planned_partitions = self._planned_partitions, defaultdict(list), []
        self._rounds_only, self._planned_request = self._planned_request, None

    def note(self, what: str, rank: int, letter: Letter | None = None, other: int = -1) -> None:
        """Note in `log` that something has happened."""
        if len(self.log) < MAX_LOG:
            about = (other, len(letter.data), letter.topic, letter.round) if letter else ()
            self.log.append(Event(self.now, what, rank, *about))

    # Frames from ranks.

    def holds(self, rank: int, header: dict, payload: bytes) -> bool:
        """Hold back a frame if its rank is silent, or falls silent with it; return whether it is held back."""
        if rank not in self.silent:
            if rank not in self._last_rounds and _sends(header):
                self._plan_last_round(rank, header)
                self._sends[rank] += 1
            if rank not in self._last_rounds:
                return False
            silence, last = self._last_rounds[rank]
            if last is None or "post" not in header or _about(header)[1] not in (None, last):
                self._fall_silent(rank)
            elif header["post"] == rank or header["post"] in silence.through:
                return False
        self._held[rank].append((header, payload))
        self._held_bytes += len(payload)
        if len(self._held[rank]) > MAX_HELD_FRAMES:
            raise ProtocolViolation("it has sent more messages than are received")
        return True

    def waiting_bytes(self) -> int:
        """Return the bytes in messages and frames that wait."""
        return self._unread.total() + self._held_bytes

    def _plan_last_round(self, rank: int, header: dict) -> None:
        """Note the last round of a rank before its silence, if this frame, which sends something, begins it."""
        planned = self._silences.get(rank)
        if not planned or self._sends[rank] < planned[0].after or self.now < planned[0].since:
            return
        key = _about(header)[1] if header.get("post") != rank else None
        if planned[0].round is None:
            self._last_rounds[rank] = planned.pop(0), None
        elif key is not None and key >= planned[0].round:
            self._last_rounds[rank] = planned.pop(0), key

    def _fall_silent(self, rank: int) -> None:
        silence, _ = self._last_rounds.pop(rank)
        self.silent[rank] = self.now + silence.seconds
        self.note("silent", rank)

    def post(self, rank: int, header: dict, messenger: int, data: bytes) -> None:
        """Handle a ``post`` frame: a message to a rank."""
        to, (topic, key) = header["post"], _about(header)
        self._unread[rank] += len(data)
        self._count += 1
        if self._unread[rank] > MAX_UNRECEIVED_BYTES or self._letters[to] > MAX_UNRECEIVED * self.size:
            raise ProtocolViolation("it has sent more messages than are received")
        ready = self.now if self._arrives(rank, to, topic, key) else math.inf
        for partition in self._partitions:
            if partition.separates(rank, to) and partition.begin <= self.now < partition.end:
                ready = max(ready, partition.end)
        letter = Letter(ready, self._count, rank, messenger, data, topic, key)
        heapq.heappush(self._to[to][messenger][rank], letter)
        self._letters[to] += 1
        self.note("sends", rank, letter, to)

    def _arrives(self, rank: int, to: int, topic: str, key: Round | None) -> bool:
        """Return whether a message arrives at all; see `plan_rounds_only`."""
        if self._rounds_only is None or key is not None:
            return True
        if topic == self._rounds_only[0]:
            self._requests.add((rank, to))
            return True
        return (to, rank) in self._requests

    def take(self, rank: int, number: int, messenger: int, listen: int, seconds: float) -> None:
        """Handle a ``take`` frame: the rank waits for a message until `seconds` after the first take of the same listen."""
        if not 0 <= seconds <= MAX_LISTEN_SECONDS:
            seconds = 0.0 if not seconds > 0 else MAX_LISTEN_SECONDS
        deadline = self._deadlines[rank].setdefault(listen, self.now + seconds)
        if len(self._deadlines[rank]) > MAX_LISTENS:
            raise ProtocolViolation(f"it listened more than {MAX_LISTENS:,} times in one request")
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
            if any(ready <= self.now for ready in self._arrivals()):
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
            for messenger in self._to[rank].keys() - {take.messenger}:  # earlier ones
                for letters in self._to[rank].pop(messenger).values():
                    for letter in letters:
                        self._count_out(rank, letter)
            letters = self._next_letters(rank, take.messenger)
            if letters:
                first = heapq.heappop(letters)
                self._count_out(rank, first)
                self.note("receives", rank, first, first.source)
                answers.append((rank, {"took": self._takes.pop(rank).number, "source": first.source}, first.data))
        return answers

    def _next_letters(self, rank: int, messenger: int) -> list[Letter] | None:
        """Return the heap with the next letter to a rank: that of a source, which is drawn by a checksum.

        So no rank is always the first to be heard, and no vote that depends on that goes on for ever.
        """
        by_source = self._to[rank][messenger]
        ready = [k for k, letters in by_source.items() if letters and letters[0].ready <= self.now]
        if not ready:
            return None
        return by_source[min(ready, key=lambda k: crc32(f"{self._burst} {rank} {k}".encode()))]

    def _count_out(self, rank: int, letter: Letter) -> None:
        self._letters[rank] -= 1
        self._unread[letter.source] -= len(letter.data)

    def _arrivals(self) -> list[float]:
        """Return when the next letters are ready to the ranks that wait for one, and can take it."""
        ranks = self._takes.keys() - self.silent.keys()
        mails = [by_source for rank in ranks for by_source in self._to[rank].values()]
        return [letters[0].ready for mail in mails for letters in mail.values() if letters]

    def _next_event(self) -> float:
        """Return the time of the next deadline, arrival or end of a silence."""
        times = [take.deadline for take in self._takes.values()] + list(self.silent.values())
        return min(times + self._arrivals())

    def _wake(self, rank: int) -> list[HeldFrame]:
        del self.silent[rank]
        self.note("back", rank)
        frames = self._held.pop(rank, [])
        self._held_bytes -= sum(len(payload) for _, payload in frames)
        return [(rank, *frame) for frame in frames]


def _sends(header: dict) -> bool:
    """Return whether a frame is a message or a collective."""
    signature = header.get("signature")
    return "post" in header or ("call" in header and isinstance(signature, list) and signature[:1] != [RECV])


def _about(header: dict) -> tuple[str, Round | None]:
    """Return the topic of a ``post`` frame, and the number of the round if it is about one."""
    topic, key = header.get("topic"), header.get("key")
    topic = topic if isinstance(topic, str) else ""
    is_round = topic == ROUND_TOPIC and isinstance(key, list) and all(type(number) is int for number in key)
    return topic, tuple(key) if is_round else None

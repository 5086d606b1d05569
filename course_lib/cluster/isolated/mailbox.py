"""The messages on their way between isolated ranks, and the limits of what may be; they match as MPI's do, see `progress.matching`."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.cluster.isolated.reference_collectives import ProtocolViolation
from course_lib.collectives.progress.matching import Envelope, Matcher

EAGER_BYTES = 64  # bytes of a message that is on its way at once; MPI's number is larger, and nobody may rely on it
MAX_UNRECEIVED_BYTES, MAX_UNRECEIVED = 64 << 20, 4000  # of messages of one rank that nobody has received

Message = Envelope  # `message_id` is the number of the call, `content` the array's bytes


@dataclass(eq=False)
class PostedReceive:
    """A receive: of which rank, under which number, and what it takes."""

    rank: int
    message_id: int
    group: tuple[int, ...]
    sources: tuple[int, ...]
    tag: int
    dtype: int
    count: int


class Mailbox:
    """The messages between `size` ranks.

    Attributes
    ----------
    buffered : list of int
        The most bytes that each rank had at once in messages to itself, since `begin`: it holds these, wherever they lie.
    """

    def __init__(self, size: int):
        self._to: list[Matcher[Message, PostedReceive]] = [Matcher() for _ in range(size)]
        self._bytes, self._count, self._own, self.buffered = ([0] * size for _ in range(4))

    def begin(self, rank: int) -> None:
        """Begin to look anew at what a rank sends to itself."""
        self.buffered[rank] = self._own[rank]

    def send(self, message: Message, to: int) -> tuple[Message, PostedReceive] | None:
        """A message comes; it and the receive that takes it, if there is one."""
        if wanted := self._to[to].arrive(message):
            return message, wanted
        source = message.source
        self._track(message, to, 1)
        if self._count[source] > MAX_UNRECEIVED or self._bytes[source] > MAX_UNRECEIVED_BYTES:
            raise ProtocolViolation("it has sent more than anybody receives")
        return None

    def post_receive(self, wanted: PostedReceive) -> tuple[Message, PostedReceive] | None:
        """A receive comes; the message that it takes, if there is one, and it."""
        if message := self._to[wanted.rank].post(wanted):
            self._track(message, wanted.rank, -1)
            return message, wanted
        if len(self._to[wanted.rank].posted) > MAX_UNRECEIVED:
            raise ProtocolViolation("it wants more messages than anybody sends")
        return None

    def _track(self, message: Message, to: int, sign: int) -> None:
        """A message comes to what is on its way, or leaves it."""
        source, nbytes = message.source, sign * len(message.content)
        self._count[source] += sign
        self._bytes[source] += nbytes
        if source == to:
            self._own[source] += nbytes
            self.buffered[source] = max(self.buffered[source], self._own[source])

    def refused(self, rank: int, number: int) -> Message | None:
        """A message that has come from where a receive waits for one, and that it does not take."""
        wanted = next((w for w in self._to[rank].posted if w.message_id == number), None)
        return self._to[rank].refused(wanted) if wanted else None

    def forget(self, rank: int, number: int) -> None:
        """End a rank's operation with this number without success."""
        for to, matcher in enumerate(self._to):
            for message in [m for m in matcher.unexpected if m.source == rank and m.message_id == number]:
                matcher.unexpected.remove(message)
                self._track(message, to, -1)
        self._to[rank].posted = [w for w in self._to[rank].posted if w.message_id != number]

    def clear(self) -> None:
        """Nothing is on its way any more."""
        for matcher in self._to:
            matcher.clear()
        for counts in (self._bytes, self._count, self._own):
            counts[:] = [0] * len(counts)

"""Messages in flight between isolated ranks, matched as MPI does (`progress.matching`), with limits on their number and size."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.collectives.coordination.reference_collectives import ProtocolViolation
from course_lib.collectives.progress.matching import Envelope, Matcher

EAGER_BYTES = 64  # up to this size, a send completes before its receive is posted; smaller than in MPI, as no program may rely on it
MAX_UNRECEIVED_BYTES, MAX_UNRECEIVED = 64 << 20, 4000  # bytes and number of one rank's messages in flight


@dataclass(eq=False)
class PostedReceive:
    """A receive that a rank has posted; implements `matching.Receive`. `message_id` is the receiver's call number."""

    rank: int
    message_id: int
    group: tuple[int, ...]
    sources: tuple[int, ...]
    tag: int
    dtype: int
    count: int


class Mailbox:
    """Messages between `size` ranks; the `message_id` of an envelope is the sender's call number, its `content` the array's bytes.

    Attributes
    ----------
    buffered : list of int
        By rank, the largest number of bytes in flight to itself since `begin`; they count as memory that the rank holds.
    """

    def __init__(self, size: int):
        self._to = [Matcher() for _ in range(size)]
        self._bytes, self._count, self._own, self.buffered = ([0] * size for _ in range(4))

    def begin(self, rank: int) -> None:
        """Reset a rank's entry in `buffered`."""
        self.buffered[rank] = self._own[rank]

    def waiting_bytes(self) -> int:
        """Return the bytes in all messages that are not received yet."""
        return sum(self._bytes)

    def send(self, message: Envelope, to: int) -> tuple[Envelope, PostedReceive] | None:
        """Match a message sent to rank `to`: return it with its receive, or queue it and return None."""
        if wanted := self._to[to].arrive(message):
            return message, wanted
        source = message.source
        self._track(message, to, 1)
        if self._count[source] > MAX_UNRECEIVED or self._bytes[source] > MAX_UNRECEIVED_BYTES:
            raise ProtocolViolation("it has sent more messages than are received")
        return None

    def post_receive(self, wanted: PostedReceive) -> tuple[Envelope, PostedReceive] | None:
        """Match a receive: return its message with it, or queue it and return None."""
        if message := self._to[wanted.rank].post(wanted):
            self._track(message, wanted.rank, -1)
            return message, wanted
        if len(self._to[wanted.rank].posted) > MAX_UNRECEIVED:
            raise ProtocolViolation("it has posted more receives than messages are sent to it")
        return None

    def _track(self, message: Envelope, to: int, sign: int) -> None:
        """Count a message as queued (`sign` is 1) or no longer queued (-1)."""
        source, nbytes = message.source, sign * len(message.content)
        self._count[source] += sign
        self._bytes[source] += nbytes
        if source == to:
            self._own[source] += nbytes
            self.buffered[source] = max(self.buffered[source], self._own[source])

    def refused(self, rank: int, number: int) -> Envelope | None:
        """Return a message from a source of the rank's receive with this number that does not match it, if there is one."""
        wanted = next((w for w in self._to[rank].posted if w.message_id == number), None)
        return self._to[rank].refused(wanted) if wanted else None

    def forget(self, rank: int, number: int) -> None:
        """Drop the send or receive of a rank with this call number."""
        for to, matcher in enumerate(self._to):
            for message in [m for m in matcher.unexpected if m.source == rank and m.message_id == number]:
                matcher.unexpected.remove(message)
                self._track(message, to, -1)
        self._to[rank].posted = [w for w in self._to[rank].posted if w.message_id != number]

    def clear(self) -> None:
        """Drop all messages and receives."""
        for matcher in self._to:
            matcher.clear()
        for counts in (self._bytes, self._count, self._own):
            counts[:] = [0] * len(counts)

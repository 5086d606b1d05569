"""Message matching as in MPI: messages in the order in which they were sent, receives in the order in which they were posted.

Both transports use it: a rank matches the messages that MPI delivers to it, and the coordinator those between isolated ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from course_lib.collectives.calls import DTYPES, WILDCARD
from course_lib.collectives.diagnostics import tagged


@dataclass(slots=True, eq=False)
class Envelope:
    """Envelope of a message: what is known about it before its data is received.

    Attributes
    ----------
    source : int
        World rank of the sender.
    group : tuple of int
        World ranks of the communicator on which it was sent.
    tag, dtype, count : int
        As sent; the dtype is ``numpy.dtype.num``, the count is in elements.
    content : object
        An MPI.Message, to be received, or the array's bytes.
    message_id : int
        Unique among the messages from this source in this group.
    """

    source: int
    group: tuple[int, ...]
    tag: int
    dtype: int
    count: int
    content: object = None
    message_id: int = 0

    def __str__(self) -> str:
        return f"{self.count} {DTYPES.get(self.dtype, 'numbers')}{tagged(self.tag)}"


class Receive(Protocol):
    """A posted receive: the communicator's world ranks, the possible sources (world ranks), and the tag (-1: any)."""

    group: tuple[int, ...]
    sources: tuple[int, ...]
    tag: int


class Matcher:
    """Matches the messages to one rank with its receives.

    Attributes
    ----------
    unexpected : list of Envelope
        Messages that have arrived before a matching receive was posted (MPI's unexpected-message queue), oldest first.
    posted : list of Receive
        Receives without a matching message, oldest first.
    """

    def __init__(self):
        self.unexpected: list[Envelope] = []
        self.posted: list[Receive] = []

    def arrive(self, message: Envelope) -> Receive | None:
        """Match an arriving message: remove and return the first posted receive that takes it, or queue the message and return None."""
        for receive in self.posted:
            if takes(receive, message):
                self.posted.remove(receive)
                return receive
        self.unexpected.append(message)
        return None

    def post(self, receive: Receive) -> Envelope | None:
        """Match a new receive: remove and return the first unexpected message that it takes, or queue the receive and return None."""
        for message in self.unexpected:
            if takes(receive, message):
                self.unexpected.remove(message)
                return message
        self.posted.append(receive)
        return None

    def refused(self, receive: Receive) -> Envelope | None:
        """Return an unexpected message from one of a receive's sources that does not match it (another tag), for the error message."""
        return next((m for m in self.unexpected if m.source in receive.sources and m.group == receive.group), None)

    def clear(self) -> list[Envelope]:
        """Empty both queues; return the unexpected messages."""
        left, self.unexpected, self.posted = self.unexpected, [], []
        return left


def takes(receive: Receive, message: Envelope) -> bool:
    """Return whether a message matches a receive in source, group and tag; another dtype or count is an error, not a mismatch here."""
    return message.source in receive.sources and receive.tag in (WILDCARD, message.tag) and message.group == receive.group

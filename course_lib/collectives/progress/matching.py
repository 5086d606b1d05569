"""Match messages with receives, as MPI does: in the order in which they were sent, and in which receives were posted.

One matcher for both transports: a rank matches what MPI has brought it, and the coordinator of isolated ranks what passes through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from course_lib.collectives.calls import DTYPES, WILDCARD
from course_lib.collectives.diagnostics import tagged


@dataclass(slots=True, eq=False)
class Envelope:
    """The envelope of a message: what is known before its array moves.

    Attributes
    ----------
    source : int
        A world rank.
    group : tuple of int
        The ranks of the communicator on which it was sent.
    tag, dtype, count : int
        As it was sent; NumPy's number of the dtype, and elements.
    content : object
        MPI's handle, or the array's bytes.
    message_id : int
        Names it among those from the same rank in the same group.
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
    """A receive that has been posted: on which group, from which world ranks, with which tag (-1: any)."""

    group: tuple[int, ...]
    sources: tuple[int, ...]
    tag: int


R = TypeVar("R", bound=Receive)
E = TypeVar("E", bound=Envelope)


class Matcher(Generic[E, R]):
    """The messages to one rank that have come and no receive has taken, and the receives for which none has come."""

    def __init__(self):
        self.unexpected: list[E] = []
        self.posted: list[R] = []

    def arrive(self, message: E) -> R | None:
        """Give a message to the first receive that takes it; where there is none, it waits for one."""
        for receive in self.posted:
            if takes(receive, message):
                self.posted.remove(receive)
                return receive
        self.unexpected.append(message)
        return None

    def post(self, receive: R) -> E | None:
        """Give a receive the first message that it takes; where there is none, it waits for one."""
        for message in self.unexpected:
            if takes(receive, message):
                self.unexpected.remove(message)
                return message
        self.posted.append(receive)
        return None

    def refused(self, receive: R) -> E | None:
        """A message that has come from where a receive waits for one, and that it does not take."""
        return next((m for m in self.unexpected if m.source in receive.sources and m.group == receive.group), None)

    def clear(self) -> list[E]:
        """Forget all; return the messages that nobody took."""
        left, self.unexpected, self.posted = self.unexpected, [], []
        return left


def takes(receive: Receive, message: Envelope) -> bool:
    """Return whether a receive matches a message: its source, group and tag; what else does not fit is an error."""
    return message.source in receive.sources and receive.tag in (WILDCARD, message.tag) and message.group == receive.group

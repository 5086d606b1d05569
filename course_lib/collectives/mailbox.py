"""Messages from one rank to another: which receive gets which message, and what is said where they do not fit.

A message goes in two parts: a notice in memory that both see (see `notices`), and then, once the receiver has accepted it, the array,
through MPI. Messages from one rank to another are matched in the order in which they were sent, receives in the order in which they
were posted, as in MPI.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from course_lib.collectives import base, explain, pending
from course_lib.collectives.board import Board
from course_lib.collectives.calls import DTYPES, RECV, SEND
from course_lib.collectives.errors import MismatchError

ANY = -1  # any source, any tag
EPOCHS = 0x7FFF
TAGS = 1 << 20  # a message's number, as the tag that MPI sees


def kind(group: int, tag: int, dtype: int) -> int:
    """What a message is, in one word: the epoch in which it is sent, the group, the tag and the dtype."""
    return (pending.now.epoch & EPOCHS) << 48 | group << 24 | tag << 8 | dtype


@dataclass(frozen=True)
class Message:
    """A notice of a message that was read."""

    source: int
    number: int
    epoch: int
    group: int
    tag: int
    dtype: int
    count: int

    def __str__(self) -> str:
        return f"{self.count} {DTYPES.get(self.dtype, 'numbers')}{explain.tagged(self.tag)}"


class Mailbox:
    """The messages of this process.

    Parameters
    ----------
    board : Board
    """

    def __init__(self, board: Board):
        self.board, self.mpi = board, base.base()
        self.sent = [0] * board.size
        self.posted: list[Receiving] = []
        self.arrived: list[Message] = []
        self.epoch = pending.now.epoch
        pending.now.attend = self.attend

    def read(self) -> None:
        """Read all notices that have come; each goes to the first receive that it fits, or waits for one."""
        if self.epoch != pending.now.epoch:  # what is on its way from before must not meet what comes now
            self.epoch, self.posted, self.arrived = pending.now.epoch, [], []
        for source in range(self.board.size):
            while notice := self.board.notices.read(source):
                number, packed, count = notice
                self.board.goes_on()
                self.board.notices.take(source, number)
                message = Message(source, number, packed >> 48, packed >> 24 & 0xFFFFFF, packed >> 8 & 0xFFFF, packed & 0xFF, count)
                if message.epoch != self.epoch & EPOCHS:
                    continue
                for receiving in self.posted:
                    if receiving.fits(message):
                        self.posted.remove(receiving)
                        receiving.accept(message)
                        break
                else:
                    self.arrived.append(message)

    def attend(self) -> bool:
        """Do what those who send to this rank wait for, while it waits for something else; whether there was anything."""
        before = len(self.arrived)
        self.read()
        if self.arrived:
            self.mpi.Iprobe(tag=TAGS)  # no message has that number: MPI looks through all that has come, and makes room
        return len(self.arrived) > before

    def post(self, receiving: Receiving) -> None:
        """Give a receive the first message that fits it, of those that have come; else let it wait for one."""
        self.read()
        for message in self.arrived:
            if receiving.fits(message):
                self.arrived.remove(message)
                receiving.accept(message)
                return
        self.posted.append(receiving)


class Sending:
    """A message that is being sent; see `pending.Step`."""

    def __init__(self, box: Mailbox, dest: int, group: int, tag: int, array: np.ndarray, what: str):
        self.box, self.dest, self.array, self.what = box, dest, array, what
        self.members, self.request, self.error = (box.board.rank, dest), None, None
        box.sent[dest] += 1
        self.number = box.sent[dest]
        self._tag, self._notice = tag, (kind(group, tag, array.dtype.num), array.size)

    @classmethod
    def of(cls, box: Mailbox, dest: int, number: int, request: object, tag: int, what: str) -> Sending:
        """One that is on its way."""
        self = cls.__new__(cls)
        self.box, self.dest, self.number, self.request, self.what = box, dest, number, request, what
        self.members, self.error, self._tag = (box.board.rank, dest), None, tag
        return self

    def step(self) -> bool:
        if self.request is None:
            notices = self.box.board.notices
            if not notices.room(self.dest, self.number):
                return False
            notices.announce(self.dest, self.number, *self._notice)
            self.request = self.box.mpi.Isend(self.array, self.dest, self.number % TAGS)
        if self.request.Test():
            return True
        self.box.read()  # who sends to this rank waits for that
        return False

    def begun(self) -> bool:
        return self.box.board.notices.accepted(self.box.board.rank, self.dest, self.number)

    def needs(self) -> tuple[int, int, int]:
        return SEND, 1 << self.dest, self.number

    def say(self) -> str:
        return f"{self.what} to rank {self.dest}{explain.tagged(self._tag)} ({explain.where()})"


class Receiving:
    """A message that is wanted; see `pending.Step`."""

    def __init__(self, box: Mailbox, sources: tuple[int, ...], group: int, tag: int, array: np.ndarray, what: str):
        self.box, self.sources, self.group, self.tag, self.array, self.what = box, sources, group, tag, array, what
        self.members, self.request = (box.board.rank, *sources), None
        self.message: Message | None = None
        self.error: MismatchError | None = None
        box.post(self)

    @classmethod
    def of(cls, box: Mailbox, source: int, request: object, array: np.ndarray, what: str) -> Receiving:
        """One that is on its way."""
        self = cls.__new__(cls)
        self.box, self.sources, self.group, self.tag, self.array, self.what = box, (source,), 0, 0, array, what
        self.members, self.request, self.message, self.error = (box.board.rank, source), request, None, None
        return self

    def fits(self, message: Message) -> bool:
        """Whether this receive may take a message: its source, group and tag; what else does not fit is an error."""
        return message.group == self.group and message.source in self.sources and self.tag in (ANY, message.tag)

    def accept(self, message: Message) -> None:
        """Take a message."""
        self.message, box = message, self.box
        box.board.notices.accept(message.source, message.number)
        if (message.dtype, message.count) != (self.array.dtype.num, self.array.size):
            self.error = MismatchError(f"rank {box.board.rank}, {explain.unfit(self.array, message, explain.where())}")
            return
        self.request = box.mpi.Irecv(self.array, message.source, message.number % TAGS)

    def step(self) -> bool:
        if self.request is None and self.error is None:
            self.box.read()
        return self.error is not None or (self.request is not None and self.request.Test())

    def begun(self) -> bool:
        return self.request is not None

    def needs(self) -> tuple[int, int, int]:
        return RECV, sum(1 << source for source in self.sources), 0

    def say(self) -> str:
        """Where it waits, and what lies there that it does not take."""
        whom = f"rank {self.sources[0]}" if len(self.sources) == 1 else "any rank"
        other = [m for m in self.box.arrived if m.source in self.sources and m.group == self.group]
        lies = f"; rank {other[0].source} has sent it {other[0]}, which this does not take" if other else ""
        return f"{self.what} from {whom}{explain.tagged(self.tag)} ({explain.where()}{lies})"


@cache
def open_box(board: Board) -> Mailbox:
    """The mailbox of this process."""
    return Mailbox(board)

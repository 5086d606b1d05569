"""`Messenger`: messages that no rank waits for, and receives with a deadline, for programs that go on when a rank falls silent.

No call of it needs another rank to make one: `send` returns at once, and `listen` ends when its time is over. What is sent to a silent rank
arrives when that rank is back. On isolated ranks, the deadlines are in virtual time, see `collectives.coordination.virtual_network`.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from mpi4py import MPI

from course_lib import traffic
from course_lib.collectives.calls import BARRIER, LARGEST_TAG, Call
from course_lib.collectives.progress.operations import Operation, deferred_interrupts, progress, progress_state, raise_interrupt
from course_lib.collectives.transport import isolated
from course_lib.utils.interrupts import defer_interrupts

if TYPE_CHECKING:
    from course_lib.collectives.communicator import Communicator

MAX_TOPIC_CHARS, MAX_NUMBERS = 40, 8  # of a topic and of a key that the broker is told
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 5e-5, 2e-3  # between two looks for messages
_numbers = itertools.count(1)  # of this process's listens and takes, on isolated ranks
_latest = [0]  # the number of this process's latest messenger
_message_comms: dict[tuple[int, ...], MPI.Comm] = {}  # by group: an MPI communicator that only messengers use


@dataclass(frozen=True)
class Message:
    """A message.

    Attributes
    ----------
    source : int
        The rank that has sent it.
    topic : str
        What it is about: each call of `Messenger.listen` asks for one topic.
    key, value : object
        What `Messenger.send` was given.
    """

    source: int
    topic: str
    key: object
    value: object = None


class Messenger:
    """Sends messages between the ranks of a group, and receives them with a deadline; creating it is collective.

    Messages of one messenger never reach another one. From one rank to another they arrive in the order in which they were sent.

    Parameters
    ----------
    comm : Communicator

    Attributes
    ----------
    rank, size : int
        As in `comm`.
    """

    def __init__(self, comm: Communicator):
        self.rank, self.size, self._world = comm.Get_rank(), comm.Get_size(), comm.ranks
        number = np.array([_latest[0] + 1])
        comm.Allreduce(number.copy(), number, op=MPI.MAX)  # an interrupted rank may have made fewer than the others
        _latest[0] = int(number[0])
        self._link: Link = _RelayLink(comm, _latest[0]) if isolated.connection else _MpiLink(comm, _latest[0])
        self._sent = traffic.counters(comm.ranks)["Send"]
        self._arrived: dict[str, deque[Message]] = defaultdict(deque)
        self._kept: dict[str, list[Message]] = defaultdict(list)
        self._handlers: dict[str, Callable[[Message], None]] = {}

    def send(self, dest: int, topic: str, key: object, value: object = None) -> None:
        """Send a message; returns at once, also if the other rank is silent.

        Parameters
        ----------
        dest : int
            A rank of the group.
        topic : str
        key, value : object
            Numbers, text, arrays, and tuples, lists, sets and dicts of these. They are copied.

        Raises
        ------
        ValueError, TypeError
            There is no such rank, or the topic is not text.
        """
        if isinstance(dest, bool) or not isinstance(dest, (int, np.integer)) or not 0 <= dest < self.size:
            raise ValueError(f"send: dest must be a rank of the group, 0 to {self.size - 1}; got {dest!r} on rank {self.rank}.")
        if not isinstance(topic, str):
            raise TypeError(f"send: the topic must be text, such as 'join'; got {topic!r} on rank {self.rank}.")
        data = pickle.dumps((topic, key, value), protocol=5)
        self._link.send(int(dest), data, topic, key)
        self._sent[0] += 1
        self._sent[1] += len(data)

    def send_all(self, topic: str, key: object, value: object = None) -> None:
        """Send a message to all other ranks; see `send`."""
        for dest in range(self.size):
            if dest != self.rank:
                self.send(dest, topic, key, value)

    def listen(self, topic: str, seconds: float) -> Iterator[Message]:
        """Yield messages about a topic as they arrive, until so many seconds are over.

        Leave the loop with ``break`` when you have what you want; what has not been yielded waits for the next call.

        Parameters
        ----------
        topic : str
        seconds : float
            0 yields what is here already.

        Yields
        ------
        Message
            First what was kept (see `keep`), then in the order of arrival.

        Raises
        ------
        ValueError
            The time is not a number, or negative.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float, np.number)) or not seconds >= 0:
            raise ValueError(f"listen: seconds must be 0 or more; got {seconds!r} on rank {self.rank}.")
        self._arrived[topic].extendleft(reversed(self._kept.pop(topic, [])))
        deadline = self._link.deadline(seconds)
        while True:
            while self._arrived[topic]:
                yield self._arrived[topic].popleft()
            found = self._link.take(deadline)
            if found is None:
                return
            message = Message(found[0], *pickle.loads(found[1]))  # of a rank that runs the same code as this one
            if handler := self._handlers.get(message.topic):
                handler(message)
            else:
                self._arrived[message.topic].append(message)

    def keep(self, message: Message) -> None:
        """Put a message back, for the next call of `listen` about its topic."""
        self._kept[message.topic].append(message)

    def on(self, topic: str, function: Callable[[Message], None]) -> None:
        """Have a function called with each message about a topic, whenever this rank listens, to whatever topic."""
        self._handlers[topic] = function


class Link(Protocol):
    """Carries the messages of one messenger, as bytes."""

    def send(self, dest: int, data: bytes, topic: str, key: object) -> None:
        """Start to send a message; returns at once. Its topic and key are also in the bytes."""

    def deadline(self, seconds: float) -> object:
        """Return the deadline that many seconds from now, for `take`."""

    def take(self, deadline: object) -> tuple[int, bytes] | None:
        """Return the next message and its source, or None if there is none until the deadline."""


class _Sending(Operation):
    """A message on its way; in `progress_state.in_flight`, so that every wait advances it."""

    def __init__(self, comm: Communicator, request: MPI.Request, data: bytes):
        super().__init__(comm.ranks)
        self._request, self._data = request, data

    def advance(self) -> bool:
        return self._request.Test()

    def is_matched(self) -> bool:
        return True

    def describe(self) -> str:
        return "a message"


class _MpiLink:
    """Link through MPI; a messenger's number is the tag of its messages."""

    def __init__(self, comm: Communicator, number: int):
        self._comm, self._tag = comm, number % (LARGEST_TAG + 1)
        if comm.ranks not in _message_comms:
            with defer_interrupts():  # MPI creates a communicator in a blocking call; a rank interrupted before this never comes here
                if progress_state.interrupt_pending:
                    raise_interrupt()
                comm.transport.host.run(Call(BARRIER))
                _message_comms[comm.ranks] = comm.transport.host.message_comm.Dup()
        self._mpi, self._status = _message_comms[comm.ranks], MPI.Status()
        self._arriving: deque[tuple[int, bytearray, MPI.Request]] = deque()

    def send(self, dest: int, data: bytes, topic: str, key: object) -> None:
        with deferred_interrupts:
            request = self._mpi.Isend([data, MPI.BYTE], dest, self._tag)
            progress_state.in_flight[_Sending(self._comm, request, data)] = None

    def deadline(self, seconds: float) -> float:
        return time.monotonic() + seconds

    def take(self, deadline: float) -> tuple[int, bytes] | None:
        pause = MIN_PAUSE_SECONDS
        while True:
            with deferred_interrupts:
                progress()
                self._probe()
                if (found := self._first_whole()) is not None:
                    return found
            if time.monotonic() >= deadline:
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, MAX_PAUSE_SECONDS)

    def _probe(self) -> None:
        """Start to receive what has come; messages of earlier messengers are received, too, and dropped."""
        while message := self._mpi.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status):
            data = bytearray(self._status.Get_count(MPI.BYTE))
            source = self._status.source if self._status.tag == self._tag else -1
            self._arriving.append((source, data, message.Irecv([data, MPI.BYTE])))

    def _first_whole(self) -> tuple[int, bytes] | None:
        """Remove and return the first message that is complete, and whose predecessors from the same rank are."""
        behind = set()  # ranks with an incomplete message
        for item in list(self._arriving):
            source, data, request = item
            if source in behind or not request.Test():
                behind.add(source)
                continue
            self._arriving.remove(item)
            if source >= 0:
                return source, bytes(data)
        return None


class _RelayLink:
    """Link through the broker, which holds the messages and the clock."""

    def __init__(self, comm: Communicator, number: int):
        self._members, self._number = comm.ranks, number

    def send(self, dest: int, data: bytes, topic: str, key: object) -> None:
        header = {"post": self._members[dest], "messenger": self._number, "topic": topic[:MAX_TOPIC_CHARS]}
        if isinstance(key, tuple) and all(map(_is_number, key)):
            header["key"] = [int(number) for number in key[:MAX_NUMBERS]]
        isolated.connection.send(header, data)

    def deadline(self, seconds: float) -> tuple[int, float]:
        return next(_numbers), float(seconds)

    def take(self, deadline: tuple[int, float]) -> tuple[int, bytes] | None:
        from course_lib.collectives.transport import relay

        number, (listen, seconds) = next(_numbers), deadline
        isolated.connection.send({"take": number, "messenger": self._number, "listen": listen, "seconds": seconds})
        while (frame := isolated.connection.receive())[0].get("took") != number:
            relay.store_answer(frame)
        source = frame[0]["source"]
        return None if source < 0 else (self._members.index(source), bytes(frame[1]))


def _is_number(value: object) -> bool:
    """Return whether a value is a whole number of at most 62 bits."""
    return isinstance(value, (int, np.integer)) and abs(int(value)) < 1 << 62

"""The transport of isolated ranks: no MPI to the other ranks, only a connection to the broker in the notebook's own process.

Grading isolates ranks, so that bytes are counted where an answer cannot reach. The coordinator behind the broker sees that all ranks make
the same call, does what MPI would do, counts, and finds who waits in vain; see `cluster.isolated.coordinator`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib.collectives import buffers, diagnostics, errors
from course_lib.collectives.calls import (
    BARRIER,
    BCAST,
    BLOCKING_FORM,
    OPERATIONS,
    RECV,
    REDUCE_SCATTER,
    REDUCING,
    SCATTER,
    SEND,
    SPLIT,
    UNEVEN,
    USER_DEFINED,
    Call,
)
from course_lib.collectives.progress.matching import Envelope
from course_lib.collectives.progress.operations import Operation, WaitCondition, progress, progress_state
from course_lib.collectives.transport import IncomingMessage, OutgoingMessage, isolated

_calls = [0]  # how many this process has made: each has its number
_unanswered: set[int] = set()
_answers: dict[int, tuple[dict, bytes]] = {}  # that nobody has looked at


def store_answer(frame: tuple[dict, bytes]) -> None:
    """Keep an answer; one to a call that was broken off is nobody's."""
    call = frame[0].get("answer")
    if call in _unanswered:
        _unanswered.remove(call)
        _answers[call] = frame


class RelayedOperation(Operation):
    """A message or a non-blocking collective that the coordinator has not answered yet.

    Parameters
    ----------
    members : tuple of int
    call : int
        Its number.
    done : callable
        Takes this, the answer and its bytes; returns an error or None.
    call_name : str
        For a person.
    """

    def __init__(
        self, members: tuple[int, ...], call: int, done: Callable[[RelayedOperation, dict, bytes], Exception | None], call_name: str
    ):
        super().__init__(members)
        self.call, self.call_name, self._done = call, call_name, done
        self.unchanged: Callable[[], None] | None = None  # looks whether an array is as it was
        self.asked = False

    def advance(self) -> bool:
        while self._done:
            if self.call in _answers:
                (answer, data), done = _answers.pop(self.call), self._done
                self._done = None  # with the arrays that it knows
                self.error = _error(answer) or done(self, answer, data)
            elif frame := isolated.connection.poll():
                store_answer(frame)
            else:
                return False
        return True

    def is_matched(self) -> bool:
        return not self._done

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(0, self.members)  # the coordinator knows

    def describe(self) -> str:
        return f"{self.call_name} ({diagnostics.call_site()})"


class RelayTransport:
    """A group of isolated ranks; see `Transport`.

    Parameters
    ----------
    members : tuple of int
        World ranks, in the group's order.
    """

    check = staticmethod(buffers.checked_array)

    def __init__(self, members: tuple[int, ...]):
        self.members, self.rank, self.host = members, members.index(isolated.rank), self

    def __str__(self) -> str:
        return diagnostics.group_name(self.members, isolated.size)

    def run(self, call: Call) -> None:
        number = self._request(call.signature, self._payload(call), **_parts(call))
        while number not in _answers:
            store_answer(isolated.connection.receive())
        answer, data = _answers.pop(number)
        if error := _error(answer):
            raise error
        self._store_result(call, data)

    def start(self, call: Call) -> RelayedOperation:
        number = self._request(call.signature, self._payload(call), start=True, **_parts(call))
        return RelayedOperation(
            self.members, number, lambda _, __, data: self._store_result(call, data), f"{OPERATIONS[call.operation]} on {self}"
        )

    def exchange(self, outgoing: OutgoingMessage | None, incoming: IncomingMessage | None, call_name: str) -> tuple[int, int] | None:
        receiving = incoming and self.receive(*incoming, call_name)
        if outgoing:
            sending = self._send(*outgoing, call_name)
            progress_state.in_flight[sending] = None
        if receiving:
            self.wait(receiving)
        if outgoing:
            self.wait(sending)
        return receiving and receiving.received

    def send(self, array: np.ndarray, dest: int, tag: int, call_name: str) -> RelayedOperation:
        sending = self._send(array, dest, tag, call_name)
        # The coordinator has the array at once, and MPI may read it until `Wait`.
        sending.unchanged = _unchanged(array, f"by {call_name} ({diagnostics.call_site()})")
        return sending

    def _send(self, array: np.ndarray, dest: int, tag: int, call_name: str) -> RelayedOperation:
        number = self._request((SEND, array.dtype.num, array.size, tag), array, **{"peers": [dest]})
        return RelayedOperation(self.members, number, lambda *_: None, f"{call_name} to rank {dest}{diagnostics.tagged(tag)}")

    def receive(self, array: np.ndarray, sources: tuple[int, ...], tag: int, call_name: str) -> RelayedOperation:
        place = diagnostics.call_site()

        def done(receive: RelayedOperation, answer: dict, data: bytes) -> Exception | None:
            dtype, count = answer.get("sent", (array.dtype.num, array.size))
            receive.received = source, tag = answer["source"], answer["tag"]
            if "sent" in answer:
                message = Envelope(source, self.members, tag, dtype, count)
                return errors.MismatchError(f"rank {isolated.rank}, {diagnostics.message_mismatch(array, message, place)}")
            _put(array, data)
            return None

        number = self._request((RECV, array.dtype.num, array.size, tag), None, **{"peers": list(sources)})
        whom = f"rank {sources[0]}" if len(sources) == 1 else "any rank"
        return RelayedOperation(self.members, number, done, f"{call_name} from {whom}{diagnostics.tagged(tag)}")

    def wait(self, operation: RelayedOperation) -> None:
        if operation.unchanged:
            operation.unchanged()
        try:
            if not operation.advance():
                isolated.connection.send({"wait": operation.call, "place": operation.describe()})
                while operation.call not in _answers:
                    store_answer(isolated.connection.receive())
                operation.advance()
        finally:
            progress_state.in_flight.pop(operation, None)
        if operation.error is not None:
            raise operation.error

    def test(self, operation: RelayedOperation) -> bool:
        progress()
        if not (operation.is_matched() or operation.asked or operation.call in _answers):
            operation.asked = True  # of a large message that was sent, the coordinator does not say by itself that it has been received
            isolated.connection.send({"test": operation.call})
        ended = operation.advance()
        if ended and operation.unchanged:
            operation.unchanged()
        return ended

    def split(self, color: int, key: int) -> RelayTransport | None:
        n = len(self.members)
        wishes = np.empty((n, 2), np.int64)
        self.run(Call(SPLIT, send=np.array([color, key], np.int64), recv=wishes))
        if color == MPI.UNDEFINED:
            return None
        chosen = sorted((r for r in range(n) if wishes[r, 0] == color), key=lambda r: (wishes[r, 1], r))
        return _transport(tuple(self.members[r] for r in chosen))

    def synchronize(self) -> None:
        pass

    def _request(self, signature: tuple[int, ...], array: np.ndarray | None, **more: object) -> int:
        """Make a call; return its number."""
        _calls[0] += 1
        header = {"call": _calls[0], "members": self.members, "signature": signature, "place": diagnostics.call_site(), **more}
        _unanswered.add(_calls[0])
        isolated.connection.send(header, b"" if array is None else memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))
        return _calls[0]

    def _payload(self, call: Call) -> np.ndarray | None:
        """Return the array that this rank brings."""
        if call.operation == BARRIER or (call.operation in (BCAST, SCATTER) and self.rank != call.root):
            return None
        if call.operation in UNEVEN:
            flat = call.send.reshape(-1)
            return np.concatenate([flat[start : start + count] for start, count in zip(call.starts, call.counts, strict=True)])
        return call.recv if call.operation == BCAST else call.contribution

    def _store_result(self, call: Call, data: bytes) -> None:
        """Put what has come where it belongs."""
        operation, recv = BLOCKING_FORM.get(call.operation, call.operation), call.recv
        if operation == BARRIER or recv is None or (operation == BCAST and self.rank == call.root):
            return
        if operation in UNEVEN:
            found, out, begin = np.frombuffer(data, recv.dtype), recv.reshape(-1), 0
            for start, count in zip(call.recv_starts, call.recv_counts, strict=True):
                out[start : start + count] = found[begin : begin + count]
                begin += count
            return
        if operation in REDUCING and call.detail % 16 == USER_DEFINED:  # the coordinator sends what all ranks gave
            data = self._reduced(call, data)
        _put(recv, data)

    def _reduced(self, call: Call, data: bytes) -> bytes:
        parts = np.frombuffer(data, call.recv.dtype).reshape(len(self.members), -1).copy()
        for part in parts[1:]:
            call.op.Reduce_local(parts[0], part)  # MPI's order: in, and what is both in and out
            parts[0] = part
        start = sum(call.counts[: self.rank]) if BLOCKING_FORM.get(call.operation, call.operation) == REDUCE_SCATTER else 0
        return parts[0][start : start + call.recv.size].tobytes()


def _put(recv: np.ndarray, data: bytes) -> None:
    recv.reshape(-1)[:] = np.frombuffer(data, recv.dtype)


def _parts(call: Call) -> dict:
    return {} if call.counts is None else {"counts": [int(count) for count in call.counts]}


def _error(answer: dict) -> Exception | None:
    return getattr(errors, answer["error"])(answer["message"]) if "error" in answer else None


def _unchanged(array: np.ndarray, how: str) -> Callable[[], None]:
    """A function that raises MismatchError when the array has changed."""

    def checksum() -> int:
        return zlib.crc32(memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))

    before = checksum()

    def look() -> None:
        if checksum() != before:
            raise errors.MismatchError(f"the array that this rank began to send {how} was changed before its Wait.")

    return look


def world() -> RelayTransport:
    """All ranks."""
    return _transport(tuple(range(isolated.size)))


@cache
def _transport(members: tuple[int, ...]) -> RelayTransport:
    """The one transport of these world ranks in this order."""
    return RelayTransport(members)


def of_communicator(comm: MPI.Comm) -> RelayTransport:
    """A transport for a communicator of MPI's own: to MPI, this rank is alone."""
    return _transport((isolated.rank,))

"""Relay transport, used on isolated ranks: no MPI between the ranks, only a connection to the broker in the notebook's kernel.

Grading isolates ranks, so that their traffic is counted where student code cannot reach. The coordinator behind the broker compares the
ranks' calls, computes the results, counts bytes, and detects deadlocks; see `coordination.coordinator`. The frames exchanged with the
broker are specified in `cluster.isolated.broker`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from course_lib.collectives import buffers, calls, diagnostics, errors
from course_lib.collectives.calls import BLOCKING_FORM, OPERATIONS, REDUCING, UNEVEN, USER_DEFINED, Call
from course_lib.collectives.progress.matching import Envelope
from course_lib.collectives.progress.operations import Operation, progress, progress_state
from course_lib.collectives.transport import IncomingMessage, OutgoingMessage, isolated, split_members


def store_answer(frame: tuple[dict, bytes]) -> None:
    """Store an answer until its call consumes it; drop it if no call waits for it."""
    call = frame[0].get("answer")
    if call in isolated.unanswered:
        isolated.unanswered.remove(call)
        isolated.answers[call] = frame


class RelayedOperation(Operation):
    """A message or nonblocking collective in flight at the coordinator; complete once its answer is here.

    Parameters
    ----------
    members : tuple of int
        World ranks.
    call : int
        The call's number, see the key "call" in `cluster.isolated.broker`.
    done : callable
        Consumes the answer: is given this operation, the answer's header and its payload; returns an error or None.
    call_name : str
        The call, as error messages name it.
    """

    def __init__(
        self, members: tuple[int, ...], call: int, done: Callable[[RelayedOperation, dict, bytes], Exception | None], call_name: str
    ):
        super().__init__(members)
        self.call, self.call_name, self._done = call, call_name, done
        self.unchanged: Callable[[], None] | None = None  # raises if the array being sent was modified
        self.asked = False

    def advance(self) -> bool:
        while self._done:
            if self.call in isolated.answers:
                (answer, data), done = isolated.answers.pop(self.call), self._done
                self._done = None  # also releases the arrays that it refers to
                self.error = _error(answer) or done(self, answer, data)
            elif frame := isolated.connection.poll():
                store_answer(frame)
            else:
                return False
        return True

    def is_matched(self) -> bool:
        return not self._done

    def describe(self) -> str:
        return f"{self.call_name} ({diagnostics.call_site()})"


class RelayTransport:
    """Transport over the broker for one group of isolated ranks; implements `Transport`.

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
        while number not in isolated.answers:
            store_answer(isolated.connection.receive())
        answer, data = isolated.answers.pop(number)
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
        # The coordinator has a copy already; MPI may read the array until `Wait`, so changing it before must raise here, too.
        sending.unchanged = _unchanged(array, f"passed to {call_name} ({diagnostics.call_site()})")
        return sending

    def _send(self, array: np.ndarray, dest: int, tag: int, call_name: str) -> RelayedOperation:
        number = self._request((calls.SEND, array.dtype.num, array.size, tag), array, **{"peers": [dest]})
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

        number = self._request((calls.RECV, array.dtype.num, array.size, tag), None, **{"peers": list(sources)})
        whom = f"rank {sources[0]}" if len(sources) == 1 else "any rank"
        return RelayedOperation(self.members, number, done, f"{call_name} from {whom}{diagnostics.tagged(tag)}")

    def wait(self, operation: RelayedOperation) -> None:
        try:
            if operation.unchanged:
                operation.unchanged()
            if not operation.advance():
                isolated.connection.send({"wait": operation.call, "place": operation.describe()})
                while operation.call not in isolated.answers:
                    store_answer(isolated.connection.receive())
                operation.advance()
        finally:
            progress_state.in_flight.pop(operation, None)
        if operation.error is not None:
            raise operation.error

    def test(self, operation: RelayedOperation) -> bool:
        progress()
        if not (operation.is_matched() or operation.asked or operation.call in isolated.answers):
            operation.asked = True  # the coordinator reports the receipt of a large message only on request
            isolated.connection.send({"test": operation.call})
        ended = operation.advance()
        if ended and operation.unchanged:
            try:
                operation.unchanged()
            except errors.MismatchError as error:
                operation.error = error  # raised by the request, once it is closed
        return ended

    def split(self, color: int, key: int) -> RelayTransport | None:
        wishes = np.empty((len(self.members), 2), np.int64)
        self.run(Call(calls.SPLIT, send=np.array([color, key], np.int64), recv=wishes))
        if color == MPI.UNDEFINED:
            return None
        return _transport(split_members(self.members, wishes, color))

    def synchronize(self) -> None:
        pass

    def _request(self, signature: tuple[int, ...], array: np.ndarray | None, **more: object) -> int:
        """Send a call to the broker; return its number."""
        if isolated.transports.get(self.members) is not self:  # on a virtual rank: a real group
            message = "cannot be reached from here: use the communicator that the function was given."
            raise errors.CollectiveError(f"{self} {message}")
        isolated.call_count += 1
        number = isolated.call_count
        place = diagnostics.call_site()
        isolated.unanswered.add(number)
        header = {"call": number, "members": self.members, "signature": signature, "place": place}
        payload = b""
        if array is not None:
            payload = memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B")
        isolated.connection.send(header | more, payload)
        return number

    def _payload(self, call: Call) -> np.ndarray | None:
        """Return this rank's contribution to a collective, or None."""
        if call.operation == calls.BARRIER or (call.operation in (calls.BCAST, calls.SCATTER) and self.rank != call.root):
            return None
        if call.operation in UNEVEN:
            flat = call.send.reshape(-1)
            return np.concatenate([flat[start : start + count] for start, count in zip(call.starts, call.counts, strict=True)])
        return call.recv if call.operation == calls.BCAST else call.contribution

    def _store_result(self, call: Call, data: bytes) -> None:
        """Store a collective's result, as sent by the coordinator, in the receive buffer."""
        operation, recv = BLOCKING_FORM.get(call.operation, call.operation), call.recv
        if operation == calls.BARRIER or recv is None or (operation == calls.BCAST and self.rank == call.root):
            return
        if operation in UNEVEN:
            found, out, begin = np.frombuffer(data, recv.dtype), recv.reshape(-1), 0
            for start, count in zip(call.recv_starts, call.recv_counts, strict=True):
                out[start : start + count] = found[begin : begin + count]
                begin += count
            return
        if operation in REDUCING and call.detail % 16 == USER_DEFINED:  # the coordinator sends all contributions
            data = self._reduced(call, data)
        _put(recv, data)

    def _reduced(self, call: Call, data: bytes) -> bytes:
        parts = np.frombuffer(data, call.recv.dtype).reshape(len(self.members), -1).copy()
        for part in parts[1:]:
            call.op.Reduce_local(parts[0], part)  # arguments in, inout
            parts[0] = part
        start = sum(call.counts[: self.rank]) if BLOCKING_FORM.get(call.operation, call.operation) == calls.REDUCE_SCATTER else 0
        return parts[0][start : start + call.recv.size].tobytes()


def _put(recv: np.ndarray, data: bytes) -> None:
    recv.reshape(-1)[:] = np.frombuffer(data, recv.dtype)


def _parts(call: Call) -> dict:
    return {} if call.counts is None else {"counts": [int(count) for count in call.counts]}


def _error(answer: dict) -> Exception | None:
    return getattr(errors, answer["error"])(answer["message"]) if "error" in answer else None


def _unchanged(array: np.ndarray, how: str) -> Callable[[], None]:
    """Return a function that raises MismatchError if the array has been modified since; `how` completes "the array ..."."""

    def checksum() -> int:
        return zlib.crc32(memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))

    before = checksum()

    def look() -> None:
        if checksum() != before:
            raise errors.MismatchError(f"the array {how} was changed before its Wait.")

    return look


def world() -> RelayTransport:
    """Return the transport of all ranks."""
    return _transport(tuple(range(isolated.size)))


def _transport(members: tuple[int, ...]) -> RelayTransport:
    """Return the transport of these world ranks in this order, of which there is one."""
    if members not in isolated.transports:
        isolated.transports[members] = RelayTransport(members)
    return isolated.transports[members]


def of_communicator(comm: MPI.Comm) -> RelayTransport:
    """Return the transport for an MPI communicator: to MPI, this rank is a world of its own."""
    return _transport((isolated.rank,))

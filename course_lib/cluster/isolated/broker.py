"""The broker between isolated ranks: it passes their calls to the coordinator, and what that answers back to them.

All that it knows comes from frames (`transport.frames`), each from one rank's own socket, so what is counted for a rank is what came
from it. A rank's frames are read as an enemy's: bounded, and checked against what all ranks of the group say.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from course_lib import wording
from course_lib.cluster import requests
from course_lib.cluster.isolated import sanitize
from course_lib.cluster.isolated.coordinator import Answer, Coordinator
from course_lib.cluster.isolated.reference_collectives import ProtocolViolation
from course_lib.cluster.isolated.scheduler import RankScheduler
from course_lib.collectives.transport.frames import MAX_HEADER_BYTES, FrameReader, encode_frame
from course_lib.engine import serialization

MAX_PAYLOAD_BYTES = 128 << 20  # bytes in a frame
MAX_UNREAD_BYTES, MAX_UNREAD_PIECES = 512 << 20, 20_000  # bytes, and pieces, that wait for a rank to read them
MAX_REPLY_BYTES, MAX_REPLY_VALUES = 64 << 20, 2_000_000  # bytes of an answer, and values in it
CONNECTION_ENDED = "its connection has ended"
Frame = tuple[dict, bytearray]


class Broker(threading.Thread):
    """Reads what the ranks send, and answers.

    Parameters
    ----------
    connections : list of socket.socket
        To each rank, in order.
    on_reply : callable
        Called in this thread with rank, number of the request, and the reply.
    on_ready : callable
        Called in this thread with the rank.
    """

    def __init__(self, connections: list[socket.socket], on_reply: Callable, on_ready: Callable):
        super().__init__(daemon=True)
        self.connections, self.coordinator = connections, Coordinator(len(connections))
        self.violations: dict[int, str] = {}  # what a rank sent that no rank of ours sends
        self.scheduler: RankScheduler | None = None  # a schedule, for a check that wants one
        self._on_reply, self._on_ready = on_reply, on_ready
        self._in = [FrameReader(connection) for connection in connections]
        self._out: list[deque[memoryview]] = [deque() for _ in connections]
        self._unread = [0] * len(connections)  # bytes of that
        self._submitted: deque[Callable] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_send, self._wake_receive = socket.socketpair()
        self._wake_receive.setblocking(False)
        self._selector.register(self._wake_receive, selectors.EVENT_READ, None)
        for r, connection in enumerate(connections):
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, r)
        self._ready: set[int] = set()
        self._ending = False

    def submit(self, what: Callable) -> None:
        """Have something done by the broker's own thread; from any thread."""
        self._submitted.append(what)
        self._wake_send.send(b"!")

    def set_scheduler(self, scheduler: RankScheduler | None) -> None:
        """Have the ranks go on by a schedule, or (None) as they come, from now on; from any other thread."""
        done = threading.Event()
        if self.is_alive() and not self._ending:
            self.submit(lambda: (setattr(self, "scheduler", scheduler), done.set()))
            done.wait(5)

    def request(self, rank: int, number: int, request: bytes, *facts: object) -> None:
        """Send a rank a request, with the `facts` for `Coordinator.begin`; from any thread."""
        self.submit(lambda: (self.coordinator.begin(rank, *facts), self._send(rank, {"request": number}, request)))

    def end(self) -> None:
        """End the thread, and close all connections."""
        self._ending = True
        if self.is_alive():
            self._wake_send.send(b"!")
            self.join(5)
        for connection in (*self.connections, self._wake_send, self._wake_receive):
            connection.close()
        self._selector.close()

    def run(self) -> None:
        while not self._ending:
            try:
                self._serve_once()
            except Exception as error:  # memory that ran out, say: nobody is to wait for a broker that has ended
                for rank in range(len(self.connections)):
                    self._drop_rank(rank, f"the broker had a {type(error).__name__}")

    def unread_bytes(self, rank: int) -> int:
        """Bytes that came from a rank, or go there, and are not read yet."""
        return len(self._in[rank]) + self._unread[rank]

    def _serve_once(self) -> None:
        for key, events in self._selector.select(0.05 if self.scheduler or self.coordinator.any_waiting() else None):
            if key.data is None:
                self._wake_receive.recv(4096)
            elif events & selectors.EVENT_WRITE:
                self._write(key.data)
            else:
                self._read(key.data)
        while self._submitted:
            self._submitted.popleft()()
        self._deliver(self.coordinator.deadlocked(time.monotonic()))
        for frame in self.scheduler.next_frames(self.coordinator) if self.scheduler else ():
            self._transmit(*frame)

    def _read(self, rank: int) -> None:
        try:
            count = self._in[rank].receive()
        except BlockingIOError:
            return
        except OSError:
            count = 0
        try:
            if not count:
                raise ProtocolViolation(CONNECTION_ENDED)
            while rank not in self.violations and (frame := self._frame(rank)):
                self._handle_frame(rank, *frame)
        except ProtocolViolation as broken:
            self._drop_rank(rank, str(broken))
        except Exception as error:  # whatever it was, the broker goes on
            self._drop_rank(rank, f"it sent what made a {type(error).__name__}")

    def _frame(self, rank: int) -> Frame | None:
        lengths = self._in[rank].lengths()
        if lengths and (lengths[0] > MAX_HEADER_BYTES or lengths[1] > MAX_PAYLOAD_BYTES):
            raise ProtocolViolation(f"it sent a message of {wording.size(sum(lengths))}")
        if not (frame := self._in[rank].next_frame()):
            return None
        try:
            found = json.loads(frame[0])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProtocolViolation("it sent a message that cannot be read")
        return found, frame[1]

    def _handle_frame(self, rank: int, header: dict, payload: bytearray) -> None:
        if "call" in header:
            answers = self.coordinator.call(rank, header, payload)
        elif "wait" in header:
            answers = self.coordinator.wait(rank, header["wait"], header.get("place", ""))
        elif "test" in header:
            answers = self.coordinator.test(rank, header["test"])
        elif "reply" in header:
            self._reply(rank, header["reply"], header.get("text"), payload)
            answers = []
        elif "gate" in header:
            answers = [(rank, {"gate": self.coordinator.gate(rank)}, b"")]
        elif "ready" in header:
            if rank in self._ready:
                raise ProtocolViolation("it said a second time that it is ready")
            self._ready.add(rank)
            self._on_ready(rank)
            answers = []
        else:
            raise ProtocolViolation("it sent a message that is neither a call nor a reply")
        if self.scheduler:
            self.scheduler.frame_received(rank, header)
        self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        for to, answer, data in answers:
            self._send(to, answer, data)

    def _reply(self, rank: int, number: object, length: object, payload: bytearray) -> None:
        if len(payload) > MAX_REPLY_BYTES:
            raise ProtocolViolation(f"its answer has {wording.size(len(payload))}")
        text = payload[:length] if type(length) is int and length >= 0 else payload
        if sum(text.count(c) for c in (b",", b"[", b"{")) > MAX_REPLY_VALUES:
            raise ProtocolViolation("its answer has too many pieces")
        try:
            reply = serialization.loads(text)
        except (ValueError, RecursionError):
            raise ProtocolViolation("its answer cannot be read") from None
        reply["rest"] = memoryview(payload)[len(text) :]
        reply["outputs"], error = sanitize.outputs(reply.get("outputs")), sanitize.error(reply.get("error"))
        failed = self.coordinator.failed(rank)
        if failed and (not error or error["name"] != failed[0]):
            error = requests.error(*failed)
        reply["error"], reply["traffic"], reply["arrays"] = error, self.coordinator.sent(rank), self.coordinator.arrays(rank)
        reply["messages"], reply["unended"] = self.coordinator.messages(rank), self.coordinator.unended(rank)
        self.coordinator.finish(rank, f"{error['name']} ({error['place']})" if error else "")
        self._on_reply(rank, number, reply)

    def _send(self, rank: int, header: dict, payload: bytes = b"") -> None:
        if rank in self.violations:
            return
        if self.scheduler:
            self.scheduler.hold(rank, header, payload)
        else:
            self._transmit(rank, header, payload)

    def _transmit(self, rank: int, header: dict, payload: bytes) -> None:
        if rank in self.violations:
            return
        if self._unread[rank] + len(payload) > MAX_UNREAD_BYTES or len(self._out[rank]) > MAX_UNREAD_PIECES:
            self._drop_rank(rank, "it does not read what it is sent")
            return
        for piece in encode_frame(header, payload):
            self._out[rank].append(piece)
            self._unread[rank] += len(piece)
        self._write(rank)

    def _write(self, rank: int) -> None:
        out, connection = self._out[rank], self.connections[rank]
        try:
            while out:
                sent = connection.send(out[0])
                out[0] = out[0][sent:]
                self._unread[rank] -= sent
                if not out[0]:
                    out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._forget(rank)
        if rank not in self.violations:
            self._selector.modify(connection, selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0), rank)

    def _forget(self, rank: int) -> None:
        self._out[rank].clear()
        self._unread[rank] = 0

    def _drop_rank(self, rank: int, why: str) -> None:
        if rank in self.violations:
            return
        self.violations[rank] = why
        self._forget(rank)
        self._in[rank] = FrameReader(self.connections[rank])
        if self.scheduler:
            self.scheduler.ended(rank)
        self._selector.unregister(self.connections[rank])
        self.coordinator.mark_gone(rank)

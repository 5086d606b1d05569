"""Broker of isolated ranks: passes their calls to the coordinator, and its answers back to them.

Each rank has a socket of its own, so whatever arrives on it is that rank's. Frames from ranks are untrusted: their sizes are bounded, and
their content is checked, also against that of the other ranks of the group. A frame that the course's library never sends is a
`ProtocolViolation`: the broker drops the rank, which to the others has ended.

A frame (`collectives.transport.frames`) has a JSON header and a payload of bytes. One of the keys below gives the kind of the frame.
On a rank, `collectives.transport.relay`, `engine.isolated_rank` and `engine.traffic_gates` are the other side.

From a rank to the broker:

=============  =========================================================  ==============================================================
Key            Value, and further keys                                    Meaning; payload
=============  =========================================================  ==============================================================
``ready``      the rank                                                   The rank has started up and can take requests; sent once.
``reply``      number of the request                                      The request is done; sent once. Payload: a JSON text in ASCII,
               ``text``: bytes of the JSON text                           followed by the bytes of its arrays, see
                                                                          `engine.serialization.parts` and `engine.reply_limits`.
``call``       the call's number, unique on this rank                     A collective or a message. Payload: this rank's contribution,
               ``members``: world ranks, in the group's order             or the array to send; empty for a receive. Only while the rank
               ``signature``: operation, dtype, count, detail,            has a request to do. A collective without ``start`` blocks: the
               as `calls.Call` has them; the detail of a message          rank then counts as waiting at ``place``.
               is its tag
               ``place``: place in the student's code
               ``start``: true for a nonblocking collective
               ``peers``: destination, or possible sources, as world
               ranks; only for a message
               ``counts``: elements of each part; only for a
               reduce-scatter or an Alltoallv
``wait``       number of a call                                           The rank blocks until this message or nonblocking collective is
               ``place``: the call in words, and its place                answered.
``test``       number of a call                                           Asks for an answer as soon as the call is complete; needed for
                                                                          large sends only, as all other calls are answered anyway.
``gate``       true                                                       The rank has reached its next gate (`engine.traffic_gates`).
``post``       the receiver, a world rank                                 A message of a `Messenger`, see
               ``messenger``: the messenger's number                      `coordination.virtual_network`. Payload: the message.
               ``topic``: the beginning of its topic
               ``key``: its key, if that is a tuple of whole numbers
``take``       number of the request, unique on this rank                 The rank blocks until a message for this messenger is here, or
               ``messenger``: the messenger's number                      until ``seconds`` after the first ``take`` of the same listen.
               ``listen``: number of the listen
               ``seconds``: a float
=============  =========================================================  ==============================================================

From the broker to a rank:

=============  =========================================================  ==============================================================
Key            Value, and further keys                                    Meaning; payload
=============  =========================================================  ==============================================================
``request``    number of the request                                      A request of the kernel. Payload: a pickled dict, see
                                                                          `engine.requests.handler`.
``answer``     number of the call                                         The call is complete. Payload: its result, or the received array.
               ``source``, ``tag``: of a received message                 With ``sent`` or ``error``, there is no payload.
               ``sent``: dtype and count of a message that does not
               fit its receive
               ``error``, ``message``: class in `collectives.errors`,
               and text, to be raised
``gate``       bytes sent, bytes required, the gate's number (0.0 if      Answers ``gate``.
               they are too few or too many), and perhaps the limit
``took``       number of the request                                      Answers ``take``. Payload: the message.
               ``source``: world rank, or -1: the time is over
=============  =========================================================  ==============================================================

A call is answered at most once: a collective when all ranks of the group have called it, a receive when a message matches, a send of at
most `mailbox.EAGER_BYTES` at once, and a larger one when it has been received and the rank waits for it or has asked. A call left over from
a request that failed is not answered; a rank that waits for it gets an error.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from course_lib.cluster import requests
from course_lib.cluster.isolated import sanitize
from course_lib.cluster.isolated.scheduler import RankScheduler
from course_lib.collectives.coordination.coordinator import Answer, Coordinator
from course_lib.collectives.coordination.reference_collectives import ProtocolViolation
from course_lib.collectives.coordination.virtual_network import HeldFrame
from course_lib.collectives.transport.frames import MAX_HEADER_BYTES, FrameReader, encode_frame
from course_lib.engine import reply_limits, serialization
from course_lib.sandbox.process_pause import ProcessPause
from course_lib.utils import wording

MAX_PAYLOAD_BYTES = 64 << 20  # of a frame; the largest of a solution, in part 08, has 13 MB
MAX_UNREAD_BYTES, MAX_UNREAD_PIECES = 256 << 20, 20_000  # output queued for a rank
# Of all ranks together: messages that arrive, wait for others, or are on their way to a rank. They
# are counted when a large one is announced.
MAX_HELD_BYTES, LARGE_BYTES = 768 << 20, 1 << 16
CONNECTION_ENDED = "its connection was closed"
Frame = tuple[dict, bytearray]


class Broker(threading.Thread):
    """Thread that reads the ranks' frames and answers them; the only one that touches the coordinator.

    Parameters
    ----------
    connections : list of socket.socket
        The connection to each rank, by rank.
    on_reply : callable
        Called in this thread with the rank, the number of the request, and the reply.
    on_ready : callable
        Called in this thread with the rank.

    Attributes
    ----------
    violations : dict of int to str
        By rank that was dropped: the reason.
    scheduler : RankScheduler or None
        If set, it decides when each rank's frames are delivered.
    pauses : dict of int to ProcessPause
        By rank that is ready: stops its process while it has no request, with all threads that
        a cell has left running.
    """

    def __init__(self, connections: list[socket.socket], on_reply: Callable, on_ready: Callable):
        super().__init__(daemon=True)
        self.connections, self.coordinator = connections, Coordinator(len(connections))
        self.violations: dict[int, str] = {}
        self.scheduler: RankScheduler | None = None
        self.pauses: dict[int, ProcessPause] = {}
        self._unanswered: list[set[int]] = [set() for _ in connections]  # requests, by number
        self._on_reply, self._on_ready = on_reply, on_ready
        self._in = [FrameReader(connection) for connection in connections]
        self._out: list[deque[memoryview]] = [deque() for _ in connections]
        self._unread = [0] * len(connections)  # bytes in `_out`
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
        """Have a function run in the broker's thread; may be called from any thread."""
        self._submitted.append(what)
        self._wake_send.send(b"!")

    def set_scheduler(self, scheduler: RankScheduler | None) -> None:
        """Set the scheduler that runs the ranks, or None for all at once; may be called from any other thread."""
        done = threading.Event()
        if self.is_alive() and not self._ending:
            self.submit(lambda: (setattr(self, "scheduler", scheduler), done.set()))
            done.wait(5)

    def request(self, rank: int, number: int, request: bytes, *facts: object) -> None:
        """Send a rank a pickled request; `facts` are the arguments of `Coordinator.begin`. May be called from any thread."""
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
            except Exception as error:  # such as MemoryError: no one must wait for a broker that has failed
                for rank in range(len(self.connections)):
                    self._drop_rank(rank, f"the broker failed with {type(error).__name__}")

    def unread_bytes(self, rank: int) -> int:
        """Return the bytes on their way from and to a rank: received but not handled, and queued but not sent."""
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
        self._advance()
        self._deliver(self.coordinator.deadlocked(time.monotonic()))
        for frame in self.scheduler.next_frames(self.coordinator) if self.scheduler else ():
            self._transmit(*frame)

    def _advance(self) -> None:
        """Advance the messengers' network, and handle the frames of ranks whose silence is over."""
        frames: list[HeldFrame] | None = None
        while frames is None or frames:
            answers, frames = self.coordinator.advance()
            self._deliver(answers)
            for rank, header, payload in frames:
                with self._checking(rank):
                    self._handle_frame(rank, header, payload)

    def _read(self, rank: int) -> None:
        try:
            count = self._in[rank].receive()
        except BlockingIOError:
            return
        except OSError:
            count = 0
        with self._checking(rank):
            if not count:
                raise ProtocolViolation(CONNECTION_ENDED)
            while rank not in self.violations and (frame := self._frame(rank)):
                self._handle_frame(rank, *frame)

    @contextlib.contextmanager
    def _checking(self, rank: int) -> Iterator[None]:
        """Drop a rank whose frames are invalid: whatever a rank sends, the broker keeps running."""
        try:
            yield
        except ProtocolViolation as broken:
            self._drop_rank(rank, str(broken))
        except Exception as error:
            self._drop_rank(rank, f"it sent a message that the broker could not handle ({type(error).__name__})")

    def _frame(self, rank: int) -> Frame | None:
        lengths = self._in[rank].lengths()
        if lengths and (lengths[0] > MAX_HEADER_BYTES or lengths[1] > MAX_PAYLOAD_BYTES):
            size, most = wording.size(sum(lengths)), wording.size(MAX_PAYLOAD_BYTES)
            raise ProtocolViolation(f"it sent a message of {size}, and at most {most} are possible")
        if lengths and lengths[1] >= LARGE_BYTES:
            held = self._held_bytes()
            if held + lengths[1] > MAX_HELD_BYTES:
                raise ProtocolViolation(
                    f"it sent a message of {wording.size(lengths[1])} while the ranks had "
                    f"{wording.size(held)} in messages that are not received; all together may "
                    f"have at most {wording.size(MAX_HELD_BYTES)}"
                )
        if not (frame := self._in[rank].next_frame()):
            return None
        try:
            found = json.loads(frame[0])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProtocolViolation("it sent a message that cannot be read")
        return found, frame[1]

    def _held_bytes(self) -> int:
        """Return the bytes in the ranks' messages that this process has in memory."""
        # The result of a collective goes to several ranks, and is one object.
        leaving = {id(piece.obj): len(piece) for out in self._out for piece in out}
        arriving = sum(map(len, self._in))
        return arriving + self.coordinator.waiting_bytes() + sum(leaving.values())

    def _handle_frame(self, rank: int, header: dict, payload: bytearray) -> None:
        answers = []
        if self.coordinator.network.holds(rank, header, payload):
            return
        if "call" in header:
            answers = self.coordinator.call(rank, header, payload)
        elif "wait" in header:
            answers = self.coordinator.wait(rank, header["wait"], header.get("place", ""))
        elif "test" in header:
            answers = self.coordinator.test(rank, header["test"])
        elif "reply" in header:
            self._reply(rank, header["reply"], header.get("text"), payload)
        elif "gate" in header:
            answers = [(rank, {"gate": self.coordinator.gate(rank)}, b"")]
        elif "ready" in header:
            if rank in self._ready:
                raise ProtocolViolation("it reported twice that it is ready")
            self._ready.add(rank)
            self._on_ready(rank)
        elif "post" in header:
            self.coordinator.post(rank, header, payload)
        elif "take" in header:
            self.coordinator.take(rank, header)
        else:
            raise ProtocolViolation("it sent a message that is neither a call nor a reply")
        if self.scheduler:
            self.scheduler.frame_received(rank, header)
        self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        for to, answer, data in answers:
            self._send(to, answer, data)

    def _reply(self, rank: int, number: object, length: object, payload: bytearray) -> None:
        if type(number) is not int or number not in self._unanswered[rank]:
            raise ProtocolViolation("it answered a request that it does not have")
        text = payload[:length] if type(length) is int and length >= 0 else payload
        array_bytes = len(payload) - len(text)
        if why := reply_limits.excess(text, array_bytes, len(self.connections)):
            raise ProtocolViolation(f"its reply has {why}")
        if not text.isascii():  # one other character would make the text four times as large
            raise ProtocolViolation("its reply cannot be read")
        try:
            reply = serialization.loads(text)
        except (ValueError, RecursionError):
            raise ProtocolViolation("its reply cannot be read") from None
        reply["rest"] = memoryview(payload)[len(text) :]
        reply["outputs"] = sanitize.outputs(reply.get("outputs"), len(self.connections))
        error = sanitize.error(reply.get("error"))
        failed = self.coordinator.failed(rank)
        if failed and (not error or error["name"] != failed[0]):
            error = requests.error(*failed)
        reply["error"], reply["traffic"], reply["arrays"] = error, self.coordinator.sent(rank), self.coordinator.arrays(rank)
        reply["messages"], reply["unended"] = self.coordinator.messages(rank), self.coordinator.unended(rank)
        self.coordinator.finish(rank, f"{error['name']} ({error['place']})" if error else "")
        self._unanswered[rank].remove(number)
        if not self._unanswered[rank] and rank in self.pauses:
            self.pauses[rank].hold("no request")
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
            self._drop_rank(rank, "it does not read what is sent to it")
            return
        if "request" in header:
            self._unanswered[rank].add(header["request"])
            if rank in self.pauses:
                self.pauses[rank].release("no request")
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

"""Record the communicator's calls in a trace.

For the time of a trace, `Communicator` and `Request` get methods that also record, so that calls cost nothing more without one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from course_lib.collectives import calls
from course_lib.collectives.communicator import Communicator
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.transport.requests import Request
from course_lib.trace import perfetto
from course_lib.trace import recorder as trace_recorder
from course_lib.trace.recorder import END, NUMBER, PEER, TAG, Recorder
from course_lib.trace.timeline import Trace
from course_lib.utils import host

PINGS = 16  # exchanges with rank 0, of which the fastest gives a clock's offset
PING_TAG = calls.LARGEST_TAG  # a message that was left from an earlier cell must not match


@contextmanager
def recording(recorder: Recorder | None = None) -> Iterator[Recorder]:
    """Record a trace of this rank inside a ``with`` block; by default with a new recorder."""
    recorder = recorder or Recorder()
    before = {(kind, name): getattr(kind, name) for kind, methods in _METHODS.items() for name in methods}
    try:
        for (kind, name), original in before.items():
            setattr(kind, name, functools.wraps(original)(_METHODS[kind][name](original, recorder)))
        recorder.start()
        yield recorder
    finally:
        recorder.stop()
        for (kind, name), original in before.items():
            setattr(kind, name, original)


@contextmanager
def recorded_to(file: Path | None, comm: Communicator, title: str) -> Iterator[None]:
    """Record what all ranks do inside a ``with`` block, and have rank 0 write it as a file for Perfetto; collective.

    Without a file, nothing is recorded.
    """
    if file is None:
        yield
        return
    recorder = Recorder()
    offset, uncertainty = clock_offset(comm, recorder) if open_board().machines else (0.0, 0.0)
    with recording(recorder):
        yield
    record = recorder.as_dict() | {"offset": offset, "uncertainty": uncertainty, "host": host.name()}
    mine = np.frombuffer(json.dumps(record).encode(), np.uint8)
    sizes = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([mine.size]), sizes)
    padded = np.zeros(sizes.max(), np.uint8)
    padded[: mine.size] = mine
    texts = np.empty((len(sizes), len(padded)), np.uint8)
    comm.Gather(padded, texts if comm.Get_rank() == 0 else None)
    if comm.Get_rank() == 0:
        found = {comm.ranks[i]: json.loads(text[:size].tobytes()) for i, (text, size) in enumerate(zip(texts, sizes, strict=True))}
        perfetto.write(Trace.from_replies(found, title, {rank: reply["host"] for rank, reply in found.items()}), file)


@contextmanager
def prolonged_wait(request: Request) -> Iterator[None]:
    """Have a trace show all of a ``with`` block as the wait for a request, which completes in it: where messages take longer than here."""
    event, recorder = getattr(request, "recorded", None), trace_recorder.active
    begin = recorder.clock() if recorder else 0.0
    yield
    if recorder and event:
        event[END] = recorder.clock()
        kind, name, _, end, ranks, number, _, peer, tag = event
        recorder.add("wait", name, begin, end, ranks, number, 0, peer, tag, kind.removeprefix("started "))


def _run_collective(original: Callable, recorder: Recorder) -> Callable:
    clock = recorder.clock

    def run_collective(self, transport, call, name, payload=-1):
        number, nbytes, begin = recorder.number(self.ranks), 0, clock()
        try:
            original(self, transport, call, name, payload)
            nbytes = max(payload, 0)  # `traffic` counts only what has succeeded
        finally:
            recorder.add("collective", name, begin, clock(), self.ranks, number, nbytes)

    return run_collective


def _split(original: Callable, recorder: Recorder) -> Callable:
    def Split(self, color=0, key=0):
        number, begin = recorder.number(self.ranks), recorder.clock()
        try:
            return original(self, color, key)
        finally:
            recorder.add("collective", "Split", begin, recorder.clock(), self.ranks, number)

    return Split


def _begin(original: Callable, recorder: Recorder) -> Callable:
    def begin(self, call, name, payload, post=None):
        number, began = recorder.number(self.ranks), recorder.clock()
        request = original(self, call, name, payload, post)
        request.recorded = recorder.add_started("collective", name, began, self.ranks, number, payload)
        return request

    return begin


def _exchange(original: Callable, recorder: Recorder) -> Callable:
    clock = recorder.clock

    def _exchange(self, outgoing, incoming, call_name, status=None):
        received = SimpleNamespace(source=None, tag=None)
        number = recorder.number("to", self.ranks, outgoing[1], outgoing[2]) if outgoing else 0
        begin = clock()
        try:
            original(self, outgoing, incoming, call_name, received)
            if status is not None and received.source is not None:
                status.source, status.tag = received.source, received.tag
        finally:
            end = clock()
            if outgoing:
                recorder.add("send", call_name, begin, end, self.ranks, number, outgoing[0].nbytes, outgoing[1], outgoing[2])
            if incoming:
                peer, tag, number = incoming[1][0] if len(incoming[1]) == 1 else -1, incoming[2], -1
                if received.source is not None:
                    peer, tag = self.ranks[received.source], received.tag
                    number = recorder.number("from", self.ranks, peer, tag)
                recorder.add("receive", call_name, begin, end, self.ranks, number, 0, peer, tag)

    return _exchange


def _isend(original: Callable, recorder: Recorder) -> Callable:
    def Isend(self, buf, dest, tag=0):
        began = recorder.clock()
        request = original(self, buf, dest, tag)
        if dest != MPI.PROC_NULL:
            peer, tag, array = self.ranks[dest], int(tag), buf[0] if isinstance(buf, list) else buf
            number = recorder.number("to", self.ranks, peer, tag)
            request.recorded = recorder.add_started("send", "Isend", began, self.ranks, number, array.nbytes, peer, tag)
        return request

    return Isend


def _irecv(original: Callable, recorder: Recorder) -> Callable:
    def Irecv(self, buf, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG):
        began = recorder.clock()
        request = original(self, buf, source, tag)
        if source != MPI.PROC_NULL:
            known = source != MPI.ANY_SOURCE and tag != MPI.ANY_TAG  # messages match in the order of the receives
            peer = self.ranks[source] if source != MPI.ANY_SOURCE else -1
            number = recorder.number("from", self.ranks, peer, tag) if known else -1
            request.recorded = recorder.add_started("receive", "Irecv", began, self.ranks, number, 0, peer, int(tag))
        return request

    return Irecv


def _wait(original: Callable, recorder: Recorder) -> Callable:
    def Wait(self):
        operation, begin = self._operation, recorder.clock()
        try:
            original(self)
        finally:
            if operation is not None:
                _completed(self, operation, recorder, begin)

    return Wait


def _test(original: Callable, recorder: Recorder) -> Callable:
    def Test(self):
        operation = self._operation
        try:
            return original(self)
        finally:
            if operation is not None and self._operation is None:
                _completed(self, operation, recorder)

    return Test


def _completed(request: Request, operation: object, recorder: Recorder, waits: float | None = None) -> None:
    """Record the end of a request, and the time in its `Wait`; of one that was started before the trace only that time."""
    event, end = request.__dict__.pop("recorded", None), recorder.clock()
    if event is None or event[2] < recorder.began:
        event = ["", "Wait", 0.0, None, (), -1, 0, -1, -1]
    event[END] = end
    if event[0] == "started receive" and event[NUMBER] < 0 and operation.received:
        event[PEER], event[TAG] = operation.received
        event[NUMBER] = recorder.number("from", event[4], *operation.received)
    kind, name, _, _, ranks, number, _, peer, tag = event
    if waits is not None:
        recorder.add("wait", name, waits, end, ranks, number, 0, peer, tag, kind.removeprefix("started "))


_METHODS = {
    Communicator: {
        "run_collective": _run_collective,
        "begin": _begin,
        "Split": _split,
        "_exchange": _exchange,
        "Isend": _isend,
        "Irecv": _irecv,
    },
    Request: {"Wait": _wait, "Test": _test},
}


def clock_offset(comm: Communicator, recorder: Recorder) -> tuple[float, float]:
    """Return the seconds to add to this rank's clock for that of rank 0, and how wrong they may be; collective over the group.

    Each rank exchanges messages with rank 0 in its turn; in the fastest exchange, rank 0's time lies between the rank's two, and most
    likely half way (Cristian, 1989, "Probabilistic clock synchronization").
    """
    n, rank, clock = comm.Get_size(), comm.Get_rank(), recorder.clock
    best, offset = float("inf"), 0.0
    mine, other = np.zeros(1), np.zeros(1)
    for r in range(1, n):
        for _ in range(PINGS if rank in (0, r) else 0):
            if rank == 0:
                comm.Recv(other, r, PING_TAG)
                mine[0] = clock()
                comm.Send(mine, r, PING_TAG)
            else:
                sent = clock()
                comm.Send(mine, 0, PING_TAG)
                comm.Recv(other, 0, PING_TAG)
                back = clock()
                if back - sent < best:
                    best, offset = back - sent, float(other[0]) - (sent + back) / 2
    return offset, best / 2 if rank else 0.0

"""Recorder of one rank's trace: calls, operations and named spans, with their times, in bounded memory.

While nothing is recorded, a call of the communicator costs nothing more (`collectives.instrumentation.recording` replaces its methods for
the time of a trace), and an operation one comparison.
"""

from __future__ import annotations

import functools
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

CAPACITY = 20_000  # events per rank; the oldest are dropped first
MIN_OPERATION_SECONDS = 20e-6  # shorter operations are not recorded

END, NUMBER, PEER, TAG = 3, 5, 7, 8  # the fields of an event that a nonblocking call may get when it ends

active: Recorder | None = None  # the recorder of this process, while a trace is recorded


class Event(NamedTuple):
    """Something that a rank did.

    Attributes
    ----------
    kind : str
        "collective", "send" or "receive": a blocking call. The same after "started ": a nonblocking one, from its start to its completion.
        "wait": the time in `Wait` for one of these. "operation": of autograd or an optimizer. "span": named by the user.
    name : str
        The call's, as `traffic` names it; the operation's, or the span's.
    begin, end : float
        Seconds of the rank's clock.
    ranks : tuple of int
        The group's world ranks; empty for operations and spans.
    number : int
        Counts the collectives of the group, or the messages with this peer and tag, from 0 in each trace: the same on all ranks.
    nbytes : int
        As counted by `traffic`.
    peer, tag : int
        The other world rank of a message, and its tag; else -1.
    of : str
        Of a wait, the kind of what was waited for. Of a span, its labels.
    """

    kind: str
    name: str
    begin: float
    end: float
    ranks: tuple[int, ...] = ()
    number: int = -1
    nbytes: int = 0
    peer: int = -1
    tag: int = -1
    of: str = ""

    @property
    def label(self) -> str:
        """Number in a span's only label, such as that of a micro-batch or a block; empty if there is none, or more than one label."""
        found = re.fullmatch(r"[^\d,]* (\d+|[⁰¹²³⁴-⁹]+)", self.of)
        return found[1] if found else ""


class Recorder:
    """The events of this rank; the oldest are dropped if there are too many.

    Parameters
    ----------
    capacity : int
        Number of events that are kept.
    min_seconds : float
        Duration from which operations are recorded.
    clock : callable
        Returns seconds; by default the clock that all processes of a machine share.

    Attributes
    ----------
    events : deque of tuple or list
        The fields of an `Event` each: nonblocking calls at their start, all others at their end.
    added : int
        Number of events so far, with those dropped.
    began, ended : float
        Seconds of the clock.
    """

    def __init__(
        self, capacity: int = CAPACITY, min_seconds: float = MIN_OPERATION_SECONDS, clock: Callable[[], float] = time.perf_counter
    ):
        self.events: deque[tuple | list] = deque(maxlen=capacity)
        self.min_seconds, self.clock, self.added = min_seconds, clock, 0
        self._numbers: Counter[tuple] = Counter()
        self.began = self.ended = clock()

    def add(self, *event: object) -> None:
        """Add an event, given by the fields of `Event`."""
        self.added += 1
        self.events.append(event)

    def add_started(
        self, kind: str, name: str, begin: float, ranks: tuple[int, ...], number: int, nbytes: int, peer: int = -1, tag: int = -1
    ) -> list:
        """Add a nonblocking call, and return the event, whose end is None until it is set."""
        self.added += 1
        self.events.append([f"started {kind}", name, begin, None, ranks, number, nbytes, peer, tag])
        return self.events[-1]

    def number(self, *what: object) -> int:
        """Return the number of earlier calls with the same arguments."""
        self._numbers[what] += 1
        return self._numbers[what] - 1

    def add_operation(self, name: str, begin: float) -> None:
        """Add an operation that ends now, if it took long enough."""
        end = self.clock()
        if end - begin >= self.min_seconds:
            self.add("operation", name, begin, end)

    def start(self) -> None:
        """Begin to record; a recorder that is active already is replaced."""
        global active
        active, self.began = self, self.clock()

    def stop(self) -> None:
        """Stop recording."""
        global active
        self.ended = self.clock()
        if active is self:
            active = None

    def as_dict(self) -> dict:
        """Return the trace as plain data, for `timeline.Trace`; what has not ended ends with the trace."""
        events = [(*event[:END], self.ended, *event[END + 1 :]) if event[END] is None else tuple(event) for event in self.events]
        return {"began": self.began, "ended": self.ended, "dropped": self.added - len(events), "events": events}


class span:
    """Name a part of the work in traces: ``with span("forward", micro_batch=2):``.

    Parameters
    ----------
    name : str
    **labels
        Shown with it.
    """

    __slots__ = ("_begin", "_recorder", "labels", "name")

    def __init__(self, name: str, /, **labels: object):
        self.name, self.labels = str(name), labels

    def __enter__(self) -> span:
        self._recorder = active
        self._begin = active.clock() if active else 0.0
        return self

    def __exit__(self, *_: object) -> None:
        if recorder := self._recorder:
            said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.labels.items())
            recorder.add("span", self.name, self._begin, recorder.clock(), (), -1, 0, -1, -1, said)


def operation(function: Callable) -> Callable:
    """Have traces show a function's calls, and the backward of the tensor that it returns; a decorator."""
    name = function.__name__.strip("_")

    @functools.wraps(function)
    def recorded(*args: object, **kwargs: object) -> object:
        if active is None:
            return function(*args, **kwargs)
        recorder, begin = active, active.clock()
        result = function(*args, **kwargs)
        recorder.add_operation(name, begin)
        if backward := getattr(result, "_backward", None):
            result._backward = _recorded_backward(backward, f"{name}, backward")
        return result

    return recorded


def _recorded_backward(backward: Callable, name: str) -> Callable:
    def recorded(grad: object) -> object:
        if active is None:
            return backward(grad)
        recorder, begin = active, active.clock()
        parts = backward(grad)
        recorder.add_operation(name, begin)
        return parts

    return recorded

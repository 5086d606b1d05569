"""Run a student's function on virtual ranks, up to 63 of them, which share the process of one rank.

With four ranks, an answer may work for four only: by ``rank ^ 1``, by fixed groups, by a tree that
is wrong beyond. Another process costs 0.4 s, a virtual rank a millisecond.

Each virtual rank is a greenlet: a function that can be left within any call, and continued later.
It has a `Communicator` as on isolated ranks (`transport.relay`), whose frames go to a `Coordinator`
in this process. Only one runs at a time, and gives way only where it communicates. Who is next is
drawn from a seed: a run can be repeated, and with some seeds one rank is far ahead of the others.
If none can run, that is a deadlock for certain, reported at once in the usual words. All run in the
main thread, so an interrupt reaches the one that runs, and ends all of them.

Arrays are NumPy's; there is no NCCL and no gate. Messengers go by the virtual clock of the
coordinator's network, in which silences can be planned. What is counted lies within reach of the
student's code: it shows how an honest answer works on more ranks. One that exchanges nothing, since
all arrays are in one process, must fail on ranks of their own.
"""

from __future__ import annotations

import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from greenlet import GreenletExit, greenlet

from course_lib.check.cases import process_state
from course_lib.collectives import errors
from course_lib.collectives.calls import RECV
from course_lib.collectives.communicator import Communicator
from course_lib.collectives.coordination.coordinator import Answer, Coordinator
from course_lib.collectives.coordination.reference_collectives import ProtocolViolation
from course_lib.collectives.coordination.virtual_network import VirtualNetwork
from course_lib.collectives.transport import relay
from course_lib.engine.requests import tracebacks

LARGEST_SPEED_RATIO = 100.0  # of two ranks: how much more often one of them is drawn
DETECTOR_SECONDS = 10.0  # more than the deadlock detector asks for; nothing moves meanwhile
MAX_ENDS = 10  # attempts to end a rank that catches whatever ends it; after that, it is just left

Function: TypeAlias = Callable[[Communicator, int], object]


class VirtualOutcome(NamedTuple):
    """The result of one virtual rank, and what it did, in the form of `Ranks`.

    Attributes
    ----------
    result : object
        None if it raised.
    messages : list of (str, int, int)
        In order: "to" or "from", the other rank, bytes; of a collective its name, -1 and 0.
    traffic : list of (str, list of int, int, int)
        Operation, ranks, calls, and payload in bytes.
    unended : int
        Number of operations that are not complete, and that nobody has waited for.
    error : Exception or None
    """

    result: object
    messages: list[tuple[str, int, int]]
    traffic: list[tuple[str, list[int], int, int]]
    unended: int
    error: Exception | None


def run_virtually(
    size: int,
    function: Function,
    seed: int = 0,
    plan: Callable[[VirtualNetwork], None] | None = None,
) -> list[tuple]:
    """Call a function on virtual ranks; to be called on a rank.

    Parameters
    ----------
    size : int
        The number of virtual ranks.
    function : callable
        Is called with the communicator and the rank of each. `namespace.student` gives each its own
        copy of a student's function.
    seed : int
        Decides the order in which they run.
    plan : callable, optional
        Plans silences in the network of the messengers.

    Returns
    -------
    list of (result, messages, traffic, unended)
        See `VirtualOutcome`.

    Raises
    ------
    Exception
        The first one that was raised on any of them; it has ended all the others.
    """
    group = VirtualGroup(size, function, seed, plan)
    outcomes = group.run(until_error=True)
    if group.first_error is not None:
        raise group.first_error
    return [tuple(outcome[:4]) for outcome in outcomes]


class VirtualGroup:
    """The virtual ranks of one call; parameters as for `run_virtually`.

    Attributes
    ----------
    coordinator : Coordinator
    first_error : Exception or None
        The first one that a rank raised.
    interrupted : bool
        Whether an interrupt has come.
    """

    def __init__(
        self,
        size: int,
        function: Function,
        seed: int = 0,
        plan: Callable[[VirtualNetwork], None] | None = None,
    ):
        self.coordinator, self.first_error, self.interrupted = Coordinator(size), None, False
        if plan:
            plan(self.coordinator.network)
        for rank in range(size):
            self.coordinator.begin(rank, turn=1, targets=(1 << size) - 1)
        self._random = random.Random(seed)
        self._speeds = [LARGEST_SPEED_RATIO ** self._random.random() for _ in range(size)]
        self._ranks = [VirtualRank(self, rank, size, function) for rank in range(size)]
        self._seconds = 0.0  # the deadlock detector's clock

    def run(self, until_error: bool = False) -> list[VirtualOutcome]:
        """Run all ranks to their ends, or until one raises."""
        running = self._ranks.copy()
        with process_state.kept():
            try:
                while running and not (until_error and self.first_error is not None):
                    rank = self._next(running)
                    rank.resume()
                    if self.interrupted:
                        raise KeyboardInterrupt
                    if rank.has_ended():
                        running.remove(rank)
            finally:
                for rank in running:
                    rank.end()
        return [rank.outcome() for rank in self._ranks]

    def handle(self, rank: int, header: dict, payload: bytes) -> None:
        """Handle a frame from a rank, as the broker does; see `cluster.isolated.broker`."""
        if self.coordinator.network.holds(rank, header, payload):
            return
        answers: list[Answer] = []
        try:
            if "call" in header:
                answers = self.coordinator.call(rank, header, payload)
            elif "wait" in header:
                answers = self.coordinator.wait(rank, header["wait"], header["place"])
            elif "test" in header:
                answers = self.coordinator.test(rank, header["test"])
            elif "post" in header:
                self.coordinator.post(rank, header, payload)
            elif "take" in header:
                self.coordinator.take(rank, header)
            else:
                raise ProtocolViolation("it asked for what only a rank with a process of its own has, such as a gate")
        except ProtocolViolation as violation:
            raise errors.CollectiveError(f"rank {rank} cannot go on: {violation}.") from None
        self._deliver(answers)

    def _deliver(self, answers: list[Answer]) -> None:
        for rank, header, payload in answers:
            self._ranks[rank].inbox.append((header, payload))

    def _next(self, running: list[VirtualRank]) -> VirtualRank:
        """Draw the rank that runs next; one that tests in vain only if there is no other."""
        if all(rank.waits and not rank.inbox for rank in running):
            self._advance()
        if all(rank.waits and not rank.inbox for rank in running):
            self._report_deadlock()
        able = [rank for rank in running if rank.inbox or not (rank.waits or rank.tests)]
        able = able or [rank for rank in running if not rank.waits]
        return self._random.choices(able, [self._speeds[rank.rank] for rank in able])[0]

    def _advance(self) -> None:
        """Advance the messengers' network until it has something for a rank, or nothing happens."""
        answers, frames = self.coordinator.advance()
        while frames and not answers:
            for frame in frames:
                self.handle(*frame)
            answers, frames = self.coordinator.advance()
        self._deliver(answers)

    def _report_deadlock(self) -> None:
        """Answer the ranks that wait for each other."""
        answers: list[Answer] = []
        for _ in range(2):  # the detector must see the same deadlock for a while
            self._seconds += DETECTOR_SECONDS
            answers = answers or self.coordinator.deadlocked(self._seconds)
        if not answers:
            raise RuntimeError("no virtual rank can run, and there is no deadlock.")
        self._deliver(answers)


class VirtualRank:
    """One virtual rank; while it runs, this object is `isolated.connection`.

    Attributes
    ----------
    inbox : deque
        Frames that it has not received yet.
    waits : bool
        Whether it can only continue with a frame.
    tests : bool
        Whether it has looked for a frame in vain, and goes on all the same.
    """

    def __init__(self, group: VirtualGroup, rank: int, size: int, function: Function):
        self.rank, self._group, self._function = rank, group, function
        self.inbox: deque[tuple[dict, bytes]] = deque()
        self.waits = self.tests = False
        self._result: object = None
        self._error: Exception | None = None
        self._state = process_state.new(self, rank, size)
        self._greenlet = greenlet(self._run)
        self._greenlet.gr_context = contextvars.copy_context()  # has np.errstate

    def has_ended(self) -> bool:
        """Return whether the function has returned or raised."""
        return self._greenlet.dead

    def resume(self, *exception: type[BaseException]) -> None:
        """Continue until it gives way or ends; an exception is raised where it gave way."""
        process_state.put(self._state)
        try:
            if exception:
                self._greenlet.throw(*exception)
            else:
                self._greenlet.switch()
        finally:
            self._state = process_state.take()

    def end(self) -> None:
        """End it, wherever it is."""
        for _ in range(MAX_ENDS):
            if not self.has_ended():
                self.resume(GreenletExit)

    def outcome(self) -> VirtualOutcome:
        """Return the result or the error, and what was counted."""
        counted = self._group.coordinator
        sent = [tuple(entry) for entry in counted.sent(self.rank)]
        messages, unended = counted.messages(self.rank), counted.unended(self.rank)
        return VirtualOutcome(self._result, messages, sent, unended, self._error)

    def _run(self) -> None:
        coordinator, raised = self._group.coordinator, ""
        try:
            self._result = self._function(Communicator(transport=relay.world()), self.rank)
        except Exception as error:
            self._error = error
        failed = coordinator.failed(self.rank)
        if failed and type(self._error).__name__ != failed[0]:  # it was caught; see the broker
            self._error = getattr(errors, failed[0])(failed[1])
        if self._error is not None:
            place = tracebacks.describe(self._error)["place"]
            raised = f"{type(self._error).__name__} ({place})"
            if self._group.first_error is None:
                self._group.first_error = self._error
        coordinator.finish(self.rank, raised)

    # As a connection.

    def send(self, header: dict, *payload: memoryview) -> None:
        """Send a frame; let other ranks run before a call whose order counts."""
        if "call" in header:
            self.tests = False
            if header["signature"][0] != RECV:
                self._give_way()
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in header.items()}
        self._group.handle(self.rank, plain, b"".join(payload))

    def receive(self) -> tuple[dict, bytes]:
        """Let other ranks run until a frame is here, and return it."""
        self.waits = True
        self.tests = False
        while not self.inbox:
            self._give_way()
        self.waits = False
        return self.inbox.popleft()

    def poll(self) -> tuple[dict, bytes] | None:
        """Return a frame if one is here; at the second look in vain, let other ranks run."""
        if self.tests and not self.inbox:
            self._give_way()
        self.tests = not self.inbox
        return self.inbox.popleft() if self.inbox else None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt, and end all ranks even if this one catches it."""
        self._group.interrupted = True
        raise KeyboardInterrupt

    def _give_way(self) -> None:
        self._greenlet.parent.switch()

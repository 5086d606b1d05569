"""Communication between simulated ranks: groups, collectives, messages, and deadlock detection.

Virtual time needs no central clock. A rank's time advances with its operations; a collective begins when its last rank has
arrived, and a message arrives once its sender has sent it. So all times follow from the dependencies between ranks,
independently of the order in which Python runs them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Generator, Iterable, Mapping

from course_lib.engine import run_coroutine
from course_lib.sim.core import validation
from course_lib.sim.core.errors import Deadlock, Mismatch, SimulationError
from course_lib.sim.core.hardware import H100, LAYER, Hardware, Layer
from course_lib.utils import wording

IDLE_TIMEOUT_SECONDS = 0.2  # seconds of real time that a loop may wait for something outside the simulator


class Group:
    """Ranks that call collectives together, in order."""

    def __init__(self, ranks: tuple[int, ...], hardware: Hardware):
        self.ranks, self.size, self.link = ranks, len(ranks), hardware.link(ranks)
        self.place = {rank: i for i, rank in enumerate(ranks)}
        self.calls = dict.fromkeys(ranks, 0)  # number of collectives that each rank has called
        self.open: deque[Exchange] = deque()  # collectives that not all ranks have called yet
        self.closed = 0

    def duration(self, kind: str, nbytes: float) -> float:
        """Seconds of a collective on an array whose full size is `nbytes`."""
        return self.link.all_reduce(nbytes, self.size) if kind == "all_reduce" else self.link.all_gather(nbytes, self.size)


class Exchange:
    """A collective or a message: the ranks that have arrived, and its begin and end.

    It has a place in the communication stream of each of its ranks: it begins once all have arrived and the earlier communication of
    each of them has ended.
    """

    __slots__ = ("after", "asked", "blocked", "duration", "end", "first", "future", "group", "kind", "layer", "mask")
    __slots__ += ("missing", "shards", "start")

    def __init__(self, kind: str, layer: int | None, group: Group | None, missing: int):
        self.kind, self.layer, self.group, self.missing = kind, layer, group, missing
        self.start, self.end, self.duration = 0.0, None, 0.0
        self.blocked, self.mask, self.shards = 0, 0, 0
        self.asked = math.inf  # for a message: when its receiver asked for it
        self.first = self.future = self.after = None

    def join(self, model) -> None:
        """Add a rank, at its own time."""
        before, model.last_exchange = model.last_exchange, self
        self.missing -= 1
        if before is not None and before.end is None:
            self.blocked += 1
            before.after = before.after or []
            before.after.append((self, model.time))
            self.start = max(self.start, model.time)
        else:
            self.start = max(self.start, model.time, before.end if before is not None else 0.0)
            if not self.missing and not self.blocked:
                self.settle()

    def settle(self) -> None:
        """Determine the end, once all ranks have arrived and nothing is in the way; this may settle other exchanges."""
        ready = [self]
        while ready:
            one = ready.pop()
            if one.group is not None:
                one.duration = one.group.duration(one.kind, one.duration)
            one.end = one.start + one.duration
            if one.future is not None and not one.future.done():
                one.future.set_result(None)
            for later, time in one.after or ():
                later.start = max(later.start, time, one.end)
                later.blocked -= 1
                if not later.missing and not later.blocked:
                    ready.append(later)


class Dist:
    """Ranks of a simulation.

    Parameters
    ----------
    world_size : int
    hardware : Hardware
    layer : Layer
        Cost of a layer of the model.
    memory_limit : bool
        Whether exceeding the memory of a device ends the simulation; `schedule.simulation.run` sets it.
    slowdown : mapping of int to float
        Ranks whose computation takes this many times as long as the hardware's; 1 for all others.
    strict : bool
        Whether a sample that counts twice in a gradient ends the simulation, as in `schedule.simulation.run`, instead of a warning, the
        first time.
    """

    def __init__(
        self,
        world_size: int,
        hardware: Hardware = H100,
        layer: Layer = LAYER,
        memory_limit: bool = False,
        slowdown: Mapping[int, float] | None = None,
        strict: bool = False,
    ):
        if not isinstance(world_size, int) or world_size < 1:
            raise ValueError(f"Dist(world_size): world_size is the number of ranks, 1 or more; got {world_size!r}.")
        self.world_size, self.hardware, self.layer, self.memory_limit = world_size, hardware, layer, memory_limit
        self.slowdown = dict(slowdown or {})
        for rank, times in self.slowdown.items():
            if rank not in range(world_size) or not 0 < times < math.inf:
                raise ValueError(
                    f"Dist(slowdown): expected numbers greater than 0 for ranks below {world_size}; got {times!r} for {rank!r}."
                )
        self.strict, self.warned = strict, False
        self.models: dict[int, object] = {}
        self.world = Group(tuple(range(world_size)), hardware)
        self._groups = {self.world.ranks: self.world}
        self._sent: dict[tuple[int, int], deque] = {}  # messages not asked for yet, by (source, destination)
        self._wanted: dict[tuple[int, int], deque] = {}  # receives whose message has not been sent yet
        self._waiting: dict[int, object] = {}  # communications that a rank is awaiting, by identity
        self._moves = self._last_moves = self._idle_turns = 0
        self._watched = False

    def group(self, rank: int, ranks: Iterable[int] | None) -> Group:
        """Return the group of these ranks; ValueError unless `rank` is a member and all ranks exist."""
        if ranks is None:
            return self.world
        members = tuple(sorted(set(ranks)))
        if members not in self._groups:
            if not members or members[0] < 0 or members[-1] >= self.world_size:
                raise ValueError(f"a group of ranks {list(members)}: the ranks are 0 to {self.world_size - 1}.")
            self._groups[members] = Group(members, self.hardware)
        if rank not in self._groups[members].place:
            raise ValueError(f"a collective among {wording.ranks(members)}, which do not include this rank.")
        return self._groups[members]

    def collective(self, model, kind: str, value, group: Group) -> Exchange:
        """Call a collective on the rank of `model`: the exchange that it shares with the others of the group."""
        self._moves += 1
        number = group.calls[model.rank]
        group.calls[model.rank] = number + 1
        if number - group.closed == len(group.open):
            exchange = Exchange(kind, value.layer, group, group.size)
            exchange.first = (model.rank, value)
            group.open.append(exchange)
        else:
            exchange = group.open[number - group.closed]
            rank, theirs = exchange.first
            if exchange.kind != kind or not _same_kind(kind, theirs, value):
                raise Mismatch(
                    f"{kind} of {value!r}, while rank {rank} calls {exchange.kind} of {theirs!r} as its collective number {number + 1} "
                    f"among {wording.ranks(group.ranks)}. All ranks of a group must make the same calls in the same order.",
                    rank=model.rank,
                    layer=value.layer,
                    time=model.time,
                )
        exchange.shards |= value.shards
        mask = value.mask or 0
        if exchange.mask & mask and kind != "all_gather":
            validation.refuse_twice(model, value.layer, exchange.mask & mask, "this rank's and another rank's gradient")
        exchange.mask |= mask
        if exchange.missing == 1:  # all others have arrived: the full size is known
            group.open.popleft()
            group.closed += 1
            one_shard = value.nbytes / value.shards.bit_count()
            exchange.duration = one_shard * exchange.shards.bit_count()
        exchange.join(model)
        return exchange

    def send(self, model, dest: int, value) -> Exchange:
        """Send a value from the rank of `model`; a receiver will find the message."""
        self._moves += 1
        exchange = Exchange("send", value.layer, None, 1)
        exchange.first = (dest, value)
        exchange.duration = self.hardware.link((model.rank, dest)).send(value.nbytes)
        way = (model.rank, dest)
        exchange.join(model)
        wanted = self._wanted.get(way)
        if wanted:
            self._match(wanted.popleft(), exchange)
        else:
            self._sent.setdefault(way, deque()).append(exchange)
        return exchange

    def receive(self, model, source: int) -> Exchange:
        """Ask for the next message from `source`; the receive ends when the send does."""
        self._moves += 1
        exchange = Exchange("receive", None, None, 0)
        exchange.first, exchange.asked = (source, None), model.time
        way = (source, model.rank)
        sent = self._sent.get(way)
        if sent:
            self._match(exchange, sent.popleft())
        else:
            exchange.blocked = 1
            self._wanted.setdefault(way, deque()).append(exchange)
        return exchange

    @staticmethod
    def _match(receive: Exchange, send: Exchange) -> None:
        receive.first, receive.layer = (receive.first[0], send.first[1]), send.layer
        receive.blocked, send.asked = 0, receive.asked
        if send.end is None:
            receive.blocked = 1
            send.after = send.after or []
            send.after.append((receive, 0.0))
        else:
            receive.start = send.end
            receive.settle()

    # Waiting.

    def wait(self, pending) -> Generator:
        """Block a rank until an exchange has ended."""
        self._moves += 1
        exchange, loop = pending.exchange, asyncio.get_running_loop()
        if exchange.future is None:
            exchange.future = loop.create_future()
        pending.model.bind_task()
        self._waiting[id(pending)] = pending
        if not self._watched:
            self._watched = True
            loop.call_soon(self._detect_deadlock, loop)
        try:
            yield from exchange.future
        finally:
            self._moves += 1
            del self._waiting[id(pending)]

    def _detect_deadlock(self, loop) -> None:
        """Check once per turn of the event loop whether any rank has moved; if none can, raise Deadlock."""
        self._watched = bool(self._waiting)
        if not self._waiting:
            return
        if self._moves != self._last_moves:
            self._last_moves, self._idle_turns = self._moves, 0
            loop.call_soon(self._detect_deadlock, loop)
            return
        self._idle_turns += 1
        if self._idle_turns < 3:
            loop.call_soon(self._detect_deadlock, loop)
            return
        stuck = {p.model.rank for p in self._waiting.values()}
        elsewhere = [r for r in range(self.world_size) if r not in stuck and not self._finished(r)]
        if elsewhere and self._idle_turns < 3 + IDLE_TIMEOUT_SECONDS / 0.01:
            loop.call_later(0.01, self._detect_deadlock, loop)
            return
        self._watched = False
        try:
            error: Exception = Deadlock(self._deadlock_report())
        except Exception as broken:  # whatever happens here, no rank may hang
            error = broken
        for pending in list(self._waiting.values()):
            if not pending.exchange.future.done():
                pending.exchange.future.set_exception(error)

    def _finished(self, rank: int) -> bool:
        model = self.models.get(rank)
        return model is not None and model.task is not None and model.task.done()

    def _deadlock_report(self) -> str:
        """Describe what each rank waits for; ranks that wait for the same are listed together."""
        waits: dict[tuple[str, str], list] = {}
        for pending in self._waiting.values():
            waits.setdefault((self._reason(pending), run_coroutine.suspension_point(pending.model.task)), []).append(pending.model)
        lines = []
        for (reason, place), models in waits.items():
            ranks = sorted({m.rank for m in models})
            when = ", ".join(filter(None, (f"since {wording.seconds(models[0].time)}", place)))
            lines.append(f"{wording.ranks(ranks)} wait{'s' * (len(ranks) == 1)} ({when}) {reason}")
        waiting = {p.model.rank for p in self._waiting.values()}
        ended = [r for r in range(self.world_size) if r not in waiting and self._finished(r)]
        for how, failed in (("finished", False), ("stopped with an error", True)):
            others = [r for r in ended if self._failed(r) == failed]
            if others:
                lines.append(f"{wording.ranks(others)} {'have' if len(others) > 1 else 'has'} {how}")
        return "no rank can continue: " + "; ".join(lines) + "."

    def _failed(self, rank: int) -> bool:
        task = self.models[rank].task
        return task.cancelled() or task.exception() is not None

    @staticmethod
    def _reason(pending) -> str:
        exchange, group = pending.exchange, pending.exchange.group
        if exchange.kind == "receive":
            return f"to receive from rank {exchange.first[0]}, which has not sent"
        if exchange.missing and group:
            number = group.closed + group.open.index(exchange)
            absent = [r for r in group.ranks if group.calls[r] <= number]
            return f"in {exchange.kind} of layer {exchange.layer} for {wording.ranks(absent)}"
        return f"in {exchange.kind} of layer {exchange.layer}, until an earlier communication ends"


def _same_kind(kind: str, one, other) -> bool:
    """Tell whether two ranks' values can be combined in one collective."""
    if one.__class__ is not other.__class__ or one.layer != other.layer or one.num_shards != other.num_shards:
        return False
    if kind == "all_gather":
        return one.mask == other.mask and one.updated == other.updated
    return one.shards == other.shards


def check_peer(model, rank: object, what: str) -> None:
    """Raise SimulationError unless `rank` is another rank of this simulation."""
    if not isinstance(rank, int) or not 0 <= rank < model.world_size or rank == model.rank:
        text = f"{what} must be another rank, 0 to {model.world_size - 1}; got {rank!r}."
        raise SimulationError(text, rank=model.rank, time=model.time)

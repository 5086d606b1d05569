"""What ranks send each other: a call starts it, ``await`` waits for its result."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from course_lib.sim.core import validation
from course_lib.sim.core.dist import check_place
from course_lib.sim.core.errors import SimulationError
from course_lib.sim.core.values import Activation, ActivationGrad, OptState, Value, Weight, WeightGrad, alike, batch, part


class Pending:
    """A communication that has been started; ``await`` it for its result."""

    __slots__ = ("exchange", "id", "made", "model", "row", "value")

    def __init__(self, model: Communication, exchange, value):
        self.model, self.exchange, self.value = model, exchange, value
        self.id = model.enter(0.0)
        self.row, self.made = None, None

    def __await__(self) -> Generator:
        if self.exchange.end is None:
            yield from self.model.dist.wait(self)
        return self.made if self.row else self.model.arrive(self)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"{self!r} has no {name}: write `value = await pending`, and use the value.")

    def __repr__(self) -> str:
        return f"<{self.exchange.kind}, started; await it when you need its result>"


class Communication:
    """The part of `Model` that talks to other ranks."""

    def all_reduce(self, value: WeightGrad, layer: int, ranks: Iterable[int] | None = None) -> Pending:
        """Unite the samples of all ranks' gradients; every rank gets the sum.

        Parameters
        ----------
        value : WeightGrad
        layer : int
        ranks : iterable of int, optional
            Who takes part; all ranks by default.

        Returns
        -------
        awaitable
            It has been started, and runs beside what the rank computes until it is awaited.
        """
        return self._collective("all_reduce", value, layer, ranks)

    def all_gather(self, value: Weight | OptState | WeightGrad, layer: int, ranks: Iterable[int] | None = None) -> Pending:
        """Unite the shards of all ranks; parameters as for `all_reduce`."""
        return self._collective("all_gather", value, layer, ranks)

    def reduce_scatter(self, value: WeightGrad, layer: int, ranks: Iterable[int] | None = None) -> Pending:
        """Unite the samples of all ranks' gradients; the i-th rank gets shard i of the sum. Parameters as for `all_reduce`."""
        return self._collective("reduce_scatter", value, layer, ranks)

    def send(self, dest: int, value: Value) -> Pending:
        """Send a value to another rank. It is buffered: it is over when it has left; the buffer is held until it is received."""
        check_place(self, dest, "send: dest")
        validation.check_own(self, value, "send: the value", Value)
        return self._start(self.dist.send(self, dest, value), value, (dest,))

    def receive(self, source: int) -> Pending:
        """The next value that another rank sends to this one."""
        check_place(self, source, "receive: source")
        return self._start(self.dist.receive(self, source), None, (source,))

    def _collective(self, kind: str, value, layer: int, ranks: Iterable[int] | None) -> Pending:
        if value.__class__ is not WeightGrad or value.layer != layer or value.model is not self or kind == "reduce_scatter":
            validation.check_collective(self, kind, value, layer)
        try:
            group = self.dist.group(self.rank, ranks)
        except (ValueError, TypeError) as error:
            raise SimulationError(str(error), rank=self.rank, layer=layer, time=self.time) from None
        return self._start(self.dist.collective(self, kind, value, group), value, None if ranks is None else group.ranks)

    def _start(self, exchange, value: Value | None, extra: tuple | None) -> Pending:
        pending = Pending(self, exchange, value)
        used = () if value is None else (value.id,)
        if used:
            self.last[value.id] = len(self.rows)
        self.rows.append(("call", exchange.layer, self.time, self.time, used, (pending.id,), (exchange.kind, extra)))
        self.pending[pending.id] = pending
        return pending

    def arrive(self, pending: Pending) -> Value | None:
        """A communication that has ended: its result is this rank's now."""
        exchange, value, before = pending.exchange, pending.value, self.time
        self.time = max(before, exchange.end)
        del self.pending[pending.id]
        pending.made = self._result(exchange, value, pending.id)
        used, row = () if value is None else (value.id,), len(self.rows)
        if used:
            self.last[value.id] = row
        self.last[pending.id] = row  # its buffer was there since the call
        if exchange.kind == "all_reduce":
            self.born[pending.id] = row + 1  # in place
        pending.row = (exchange.kind, exchange.layer, before, self.time, used, (pending.id,), exchange)
        self.rows.append(pending.row)
        return pending.made

    def _result(self, exchange, value: Value | None, number: int) -> Value | None:
        """What a communication gives this rank; it takes the number that the communication got."""
        kind, layer = exchange.kind, exchange.layer
        if kind == "all_reduce":
            return part(WeightGrad, self, layer, value.shards, value.num_shards, exchange.mask, number)
        if kind == "all_gather":
            return alike(value, self, exchange.shards, value.num_shards, number)
        if kind == "reduce_scatter":
            return part(WeightGrad, self, layer, 1 << exchange.group.place[self.rank], exchange.group.size, exchange.mask, number)
        if kind == "send":
            return None
        theirs = exchange.first[1]
        if isinstance(theirs, (Activation, ActivationGrad)):
            return batch(theirs.__class__, self, layer, theirs.mask, theirs.count, number)
        return alike(theirs, self, theirs.shards, theirs.num_shards, number)

"""`Model`: the operations of a rank in a training step, with their costs and rules.

Every operation appends a row, so that the whole run can be drawn, checked and replayed (see `schedule.replay`):

    (kind, layer, start, end, values used, values made, extra)

Values are numbered in the order in which a rank created them; times are virtual seconds.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Iterable

from course_lib.sim.core import validation
from course_lib.sim.core.dist import Dist, check_peer
from course_lib.sim.core.errors import OutOfMemory, SimulationError
from course_lib.sim.core.storage import Storage
from course_lib.sim.core.values import (
    Activation,
    ActivationGrad,
    OptState,
    Value,
    Weight,
    WeightGrad,
    make_activation,
    make_like,
    make_sharded,
)
from course_lib.utils import wording

MAX_OPERATIONS_PER_LAYER_AND_SAMPLE = 200  # per layer and sample: a loop with more operations on a rank is taken for endless
EXTRA_OPERATIONS_PER_LAYER = 5  # additional operations per layer, which may be recomputed from the first one
STORAGE_NAMES = ("weights", "opt_states", "activations", "grad_activations", "grad_weights")


class Pending:
    """A communication that has been started; ``await`` it to get its result."""

    __slots__ = ("exchange", "id", "made", "model", "row", "value")

    def __init__(self, model: Model, exchange, value):
        self.model, self.exchange, self.value = model, exchange, value
        self.id = model.register_value(0.0)
        self.row, self.made = None, None

    def __await__(self) -> Generator:
        if self.exchange.end is None:
            yield from self.model.dist.wait(self)
        return self.made if self.row else self.model.arrive(self)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"{self!r} has no {name}: write `value = await pending`, and use the value.")

    def __repr__(self) -> str:
        return f"<{self.exchange.kind}, started; await it when you need its result>"


class Model:
    """One rank of a training step.

    Parameters
    ----------
    rank : int
    dist : Dist
    num_layers : int
    global_batch_size : int
        Samples per step, over all ranks.

    Attributes
    ----------
    rank, world_size, num_layers, global_batch_size : int
    time : float
        This rank's virtual time, in seconds.
    final_weights : dict of int to Weight
        The weights passed to `set_final_weight`, by layer.
    log : list of RankEvent
        Operations of the rank, see `stats.events`.
    """

    def __init__(self, rank: int, dist: Dist, num_layers: int, global_batch_size: int):
        for name, value, least in (("rank", rank, 0), ("num_layers", num_layers, 1), ("global_batch_size", global_batch_size, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"Model: {name} must be a whole number, {least} or more; got {value!r}.")
        if rank >= dist.world_size or rank in dist.models:
            raise ValueError(f"Model: each of the ranks 0 to {dist.world_size - 1} must exist exactly once; got rank {rank}.")
        self.rank, self.dist, self.world_size = rank, dist, dist.world_size
        self.num_layers, self.global_batch_size = num_layers, global_batch_size
        self.time, self.final_weights, self.rows = 0.0, {}, []
        # For each value of the rank, by number: its bytes, the row since which it is held, and the row that last used it.
        self.sizes, self.born, self.last = [], [], []
        self.loads = []  # rows of the loads
        self.held, self.task, self.last_exchange = 0.0, None, None
        self.pending = {}  # communications not awaited yet, by the number of their result
        layer = dist.layer
        self.weight_bytes, self.optimizer_bytes = layer.weight_bytes(), layer.optimizer_bytes()
        self.activation_bytes = layer.activation_bytes(1)
        self.all_samples = (1 << global_batch_size) - 1
        self._slowdown = dist.slowdown.get(rank, 1.0)
        self._capacity = dist.hardware.memory if dist.memory_limit else math.inf
        self._durations, self._host_free = {}, 0.0
        self._most_rows = (
            max(MAX_OPERATIONS_PER_LAYER_AND_SAMPLE, EXTRA_OPERATIONS_PER_LAYER * num_layers) * num_layers * global_batch_size + 10_000
        )
        self._stores = tuple(Storage(name, self) for name in STORAGE_NAMES)
        dist.models[rank] = self

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.world_size}, at {wording.seconds(self.time)}, holding {wording.memory(self.held)}"

    # Memory.

    def storage(self) -> tuple[Storage, Storage, Storage, Storage, Storage]:
        """Return the rank's memory: weights, opt_states, activations, grad_activations, grad_weights."""
        self.bind_task()
        return self._stores

    def memory(self) -> float:
        """Bytes currently in the storage."""
        return self.held

    def hold(self, value: Value) -> None:
        """Add a value to the storage; it counts once, however often it is stored."""
        value.holds += 1
        if value.holds == 1:
            self.rows.append(("hold", value.id))
            self.held += value.nbytes
            if self.held > self._capacity:
                raise OutOfMemory(validation.out_of_memory_text(self, self._stores), rank=self.rank, time=self.time)

    def drop(self, value: Value) -> None:
        """Remove a value from the storage."""
        value.holds -= 1
        if value.holds == 0:
            self.last[value.id] = len(self.rows)
            self.rows.append(("drop", value.id))
            self.held -= value.nbytes

    def register_value(self, nbytes: float, number: int | None = None) -> int:
        """Number a new value that the next row creates; or use the number reserved when its communication began."""
        if number is not None:
            self.sizes[number] = nbytes
            return number
        self.sizes.append(nbytes)
        self.born.append(row := len(self.rows))
        self.last.append(row)
        return len(self.sizes) - 1

    @property
    def log(self) -> list:
        """Operations of the rank, in the order of its loop."""
        from course_lib.sim.schedule.stats import events

        return events(self)

    # Computation.

    def load_weights(self, layer: int, shard: int = 0, num_shards: int = 1) -> tuple[Weight, OptState]:
        """Load the weight and the optimizer state of a layer, or one of `num_shards` equal shards of them.

        They are kept from the previous step, so loading takes no time; and they count as held from the beginning, until they are updated
        or removed from the storage. Each part can be loaded once.
        """
        self.bind_task()
        validation.check_layer(self, layer)
        validation.check_shard(self, shard, num_shards, layer)
        weight = make_sharded(Weight, self, layer, 1 << shard, num_shards, False)
        state = make_sharded(OptState, self, layer, 1 << shard, num_shards, False)
        self.born[weight.id] = self.born[state.id] = 0
        self.last[weight.id] = self.last[state.id] = -1
        self.loads.append(("load", layer, self.time, self.time, (), (weight.id, state.id), (shard, num_shards)))
        self.rows.append(self.loads[-1])
        return weight, state

    def get_input_activation(self, samples: Iterable[int]) -> Activation:
        """Get the input of layer 0 for some samples, ``0`` to ``global_batch_size - 1``.

        Inputs arrive over the host link, one after the other from time 0; a rank that asks too early waits.
        """
        self.bind_task()
        mask = validation.sample_mask(self, samples)
        made = make_activation(Activation, self, 0, mask, mask.bit_count())
        start = self.time
        self._host_free += self.dist.hardware.host.send(made.nbytes)
        self.time = max(start, self._host_free)
        self.rows.append(("input", 0, start, self.time, (), (made.id,), mask))
        return made

    def forward(self, layer: int, activation: Activation, weight: Weight) -> Activation:
        """Apply a layer to its input; the result is the input of layer + 1."""
        if not (
            weight.__class__ is Weight
            and activation.__class__ is Activation
            and activation.layer == layer == weight.layer
            and weight.whole
            and not weight.updated
            and weight.model is self is activation.model
        ):
            validation.refuse_forward(self, layer, activation, weight)
        if len(self.rows) > self._most_rows:
            validation.refuse_endless(self, layer, activation)
        count, start = activation.count, self.time
        made = make_activation(Activation, self, layer + 1, activation.mask, count)
        self.last[activation.id] = self.last[weight.id] = len(self.rows)
        self.time = start + (self._durations.get(count) or self._duration(count))
        self.rows.append(("forward", layer, start, self.time, (activation.id, weight.id), (made.id,), activation.mask))
        return made

    def loss(self, activation: Activation) -> ActivationGrad:
        """Compute the gradient of the loss with respect to the last layer's output. Its cost is negligible, so it takes no time."""
        if not (activation.__class__ is Activation and activation.layer == self.num_layers and activation.model is self):
            validation.refuse_loss(self, activation)
        made = make_activation(ActivationGrad, self, self.num_layers, activation.mask, activation.count)
        self.last[activation.id] = len(self.rows)
        self.rows.append(("loss", self.num_layers, self.time, self.time, (activation.id,), (made.id,), activation.mask))
        return made

    def backward(
        self, layer: int, activation: Activation, grad_activation: ActivationGrad, weight: Weight
    ) -> tuple[WeightGrad, ActivationGrad]:
        """Compute the gradients of a layer's weight and input from the gradient of its output.

        Parameters
        ----------
        activation : Activation
            Input of `layer`.
        grad_activation : ActivationGrad
            Gradient of its output, the input of ``layer + 1``, for the same samples.
        """
        if not (
            weight.__class__ is Weight
            and activation.__class__ is Activation
            and grad_activation.__class__ is ActivationGrad
            and activation.layer == layer == weight.layer == grad_activation.layer - 1
            and activation.mask == grad_activation.mask
            and weight.whole
            and not weight.updated
            and weight.model is self is activation.model is grad_activation.model
        ):
            validation.refuse_backward(self, layer, activation, grad_activation, weight)
        mask, count, start = activation.mask, activation.count, self.time
        grad = make_sharded(WeightGrad, self, layer, 1, 1, mask)
        made = make_activation(ActivationGrad, self, layer, mask, count)
        self.time = start + (self._durations.get(-count) or self._duration(-count))
        used = activation.id, grad_activation.id, weight.id
        self.last[used[0]] = self.last[used[1]] = self.last[used[2]] = len(self.rows)
        self.rows.append(("backward", layer, start, self.time, used, (grad.id, made.id), mask))
        return grad, made

    def update(self, layer: int, weight_grad: WeightGrad, weight: Weight, opt_state: OptState) -> tuple[Weight, OptState]:
        """Take the optimizer's step, in place, for a whole layer or a shard of it."""
        if not (
            weight.__class__ is Weight
            and weight_grad.__class__ is WeightGrad
            and opt_state.__class__ is OptState
            and weight_grad.layer == layer == weight.layer == opt_state.layer
            and weight.model is self is weight_grad.model is opt_state.model
            and weight_grad.mask == self.all_samples
            and not weight.updated
            and not opt_state.updated
            and weight.shards == opt_state.shards == weight_grad.shards
            and weight.num_shards == opt_state.num_shards == weight_grad.num_shards
        ):
            validation.refuse_update(self, layer, weight_grad, weight, opt_state)
        shards, n, start = weight.shards, weight.num_shards, self.time
        new = make_sharded(Weight, self, layer, shards, n, True), make_sharded(OptState, self, layer, shards, n, True)
        share, spec = shards.bit_count() / n, self.dist.layer
        self.time = start + self._slowdown * self.dist.hardware.compute(spec.update_flop(share), spec.update_bytes(share))
        used = self._in_place(new, weight_grad.id, weight.id, opt_state.id)
        self.rows.append(("update", layer, start, self.time, used, (new[0].id, new[1].id), None))
        return new

    def set_final_weight(self, layer: int, weight: Weight) -> None:
        """Declare the layer's weight, or this rank's shard of it, after the step."""
        validation.check_final(self, layer, weight)
        self.last[weight.id] = len(self.rows)
        self.rows.append(("final", layer, self.time, self.time, (weight.id,), (), None))
        self.final_weights[layer] = weight

    # Sums and shards; see the operators in `values`.

    def add(self, one: WeightGrad, other: WeightGrad) -> WeightGrad:
        """Add two gradients, in the memory of the first."""
        if one.layer != other.layer or one.shards != other.shards or one.num_shards != other.num_shards or one.model is not other.model:
            text = f"{one!r} and {other!r} cannot be added: they must be of the same layer, shards and rank."
            raise SimulationError(text, rank=self.rank, layer=one.layer, time=self.time)
        if one.mask & other.mask:
            validation.refuse_twice(self, one.layer, one.mask & other.mask, "both gradients")
        made = make_sharded(WeightGrad, self, one.layer, one.shards, one.num_shards, one.mask | other.mask)
        used = self._in_place((made,), one.id, other.id)
        self.rows.append(("add", one.layer, self.time, self.time, used, (made.id,), None))
        return made

    def shard(self, value, shard: int, num_shards: int):
        """Take one of `num_shards` equal shards of a whole value."""
        validation.check_whole(self, value, num_shards)
        validation.check_shard(self, shard, num_shards, value.layer)
        made = make_like(value, self, 1 << shard, num_shards)
        self.last[value.id] = len(self.rows)
        self.rows.append(("shard", value.layer, self.time, self.time, (value.id,), (made.id,), (shard, num_shards)))
        return made

    def combine(self, one, other):
        """Combine the shards of two values."""
        validation.check_combine(self, one, other)
        made = make_like(one, self, one.shards | other.shards, one.num_shards)
        self.last[one.id] = self.last[other.id] = len(self.rows)
        self.rows.append(("combine", one.layer, self.time, self.time, (one.id, other.id), (made.id,), None))
        return made

    def _in_place(self, made: tuple, *used: int) -> tuple[int, ...]:
        """Record the inputs of the next row, whose results reuse their memory."""
        row = len(self.rows)
        for number in used:
            self.last[number] = row
        for value in made:
            self.born[value.id] = row + 1
        return used

    def _duration(self, count: int) -> float:
        """Seconds of forward for `count` samples, or of backward for a negative count."""
        layer, hardware, n = self.dist.layer, self.dist.hardware, abs(count)
        flop, nbytes = (layer.forward_flop(n), layer.forward_bytes(n)) if count > 0 else (layer.backward_flop(n), layer.backward_bytes(n))
        self._durations[count] = self._slowdown * hardware.compute(flop, nbytes)
        return self._durations[count]

    def bind_task(self) -> None:
        """Remember which task runs this rank, so that a deadlock report knows which ranks have finished."""
        if self.task is None:
            try:
                self.task = asyncio.current_task()
            except RuntimeError:  # no event loop: the loop does not communicate
                self.task = None

    # Communication: a call starts it, ``await`` waits for its result.

    def all_reduce(self, value: WeightGrad, layer: int, ranks: Iterable[int] | None = None) -> Pending:
        """Sum the gradients of all ranks, uniting their samples; every rank gets the sum.

        Parameters
        ----------
        value : WeightGrad
        layer : int
        ranks : iterable of int, optional
            Participating ranks; by default all.

        Returns
        -------
        awaitable
            Has been started, and overlaps with the rank's computation until it is awaited.
        """
        return self._collective("all_reduce", value, layer, ranks)

    def all_gather(self, value: Weight | OptState | WeightGrad, layer: int, ranks: Iterable[int] | None = None) -> Pending:
        """Gather the shards of all ranks; parameters as for `all_reduce`."""
        return self._collective("all_gather", value, layer, ranks)

    def reduce_scatter(self, value: WeightGrad, layer: int, ranks: Iterable[int] | None = None) -> Pending:
        """Sum the gradients of all ranks; the i-th rank gets shard i of the sum. Parameters as for `all_reduce`."""
        return self._collective("reduce_scatter", value, layer, ranks)

    def send(self, dest: int, value: Value) -> Pending:
        """Send a value to another rank. The send is buffered: it completes once sent; the buffer is held until it is received."""
        check_peer(self, dest, "send: dest")
        validation.check_own(self, value, "send: the value", Value)
        return self._start(self.dist.send(self, dest, value), value, (dest,))

    def receive(self, source: int) -> Pending:
        """Receive the next value that another rank sends to this one."""
        check_peer(self, source, "receive: source")
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
        """Take the result of a communication that has ended into this rank's memory."""
        exchange, value, before = pending.exchange, pending.value, self.time
        self.time = max(before, exchange.end)
        del self.pending[pending.id]
        pending.made = self._result(exchange, value, pending.id)
        used, row = () if value is None else (value.id,), len(self.rows)
        if used:
            self.last[value.id] = row
        self.last[pending.id] = row  # its buffer was held since the call
        if exchange.kind == "all_reduce":
            self.born[pending.id] = row + 1  # in place
        pending.row = (exchange.kind, exchange.layer, before, self.time, used, (pending.id,), exchange)
        self.rows.append(pending.row)
        return pending.made

    def _result(self, exchange, value: Value | None, number: int) -> Value | None:
        """Result of a communication on this rank, under the number reserved for it."""
        kind, layer = exchange.kind, exchange.layer
        if kind == "all_reduce":
            return make_sharded(WeightGrad, self, layer, value.shards, value.num_shards, exchange.mask, number)
        if kind == "all_gather":
            return make_like(value, self, exchange.shards, value.num_shards, number)
        if kind == "reduce_scatter":
            return make_sharded(WeightGrad, self, layer, 1 << exchange.group.place[self.rank], exchange.group.size, exchange.mask, number)
        if kind == "send":
            return None
        theirs = exchange.first[1]
        if isinstance(theirs, (Activation, ActivationGrad)):
            return make_activation(theirs.__class__, self, layer, theirs.mask, theirs.count, number)
        return make_like(theirs, self, theirs.shards, theirs.num_shards, number)

"""Values in a rank's memory: weights, optimizer states, activations and gradients, by layer, samples and shards.

They hold no numbers, only their description. Sets of samples and of shards are the bits of an integer, so that the union of two sets
is a single operation, however many samples there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.sim.core.errors import SimulationError
from course_lib.utils import wording

NOT_CONSTRUCTIBLE_TEXT = (
    "Only the simulator creates values; do not create or copy one yourself. They come from load_weights, get_input_activation, forward, "
    "loss, backward, update, and communication."
)


def iter_bits(mask: int) -> Iterator[int]:
    """Iterate over the numbers in a set, in order.

    >>> list(iter_bits(0b1011))
    [0, 1, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Value:
    """A value in a rank's memory, created only by the simulator.

    Attributes
    ----------
    model : Model
        The rank that holds it.
    layer : int
    nbytes : float
    """

    __slots__ = ("holds", "id", "layer", "model", "nbytes")
    name = "value"

    def __init__(self, *_: object, **__: object):
        raise SimulationError(NOT_CONSTRUCTIBLE_TEXT)

    def __init_subclass__(cls) -> None:
        if cls.__module__ != __name__:
            raise SimulationError(f"{cls.__name__} cannot be a new kind of value. {NOT_CONSTRUCTIBLE_TEXT}")

    def __reduce_ex__(self, _: object) -> tuple:  # called by copy and pickle
        raise SimulationError(
            f"{self!r} cannot be copied. {NOT_CONSTRUCTIBLE_TEXT}", rank=self.model.rank, layer=self.layer, time=self.model.time
        )

    def __getattr__(self, name: str) -> object:
        if name in _SLOTS.get(type(self), ()):  # created without __init__
            raise SimulationError(NOT_CONSTRUCTIBLE_TEXT)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def memory(self) -> float:
        """Size in bytes."""
        return self.nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def describe(self) -> str:
        """Describe the value in words."""
        return f"layer {self.layer}"


class _SampleBatch(Value):
    """A value for some samples, unsharded."""

    __slots__ = ("count", "mask")

    @property
    def samples(self) -> frozenset[int]:
        """Samples of the value."""
        return frozenset(iter_bits(self.mask))

    def describe(self) -> str:
        return f"layer {self.layer}, samples {wording.spans(iter_bits(self.mask))}"


class Activation(_SampleBatch):
    """Input of a layer (of the loss, for layer `num_layers`)."""

    __slots__ = ()
    name = "activation"


class ActivationGrad(_SampleBatch):
    """Gradient of the input of a layer."""

    __slots__ = ()
    name = "gradient of the activation"


class _Sharded(Value):
    """Some of the equal shards of a value of a layer."""

    __slots__ = ("num_shards", "shards", "whole")
    mask: int | None = None  # samples, for values that have them
    updated: bool | None = None

    def shard(self, shard: int, num_shards: int) -> _Sharded:
        """Take one of `num_shards` equal shards of this value, which must be whole."""
        return self.model.shard(self, shard, num_shards)

    def combine(self, other: _Sharded) -> _Sharded:
        """Combine this value's shards with the other's."""
        return self.model.combine(self, other)

    def describe(self) -> str:
        if self.whole:
            return f"layer {self.layer}"
        return f"layer {self.layer}, shard {wording.spans(iter_bits(self.shards))} of {self.num_shards}"


class Weight(_Sharded):
    """Weight of a layer, before or after the update."""

    __slots__ = ("updated",)
    name = "weight"


class OptState(_Sharded):
    """Optimizer state of a layer's weight."""

    __slots__ = ("updated",)
    name = "optimizer state"


class WeightGrad(_Sharded):
    """Gradient of a layer's weight, summed over some samples; ``+`` adds two of them."""

    __slots__ = ("mask",)
    name = "gradient of the weight"

    @property
    def samples(self) -> frozenset[int]:
        """Samples that the gradient is summed over."""
        return frozenset(iter_bits(self.mask))

    def __add__(self, other: object) -> WeightGrad:
        return self.model.add(self, other) if isinstance(other, WeightGrad) else NotImplemented

    def __radd__(self, other: object) -> WeightGrad:
        return self if other == 0 else NotImplemented  # so that sum() works

    def describe(self) -> str:
        return f"{super().describe()}, samples {wording.spans(iter_bits(self.mask))}"


_new = object.__new__


def make_activation(kind: type, model, layer: int, mask: int, count: int, number: int | None = None):
    """Create an activation, or its gradient, in a rank's memory; `number` is the one reserved by a communication, if any."""
    made = _new(kind)
    made.model, made.layer, made.mask, made.count, made.holds = model, layer, mask, count, 0
    made.nbytes = nbytes = model.activation_bytes * count
    made.id = model.register_value(nbytes, number)
    return made


def make_sharded(kind: type, model, layer: int, shards: int, num_shards: int, what: int | bool, number: int | None = None):
    """Create a weight, an optimizer state (`what`: whether it is updated) or a weight's gradient (`what`: its samples)."""
    made = _new(kind)
    made.model, made.layer, made.holds = model, layer, 0
    whole = made.whole = shards == (1 << num_shards) - 1
    made.shards, made.num_shards = (1, 1) if whole else (shards, num_shards)  # however it was split
    nbytes = model.optimizer_bytes if kind is OptState else model.weight_bytes
    made.nbytes = nbytes = nbytes if whole else nbytes * shards.bit_count() / num_shards
    if kind is WeightGrad:
        made.mask = what
    else:
        made.updated = what
    made.id = model.register_value(nbytes, number)
    return made


def make_like(value: _Sharded, model, shards: int, num_shards: int, number: int | None = None):
    """Create a value like another one, with these shards, in the memory of a rank."""
    what = value.mask if value.__class__ is WeightGrad else value.updated
    return make_sharded(value.__class__, model, value.layer, shards, num_shards, what, number)


VALUES = frozenset((Activation, ActivationGrad, Weight, OptState, WeightGrad))
_SLOTS = {kind: {slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())} for kind in VALUES}

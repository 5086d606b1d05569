"""What a rank computes with: weights, optimizer states, activations and gradients, by layer, samples and shards.

They hold no numbers, only what they are of. Sets of samples and of shards are the bits of an integer, so
that uniting two of them is one operation, however many samples there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib import wording
from course_lib.sim.core.errors import SimulationError

NOT_CONSTRUCTIBLE_TEXT = (
    "Only the simulator makes values, so none is made or copied by hand: they come from load_weights, get_input_activation, forward, loss, "
    "backward, update, and from what ranks send each other."
)


def iter_bits(mask: int) -> Iterator[int]:
    """The numbers in a set, in order.

    >>> list(iter_bits(0b1011))
    [0, 1, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Value:
    """Something in a rank's memory. Only the simulator makes values.

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
            raise SimulationError(f"{cls.__name__} is to be a new kind of value. {NOT_CONSTRUCTIBLE_TEXT}")

    def __reduce_ex__(self, _: object) -> tuple:  # what copy and pickle ask for
        raise SimulationError(
            f"{self!r} is to be copied. {NOT_CONSTRUCTIBLE_TEXT}", rank=self.model.rank, layer=self.layer, time=self.model.time
        )

    def __getattr__(self, name: str) -> object:
        if name in _SLOTS.get(type(self), ()):  # made by __new__ alone
            raise SimulationError(NOT_CONSTRUCTIBLE_TEXT)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def memory(self) -> float:
        """Bytes."""
        return self.nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def describe(self) -> str:
        """Of what it is, in words."""
        return f"layer {self.layer}"


class _SampleBatch(Value):
    """Of some samples, whole."""

    __slots__ = ("count", "mask")

    @property
    def samples(self) -> frozenset[int]:
        """The samples that it is of."""
        return frozenset(iter_bits(self.mask))

    def describe(self) -> str:
        return f"layer {self.layer}, samples {wording.spans(iter_bits(self.mask))}"


class Activation(_SampleBatch):
    """The input of a layer (of the loss, for layer `num_layers`)."""

    __slots__ = ()
    name = "activation"


class ActivationGrad(_SampleBatch):
    """The gradient of the input of a layer."""

    __slots__ = ()
    name = "gradient of the activation"


class _Sharded(Value):
    """Some of the equal shards of something that a layer has."""

    __slots__ = ("num_shards", "shards", "whole")
    mask: int | None = None  # of those that have one
    updated: bool | None = None

    def shard(self, shard: int, num_shards: int) -> _Sharded:
        """One of `num_shards` equal shards of this, which must be whole."""
        return self.model.shard(self, shard, num_shards)

    def combine(self, other: _Sharded) -> _Sharded:
        """This one's shards and the other's together."""
        return self.model.combine(self, other)

    def describe(self) -> str:
        if self.whole:
            return f"layer {self.layer}"
        return f"layer {self.layer}, shard {wording.spans(iter_bits(self.shards))} of {self.num_shards}"


class Weight(_Sharded):
    """A layer's weight, before or after the update."""

    __slots__ = ("updated",)
    name = "weight"


class OptState(_Sharded):
    """The optimizer's state of a layer's weight."""

    __slots__ = ("updated",)
    name = "optimizer state"


class WeightGrad(_Sharded):
    """The gradient of a layer's weight, summed over some samples; ``+`` unites them."""

    __slots__ = ("mask",)
    name = "gradient of the weight"

    @property
    def samples(self) -> frozenset[int]:
        """The samples that it is the sum over."""
        return frozenset(iter_bits(self.mask))

    def __add__(self, other: object) -> WeightGrad:
        return self.model.add(self, other) if isinstance(other, WeightGrad) else NotImplemented

    def __radd__(self, other: object) -> WeightGrad:
        return self if other == 0 else NotImplemented  # so that sum() works

    def describe(self) -> str:
        return f"{super().describe()}, samples {wording.spans(iter_bits(self.mask))}"


_new = object.__new__


def make_activation(kind: type, model, layer: int, mask: int, count: int, number: int | None = None):
    """An activation, or its gradient, in a rank's memory; with the number of a communication that it came by, if it did."""
    made = _new(kind)
    made.model, made.layer, made.mask, made.count, made.holds = model, layer, mask, count, 0
    made.nbytes = nbytes = model.activation_bytes * count
    made.id = model.register_value(nbytes, number)
    return made


def make_sharded(kind: type, model, layer: int, shards: int, num_shards: int, what: int | bool, number: int | None = None):
    """A weight, an optimizer state (`what`: whether it is updated) or a weight's gradient (`what`: of which samples)."""
    made = _new(kind)
    made.model, made.layer, made.holds = model, layer, 0
    whole = made.whole = shards == (1 << num_shards) - 1
    made.shards, made.num_shards = (1, 1) if whole else (shards, num_shards)  # however it was cut
    nbytes = model.optimizer_bytes if kind is OptState else model.weight_bytes
    made.nbytes = nbytes = nbytes if whole else nbytes * shards.bit_count() / num_shards
    if kind is WeightGrad:
        made.mask = what
    else:
        made.updated = what
    made.id = model.register_value(nbytes, number)
    return made


def make_like(value: _Sharded, model, shards: int, num_shards: int, number: int | None = None):
    """The same as a value, of these shards; in the memory of a rank."""
    what = value.mask if value.__class__ is WeightGrad else value.updated
    return make_sharded(value.__class__, model, value.layer, shards, num_shards, what, number)


VALUES = frozenset((Activation, ActivationGrad, Weight, OptState, WeightGrad))
_SLOTS = {kind: {slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())} for kind in VALUES}

"""What a rank computes with: weights, optimizer states, activations and gradients, by layer, samples and shards.

They hold no numbers, only what they are of. Sets of samples and of shards are the bits of an integer, so
that uniting two of them is one operation, however many samples there are.
"""

from __future__ import annotations

from collections.abc import Iterator


def bits(mask: int) -> Iterator[int]:
    """The numbers in a set, in order.

    >>> list(bits(0b1011))
    [0, 1, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Value:
    """Something in a rank's memory.

    Attributes
    ----------
    model : Model
        The rank that holds it.
    layer : int
    nbytes : float
    """

    __slots__ = ("holds", "id", "layer", "model", "nbytes")
    name = "value"

    def memory(self) -> float:
        """Bytes."""
        return self.nbytes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def describe(self) -> str:
        """Of what it is, in words."""
        return f"layer {self.layer}"


class _Batch(Value):
    """Of some samples, whole."""

    __slots__ = ("count", "mask")

    def __init__(self, model, layer: int, mask: int, count: int):
        self.model, self.layer, self.mask, self.count, self.holds = model, layer, mask, count, 0
        self.nbytes = model.activation_bytes * count
        self.id = len(model.sizes)
        model.sizes.append(self.nbytes)

    @property
    def samples(self) -> frozenset[int]:
        """The samples that it is of."""
        return frozenset(bits(self.mask))

    def describe(self) -> str:
        from course_lib.wording import spans

        return f"layer {self.layer}, samples {spans(bits(self.mask))}"


class Activation(_Batch):
    """The input of a layer (of the loss, for layer `num_layers`)."""

    __slots__ = ()
    name = "activation"


class ActivationGrad(_Batch):
    """The gradient of the input of a layer."""

    __slots__ = ()
    name = "gradient of the activation"


class _Sharded(Value):
    """Some of the equal shards of something that a layer has."""

    __slots__ = ("num_shards", "shards", "whole")

    def _init(self, model, layer: int, shards: int, num_shards: int, nbytes: float) -> None:
        self.model, self.layer, self.shards, self.num_shards, self.holds = model, layer, shards, num_shards, 0
        self.whole = shards == (1 << num_shards) - 1
        if self.whole:  # however it was cut
            self.shards = self.num_shards = 1
        self.nbytes = nbytes if self.whole else nbytes * shards.bit_count() / num_shards
        self.id = len(model.sizes)
        model.sizes.append(self.nbytes)

    def shard(self, shard: int, num_shards: int) -> _Sharded:
        """One of `num_shards` equal shards of this, which must be whole."""
        return self.model.shard(self, shard, num_shards)

    def combine(self, other: _Sharded) -> _Sharded:
        """This one's shards and the other's together."""
        return self.model.combine(self, other)

    def alike(self, shards: int, num_shards: int) -> _Sharded:
        """The same thing, of these shards; a new value of the same rank."""
        raise NotImplementedError

    def describe(self) -> str:
        if self.whole:
            return f"layer {self.layer}"
        from course_lib.wording import spans

        return f"layer {self.layer}, shard {spans(bits(self.shards))} of {self.num_shards}"


class Weight(_Sharded):
    """A layer's weight, before or after the update."""

    __slots__ = ("updated",)
    name = "weight"

    def __init__(self, model, layer: int, shards: int = 1, num_shards: int = 1, updated: bool = False):
        self.updated = updated
        self._init(model, layer, shards, num_shards, model.weight_bytes)

    def alike(self, shards: int, num_shards: int) -> Weight:
        return Weight(self.model, self.layer, shards, num_shards, self.updated)


class OptState(_Sharded):
    """The optimizer's state of a layer's weight."""

    __slots__ = ("updated",)
    name = "optimizer state"

    def __init__(self, model, layer: int, shards: int = 1, num_shards: int = 1, updated: bool = False):
        self.updated = updated
        self._init(model, layer, shards, num_shards, model.optimizer_bytes)

    def alike(self, shards: int, num_shards: int) -> OptState:
        return OptState(self.model, self.layer, shards, num_shards, self.updated)


class WeightGrad(_Sharded):
    """The gradient of a layer's weight, summed over some samples; ``+`` unites them."""

    __slots__ = ("mask",)
    name = "gradient of the weight"

    def __init__(self, model, layer: int, mask: int, shards: int = 1, num_shards: int = 1):
        self.mask = mask
        self._init(model, layer, shards, num_shards, model.weight_bytes)

    def alike(self, shards: int, num_shards: int) -> WeightGrad:
        return WeightGrad(self.model, self.layer, self.mask, shards, num_shards)

    @property
    def samples(self) -> frozenset[int]:
        """The samples that it is the sum over."""
        return frozenset(bits(self.mask))

    def __add__(self, other: object) -> WeightGrad:
        return self.model.add(self, other) if isinstance(other, WeightGrad) else NotImplemented

    def __radd__(self, other: object) -> WeightGrad:
        return self if other == 0 else NotImplemented  # so that sum() works

    def describe(self) -> str:
        from course_lib.wording import spans

        return f"{super().describe()}, samples {spans(bits(self.mask))}"


VALUES = frozenset((Activation, ActivationGrad, Weight, OptState, WeightGrad))

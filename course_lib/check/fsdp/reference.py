"""Test model for part 26's wrapper, with blocks of all kinds and optional gates, and its expected results on one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from course_lib.autograd import SGD, Linear, Module, Parameter, Sequential, Tensor, no_grad
from course_lib.autograd.operations import tanh
from course_lib.gpt.fsdp.wrapping import units


def flat_parts(arrays: list[np.ndarray], n: int) -> list[np.ndarray]:
    """Split the concatenation of these arrays, padded with zeros, into n equal parts.

    >>> [part.tolist() for part in flat_parts([np.ones((1, 2)), np.array([5.0])], 2)]
    [[1.0, 1.0], [5.0, 0.0]]
    """
    flat = np.concatenate([array.ravel() for array in arrays])
    return np.split(np.pad(flat, (0, -flat.size % n)), n)


class FsdpTestModel(Module):
    """A sequence of blocks.

    Parameters
    ----------
    shape : dict
        "layers": inputs and outputs of each block; "inner": the blocks with a second layer in them; "spare": those with a parameter
        that nothing uses; "unused": those that are not called, which may change; "scale": whether the model has two parameters of its
        own; "tied": whether the last block has the first one's weight.
    dtype : data type
    gate : callable, optional
        Returns a number for each block, in forward and again in backward, which changes the block's result.
    """

    def __init__(self, shape: dict, dtype, gate: Callable[[], float] | None = None):
        inner, spare, self.unused = (shape.get(name, []) for name in ("inner", "spare", "unused"))
        made = [FsdpTestBlock(a, b, i in inner, i in spare, dtype, gate) for i, (a, b) in enumerate(shape["layers"])]
        self.first, self.middle, self.last = made[0], made[1:-1], made[-1]
        own = shape.get("scale")
        self.shift = Parameter(np.ones(shape["layers"][0][0], dtype)) if own else None
        self.scale = Parameter(np.full(shape["layers"][-1][1], 2, dtype)) if own else None
        if shape.get("tied"):
            self.last.linear.weight = self.first.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.shift is None else x + self.shift
        for i, block in enumerate([self.first, *self.middle, self.last]):
            block.number = None
            if i not in self.unused:
                x = block(x)
        return x if self.scale is None else x * self.scale


class FsdpTestBlock(Module):
    """A linear layer and tanh, optionally with a second layer in parallel; see `FsdpTestModel`."""

    def __init__(self, inputs: int, outputs: int, inner: bool, spare: bool, dtype, gate: Callable[[], float] | None):
        self.linear = Linear(inputs, outputs, dtype=dtype)
        self.inner = [Linear(outputs, outputs, bias=False, dtype=dtype)] if inner else []
        self.spare = Parameter(np.ones(2, dtype)) if spare else None
        self.gate, self.number = gate, None

    def forward(self, x: Tensor) -> Tensor:
        if not self.linear.weight.data.size:
            shared = "its own are gathered before it runs, those that it shares with others (the rest) when forward begins"
            raise RuntimeError(f"a block runs before its parameters are gathered: {shared}.")
        out = tanh(self.linear(x))
        for layer in self.inner:
            out = out + layer(out)
        return out if self.gate is None else self.changed(out)

    def changed(self, x: Tensor) -> Tensor:
        """Apply the gate, in forward and again in backward. An answer may recompute: that repeats forward's number."""
        self.number = self.gate() if self.number is None else self.number
        number = x.dtype.type(self.number)

        def backward(grad):
            then = self.gate()
            # Nonlinear, so that reducing only after backward cannot give the right result.
            return (number * grad * np.where(grad > 0, grad.dtype.type(then), grad.dtype.type(then / 4)),)

        return Tensor.from_operation(number * x.data, (x,), backward)


def twin_model(dtype: np.dtype) -> Sequential:
    """Return a model of two blocks, with the same parameters each time."""
    model = Sequential(Linear(3, 2, dtype=dtype), Linear(2, 3, dtype=dtype))
    for number, p in enumerate(model.parameters(), 1):
        p.data = np.cos(number + np.arange(p.data.size, dtype=dtype)).reshape(p.shape).astype(dtype)
    return model


def momentum_of(shape: dict) -> float:
    """Momentum of the optimizer: 0 if a block is skipped at times, as its gradient may then be None or zeros."""
    return 0.0 if "unused" in shape else 0.5


class ReferenceModel:
    """Model of a group on one process.

    Parameters
    ----------
    shape : dict
        Shape of the `FsdpTestModel`.
    dtype : data type
    n : int
        Number of ranks in the group.
    random : numpy.random.Generator
        Draws the parameters.
    gated : bool
        Whether its blocks have gates; see `run`.

    Attributes
    ----------
    units : list of (str, list of Parameter)
        Parameters that are sharded together, by name.
    left : list of list
        For each rank, the micro-batches whose gradients have not been reduced yet.
    """

    def __init__(self, shape: dict, dtype, n: int, random: np.random.Generator, gated: bool = False):
        self.shape, self.n, self.dtype, self.numbers = shape, n, np.dtype(dtype), iter(())
        self.net = FsdpTestModel(shape, dtype, (lambda: next(self.numbers)) if gated else None)
        for p in self.net.parameters():  # weights of the usual size: with larger ones, a rounding error grows from block to block
            fan_in = p.shape[0] if len(p.shape) == 2 else 1
            p.data = (random.standard_normal(p.shape) / np.sqrt(fan_in)).astype(dtype)
        blocks, rest = units(self.net)
        self.units = [(f"block {i}'s shard", own) for i, (_, own) in enumerate(blocks)] + ([("the rest's shard", rest)] if rest else [])
        self.blocks, self.left = len(blocks), [[] for _ in range(n)]
        self.optimizer = SGD(self.net.parameters(), 0.1, momentum_of(shape))

    def values(self) -> list[np.ndarray]:
        """Values of the parameters, in their order."""
        return [p.data.copy() for p in self.net.parameters()]

    def bounds(self, syncs: list[bool]) -> list[tuple[float, float]]:
        """Minimum and maximum bytes that a rank may have sent before each gate, in forward and in backward."""
        blocks, found, before, again = self.blocks, [], 0, 0
        each, rest = self.nbytes()[:blocks], sum(self.nbytes()[blocks:])
        for sync in syncs or [None]:
            there = [before + rest + sum(each[: i + 2]) for i in range(blocks)]
            back = [there[-1] + sum(each[max(i - 1, 0) :]) + sync * sum(each[i + 1 :]) for i in reversed(range(blocks))] if syncs else []
            for k, nbytes in enumerate(there + back):
                # An answer that frees the rest after forward gathers it again.
                found.append((nbytes, nbytes + 16 + again + rest * (k >= blocks)))
            if syncs:
                before, again = back[-1] + sync * (each[0] + rest), again + rest
        return found

    def nbytes(self) -> list[int]:
        """Bytes of each unit's flat array."""
        return [self.n * flat_parts([p.data for p in own], self.n)[0].nbytes for _, own in self.units]

    def wire(self) -> float:
        """Bytes that a rank sends when everything is gathered once."""
        return sum(self.nbytes()) * (self.n - 1) / self.n

    def run(self, batches: list[tuple[np.ndarray, np.ndarray]], numbers: list[float]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Run micro-batches forward and backward through gates with these numbers; parameter gradients add up."""
        self.numbers, found = iter(numbers), []
        for x, target in batches:
            given = Tensor(x, requires_grad=True)
            out = self.net(given)
            (out * target).sum().backward()
            found.append((out.data, given.grad))
        return found

    def look(self, x: np.ndarray, numbers: list[float]) -> np.ndarray:
        """Output of a forward pass without gradients."""
        self.numbers = iter(numbers)
        with no_grad():
            return self.net(Tensor(x)).data

    def step(self, train: bool) -> Iterator[tuple[str, list[np.ndarray] | None, list[np.ndarray], list[np.ndarray]]]:
        """Take a step with the ranks' mean gradients; yield each unit's name, and its parts of gradients, of old and of new parameters."""
        found = []
        for p in self.net.parameters():
            p.grad = None if p.grad is None else p.grad / p.dtype.type(self.n)
        for name, own in self.units:
            there = any(p.grad is not None for p in own)
            grads = flat_parts([np.zeros_like(p.data) if p.grad is None else p.grad for p in own], self.n) if there else None
            found.append([name, grads, flat_parts([p.data for p in own], self.n)])
        if train:
            self.optimizer.step()
        self.net.zero_grad()
        for unit, (_, own) in zip(found, self.units, strict=True):
            yield (*unit, flat_parts([p.data for p in own], self.n))

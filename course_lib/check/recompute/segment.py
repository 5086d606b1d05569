"""Functions for part 32's `checkpoint` to recompute, on the ranks and in plain NumPy.

A segment, for each rank r of a group: ``x = E[tokens]`` for the first one, else its first input; ``z = x W``; t is the sum of ``number z``
over the ranks, for a number that each call of each rank gets from a gate; and ``y = v m s 2 mask max(t, 0)``. E, W are parameters, and v is
an input (or x itself). All values are small whole numbers, so that results are the same to the last bit in any order of summation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from course_lib.autograd import Module, Parameter, Tensor
from course_lib.autograd.functional import dropout, embedding
from course_lib.autograd.operations import relu
from course_lib.engine import traffic_gates

RATE = 0.5  # of dropout, so that what remains is doubled


def sum_over_ranks(x: Tensor, comm: object) -> Tensor:
    """Sum of all ranks' tensors, on all ranks; in backward, the sum of their gradients, as all of them depend on x."""

    def summed(array):
        total = np.empty_like(array, order="C")
        comm.Allreduce(np.ascontiguousarray(array), total)
        return total

    return Tensor.from_operation(summed(x.data), (x,), lambda grad: (summed(grad),))


class Segment(Module):
    """A segment on a rank.

    Parameters
    ----------
    weight : numpy.ndarray
    table : numpy.ndarray or None
        E, for a segment whose input is tokens.
    comm : Communicator
    generators : list of numpy.random.Generator
        Each draws a mask.
    """

    def __init__(self, weight: np.ndarray, table: np.ndarray | None, comm: object, generators: list):
        self.weight, self.table = Parameter(weight.copy()), None if table is None else Parameter(table.copy())
        self.comm, self.generators = comm, generators

    def __call__(self, x: Tensor, s: int, v: Tensor, m: Tensor) -> Tensor:
        number = self.weight.dtype.type(traffic_gates.pass_gate())
        x = x if self.table is None else embedding(self.table, x)
        y = relu(sum_over_ranks((x @ self.weight) * number, self.comm))
        for generator in self.generators:
            y = dropout(y, generator.random(y.shape) >= RATE, RATE)
        return y * v * m * s


@dataclass
class SegmentArrays:
    """A segment's arrays on one rank, and what its forward has left for its backward in plain NumPy.

    Attributes
    ----------
    weight, table, v, m, s
        As in the module's formula; v is None where the input is used in its place.
    grads : dict of str to numpy.ndarray
        Gradients of "weight", "table", "v", added up.
    """

    weight: np.ndarray
    table: np.ndarray | None
    v: np.ndarray | None
    m: np.ndarray
    s: int
    grads: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, grad: np.ndarray) -> None:
        """Add to a gradient."""
        self.grads[name] = self.grads.get(name, 0) + grad


def forward(own: list[SegmentArrays], xs: list[np.ndarray], numbers: list[float], masks: list[np.ndarray]) -> tuple[list, list, np.ndarray]:
    """Inputs (looked up), outputs and summed products of a group's ranks."""
    xs = [x if one.table is None else one.table[x] for one, x in zip(own, xs, strict=True)]
    total = sum(number * (x @ one.weight) for one, x, number in zip(own, xs, numbers, strict=True))
    factors = [2.0 ** len(mask) * np.prod(mask, axis=0) if len(mask) else np.ones(total.shape) for mask in masks]
    outs = [
        (np.maximum(total, 0) * f * (x if one.v is None else one.v) * one.m * one.s).astype(total.dtype)
        for one, x, f in zip(own, xs, factors, strict=True)
    ]
    return xs, outs, total


def backward(
    own: list[SegmentArrays], given: list[np.ndarray], numbers: list[float], masks: list[np.ndarray], grads: list[np.ndarray]
) -> list[np.ndarray | None]:
    """Gradients of a group's first inputs, where the numbers are those of the recomputation; the others are added to `grads` of each."""
    xs, _, total = forward(own, given, numbers, masks)
    back, direct = [], []
    for one, x, mask, grad in zip(own, xs, masks, grads, strict=True):
        factor = (2.0 ** len(mask) * np.prod(mask, axis=0) if len(mask) else 1.0) * one.m * one.s
        at_v = grad * factor * np.maximum(total, 0)
        direct.append(at_v if one.v is None else 0.0)
        if one.v is not None:
            one.add("v", at_v)
        back.append(grad * factor * (x if one.v is None else one.v) * (total > 0))
    summed, found = sum(back), []
    for one, x, tokens, number, also in zip(own, xs, given, numbers, direct, strict=True):
        one.add("weight", number * (x.reshape(-1, x.shape[-1]).T @ summed.reshape(-1, summed.shape[-1])))
        at_x = number * (summed @ one.weight.T) + also
        if one.table is None:
            found.append(at_x)
            continue
        at_table = np.zeros(one.table.shape)
        np.add.at(at_table, tokens, at_x)
        one.add("table", at_table)
        found.append(None)
    return found

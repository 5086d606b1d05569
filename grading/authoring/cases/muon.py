"""Cases for part 36's `owners`: matrices that no simpler rule balances than the largest first, to the rank with least to do.

Students do not get this file: it has an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from course_lib.check.muon.owners import OwnersCase, Shape, busiest, flop

NEAR = 1.04  # times the lower bound: how good the case's best known choice must be
WORSE = 1.2  # times the best known choice: what simpler rules must cost
MOST_DRAWN = 2000


def elements(shape: Shape) -> int:
    """Elements of a matrix."""
    return shape[0] * shape[1]


def largest_first(
    shapes: list[Shape], n: int, size: Callable[[Shape], float] = flop, order: Callable[[Shape], float] | None = None
) -> list[int]:
    """Give each matrix, the largest (in `order`, by default `size`) first, to the rank with the least so far (Graham, 1969)."""
    loads, owner = [0.0] * n, [0] * len(shapes)
    for i in sorted(range(len(shapes)), key=lambda i: -(order or size)(shapes[i])):
        owner[i] = int(np.argmin(loads))
        loads[owner[i]] += size(shapes[i])
    return owner


def simpler_choices(shapes: list[Shape], n: int) -> Iterator[list[int]]:
    """Yield what simpler rules choose."""
    many, costs = len(shapes), np.array([flop(s) for s in shapes])
    yield [i % n for i in range(many)]
    yield [i * n // many for i in range(many)]  # neighbours, as many for each rank
    middle = np.cumsum(costs) - costs / 2
    yield np.minimum(middle * n / costs.sum(), n - 1).astype(int).tolist()  # neighbours with as much to do
    for size in (elements, max, min, sum, lambda s: s[0]):
        yield largest_first(shapes, n, size)
    for order in (elements, max, sum):  # measured by flop, but given away in another order
        yield largest_first(shapes, n, order=order)
    by_size = np.argsort(-costs, kind="stable")
    for order in (np.arange(n), np.concatenate([np.arange(n), np.arange(n)[::-1]])):  # in turn, and there and back
        owner = np.zeros(many, int)
        owner[by_size] = np.resize(order, many)
        yield owner.tolist()
    for order in (np.arange(many), by_size[::-1]):  # to the least busy rank, in the given order or the smallest first
        loads, owner = np.zeros(n), np.zeros(many, int)
        for i in order:
            owner[i] = np.argmin(loads)
            loads[owner[i]] += costs[i]
        yield owner.tolist()


def draw_shapes(random: np.random.Generator, n: int) -> list[Shape]:
    """Draw long matrices, thin and small ones, and at the end a square with the most FLOP, but fewer elements than the long ones."""
    wide = [(int(s), int(c)) for s, c in zip(random.integers(28, 52, 2 * n), random.integers(450, 600, 2 * n), strict=True)]
    thin = [(int(s), int(c)) for s, c in zip(random.integers(3, 9, n), random.integers(1500, 5000, n), strict=True)]
    small = [(int(a), int(b)) for a, b in random.integers(16, 56, (3 * n, 2))]
    turned = [shape[:: int(random.choice([-1, 1]))] for shape in (*wide, *thin, *small)]
    side = int(random.integers(106, 112))
    return [turned[i] for i in random.permutation(len(turned))] + [(side, side)]


def draw_case(random: np.random.Generator, n: int) -> OwnersCase:
    """Draw shapes for three or more ranks that the largest first balances nearly perfectly, and that each simpler rule balances badly."""
    for _ in range(MOST_DRAWN):
        shapes = draw_shapes(random, n)
        load = busiest(shapes, largest_first(shapes, n), n)
        bound = max(sum(map(flop, shapes)) / n, *map(flop, shapes))
        if load <= NEAR * bound and all(busiest(shapes, owner, n) >= WORSE * load for owner in simpler_choices(shapes, n)):
            return OwnersCase(shapes, n, load)
    raise RuntimeError(f"no case was found for {n} ranks.")

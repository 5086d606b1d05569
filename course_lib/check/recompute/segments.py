"""Check of part 32's `segments`: the peak that its ranges lead to, and the time that they cost, next to the best ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.recompute import contract
from course_lib.engine.namespace import student
from course_lib.gpt.training.activation_memory import LayerCost, Ranges, extra_seconds, peak_memory
from course_lib.utils import wording

ONE_BYTE_LESS = -1e-9  # the share of the largest budget into which nothing fits
MB = 10**6


@dataclass(frozen=True)
class SegmentsCase:
    """Layers and a budget in bytes; `best` is the least extra time, None if nothing fits."""

    costs: list[LayerCost]
    budget: int
    best: float | None


def call_segments(costs, budget):
    """Call the student's function; return its ranges, or "ValueError", and the costs after the call."""
    layers = [LayerCost(*cost) for cost in costs]
    try:
        ranges = student("segments")(layers, budget)
    except ValueError:
        ranges = "ValueError"
    return ranges, [tuple(layer) for layer in layers]


def draw_costs(random: np.random.Generator, layers: int) -> list[LayerCost]:
    """Draw layers' costs: whole megabytes, and milliseconds that have little to do with them. Some layers need much work."""
    kept, inputs, work = (random.integers(low, high, layers) for low, high in ((6, 40), (1, 7), (1, 9)))
    work = np.where(random.random(layers) < 0.25, 4 * work, work)
    seconds = random.uniform(0.3e-3, 3e-3, layers)
    return [LayerCost(float(t), int(k) * MB, int(i) * MB, int(w) * MB) for t, k, i, w in zip(seconds, kept, inputs, work, strict=True)]


def every_choice(layers: int, start: int = 0) -> Iterator[list[tuple[int, int]]]:
    """Yield all ranges that one could recompute: about 2.6 ** layers choices, too many for more than ten layers.

    >>> list(every_choice(2))
    [[], [(1, 2)], [(0, 1)], [(0, 1), (1, 2)], [(0, 2)]]
    """
    if start == layers:
        yield []
        return
    yield from every_choice(layers, start + 1)
    for stop in range(start + 1, layers + 1):
        yield from ([(start, stop), *rest] for rest in every_choice(layers, stop))


def draw_small(random: np.random.Generator, share: float) -> SegmentsCase:
    """Draw eight layers, with a budget at this share of the way from the least to the largest peak; tries every choice."""
    costs = draw_costs(random, 8)
    found = [(peak_memory(costs, ranges), extra_seconds(costs, ranges)) for ranges in every_choice(len(costs))]
    least, most = min(peak for peak, _ in found), peak_memory(costs, [])
    budget = int(least + share * (most - least))
    fitting = [seconds for peak, seconds in found if peak <= budget]
    return SegmentsCase(costs, budget, min(fitting) if fitting else None)


class SegmentsCheck(GroupCheck):
    """A `Check` of `segments`.

    Parameters
    ----------
    draw : callable
        Draws a case, given a random generator and a share, as `draw_small` does.
    """

    def __init__(self, what: str, ranks, draw: Callable[[np.random.Generator, float], SegmentsCase] = draw_small, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self.draw = draw

    def fits(self, *shares: float) -> SegmentsCheck:
        """Check that the ranges fit into budgets, also where all layers can be kept, or one choice just fits, or none does."""
        for share in (*shares, 1.0, 0.0, ONE_BYTE_LESS):
            self._choose(self.draw(self.random, share))
        (layer,) = draw_costs(self.random, 1)
        peak = layer.kept + layer.work
        self._choose(SegmentsCase([layer], peak, 0.0))
        self._choose(SegmentsCase([layer], peak - 1, None))
        self.covers("sizes", "repetition", "arguments")
        return self

    def fast(self, *shares: float) -> SegmentsCheck:
        """Check that no other ranges that fit cost less time."""
        for share in shares:
            case = self.draw(self.random, share)
            for r, ranges in enumerate(self._choose(case)):
                seconds = extra_seconds(case.costs, ranges)
                if seconds > (1 + contract.TIMES_BEST.number) * case.best:
                    problem = f"on rank {r}, the ranges cost {1000 * seconds:.3f} ms, {seconds / case.best:.2f} times the best ones"
                    if self.show:
                        problem += f"; {1000 * case.best:.3f} ms are enough"
                    cause = "ranges that are longer than needed, or layers that take long and keep little"
                    self.fail(problem, cause, limit=contract.TIMES_BEST)
        return self

    def many(self, layers: int) -> SegmentsCheck:
        """Check that ranges of so many layers that one cannot try all choices fit, and are found in time."""
        costs = draw_costs(self.random, layers)
        self._choose(SegmentsCase(costs, int(0.6 * peak_memory(costs, [])), 0.0))
        return self

    def _choose(self, case: SegmentsCase) -> list[Ranges]:
        """Call segments on the ranks, and check that its ranges are ranges that fit."""
        costs, most = case.costs, wording.size(case.budget)
        self.case = f"{len(costs)} layers that keep {wording.size(sum(c.kept for c in costs))}, and a budget of {most}"
        before = [tuple(cost) for cost in costs]
        given = dict(costs=before, budget=case.budget)
        answers = self.ranks.call(call_segments, given, limit=contract.SECONDS.number, show=self.show)
        for r, (ranges, after) in enumerate(answers):
            if [tuple(cost) for cost in after] != before:
                self.fail(f"segments on rank {r} has changed `costs`", "costs.pop(), .sort() or .reverse(); work on a copy")
            if case.best is None:
                if ranges != "ValueError":
                    self.fail(f"segments on rank {r} must raise a ValueError: nothing fits", "a choice that holds more than the budget")
                continue
            if ranges == "ValueError":
                self.fail(
                    f"segments on rank {r} raises a ValueError, although there are ranges that fit",
                    "a bound that is too strict, or ranges of one length only",
                )
            self._require_ranges(ranges, len(costs), r)
            if (peak := peak_memory(costs, ranges)) > case.budget:
                cause = "a layer's work; a range, all of which is held in its backward; or a layer outside ranges, which keeps more"
                self.fail(f"the ranges on rank {r} hold {wording.size(peak)}, more than the budget", cause)
            if case.budget >= peak_memory(costs, []) and ranges:
                self.fail(f"segments on rank {r} recomputes something, although everything can be kept", "a missing choice: no ranges")
        return [ranges for ranges, _ in answers]

    def _require_ranges(self, ranges: object, layers: int, r: int) -> None:
        """Check that ranges are pairs of whole numbers, in order, without overlaps."""
        if not isinstance(ranges, list):
            self.fail(f"segments on rank {r} must return a list of (start, stop); got {type(ranges).__name__}", "a missing return")
        at = 0
        for pair in ranges:
            whole = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(type(k) is int or isinstance(k, np.integer) for k in pair)
            if not whole or not at <= pair[0] < pair[1] <= layers:
                cause = "a stop that is the last layer's number instead of the one after it, or ranges that overlap"
                self.fail(f"segments on rank {r}: {pair!r} is no (start, stop) after layer {at} of {layers}", cause)
            at = pair[1]
        ranges[:] = [(int(a), int(b)) for a, b in ranges]

"""Cases for part 32's `segments`, and their best answers: layers of which no simple rule finds a choice that is nearly as good.

Students do not get this file: course_lib has only a search through all choices, which is too slow for as many layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from course_lib.check.recompute.segments import MB, SegmentsCase, draw_costs
from course_lib.gpt.training.activation_memory import LayerCost, Ranges, extra_seconds, peak_memory

LAYERS = 20, 28
THIN, TIGHT, LONGEST = (11, 15), 0.1, 10  # layers that keep little more than their input; budgets for which they need a long range
NARROW = 0.02  # a budget into which no simple rule fits
WORSE = 1.04  # times the best one: what simple rules must cost, at least, if they find something that fits


def least_seconds(costs: list[LayerCost], budget: int, longest: int = 10**9, spare: int = 0, work: str = "each") -> float:
    """Return the least extra time of all choices that fit, with ranges of at most `longest` layers; infinity if nothing fits.

    Wrong ones leave `spare` bytes in a range, or count the `work` of its "last" layer only, or its "most" for all.

    Of each prefix of the layers, it keeps for every number of bytes held the least time.
    """
    best: list[dict[int, float]] = [{0: 0.0}, *({} for _ in costs)]
    for i, cost in enumerate(costs):
        least = math.inf
        for held, seconds in sorted(best[i].items()):
            if seconds >= least:
                continue  # another choice holds no more, and takes no longer
            least = seconds
            if held + cost.kept + cost.work <= budget:
                _keep_least(best[i + 1], held + cost.kept, seconds)
            here, took, most = held + spare, seconds, 0
            for stop, other in enumerate(costs[i : i + longest], i + 1):
                here, took, most = here + other.kept, took + other.seconds, max(most, other.work)
                if here + (most if work == "most" else other.work) > budget:
                    if work == "last" and here <= budget:
                        continue
                    break
                _keep_least(best[stop], held + cost.input, took)
    return min(best[-1].values(), default=math.inf)


def _keep_least(found: dict[int, float], held: int, seconds: float) -> None:
    found[held] = min(found.get(held, math.inf), seconds)


def simple_choices(costs: list[LayerCost], budget: int) -> Iterator[Ranges]:
    """Yield what simple rules choose: ranges of equal length, the first layers, or the layers that save most, one by one."""
    n = len(costs)
    for size in range(1, n + 1):
        yield [(k, min(k + size, n)) for k in range(0, n, size)]
        yield from ([(k, k + size) for k in range(0, stop, size)] for stop in range(size, n + 1, size))
        yield [(k, k + 1) for k in range(size)]
        yield [(0, size)]
    for value in (
        lambda c: c.kept / c.seconds,
        lambda c: (c.kept - c.input) / c.seconds,
        lambda c: c.kept - c.input,
        lambda c: -c.seconds,
    ):
        order = sorted(range(n), key=lambda k: -value(costs[k]))
        for size in range(n + 1):
            chosen = sorted(order[:size])
            yield [(k, k + 1) for k in chosen]
            yield _joined(chosen)


def _joined(chosen: list[int]) -> Ranges:
    """Join layers that follow each other into ranges."""
    found: list[tuple[int, int]] = []
    for k in chosen:
        found = [*found[:-1], (found[-1][0], k + 1)] if found and found[-1][1] == k else [*found, (k, k + 1)]
    return found


def least_peak(costs: list[LayerCost]) -> int:
    """Return the smallest budget into which something fits, to a tenth of a megabyte."""
    low, high = 0, peak_memory(costs, [])
    while high - low > 10**5:
        middle = (low + high) // 2
        low, high = (low, middle) if least_seconds(costs, middle) < math.inf else (middle, high)
    return high


def with_thin_layers(random: np.random.Generator, costs: list[LayerCost]) -> list[LayerCost]:
    """Let some layers in a row keep one megabyte more than their input, and the last layer as much as all of them."""
    count = int(random.integers(*THIN))
    start, found = int(random.integers(0, len(costs) - count - 2)), list(costs)
    for i in range(start, start + count):
        inputs = int(random.integers(5, 9)) * MB
        found[i] = costs[i]._replace(seconds=float(random.uniform(0.3e-3, 1e-3)), input=inputs, kept=inputs + MB)
    kept = sum(cost.kept for cost in found[start : start + count]) + int(random.integers(-5, 6)) * MB
    return [*found[:-1], found[-1]._replace(kept=kept)]


def _at_the_limit(costs: list[LayerCost], share: float) -> SegmentsCase | None:
    """Make a case in multiples of 100 kB whose budget is the least peak, or a byte less; None if wrong answers would not show.

    These are: a range that must leave a byte, or that counts its largest work for all its layers, and an error only for a layer alone.
    """
    costs = [c._replace(kept=c.kept // 10, input=c.input // 10, work=c.work // 10) for c in costs]
    least = least_peak(costs) // 10**5 * 10**5
    budget = int(least + share * (peak_memory(costs, []) - least))
    wrong = [least_seconds(costs, least, spare=1), least_seconds(costs, least, work="most")]
    if min(wrong) < math.inf or max(c.kept + c.work for c in costs) > budget:
        return None
    return SegmentsCase(costs, budget, None if share < 0 else 0.0)


def draw_case(random: np.random.Generator, share: float) -> SegmentsCase:
    """Draw layers, with a budget at this share of the way from the least to the largest peak, until no simple rule does well.

    Neither does the best choice of single layers, for a `TIGHT` budget of ranges of at most `LONGEST` layers. Into a `NARROW`
    budget, nothing of all that fits, and it matters which layers' work counts. A share of 0 makes the budget the least peak; one
    below 0, a byte less.
    """
    tight = share == TIGHT
    for _ in range(5000):
        costs = draw_costs(random, int(random.integers(*LAYERS)))
        if share <= 0:
            if case := _at_the_limit(costs, share):
                return case
            continue
        costs = with_thin_layers(random, costs) if tight else costs
        least, most = least_peak(costs), peak_memory(costs, [])
        budget = int(least + share * (most - least))
        if share == 1:
            return SegmentsCase(costs, budget, 0.0)
        best = least_seconds(costs, budget)
        simple = [extra_seconds(costs, ranges) for ranges in simple_choices(costs, budget) if peak_memory(costs, ranges) <= budget]
        if share == NARROW:
            last, largest = (least_seconds(costs, budget, work=which) for which in ("last", "most"))
            if last >= best or largest <= WORSE * best:
                continue
        others = min([*simple, least_seconds(costs, budget, longest=LONGEST if tight else 1)])
        if others > WORSE * best and (others == math.inf or share != NARROW):
            return SegmentsCase(costs, budget, best)
    raise RuntimeError(f"no case was found for a share of {share}.")

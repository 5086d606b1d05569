"""Part 32's drawn layers: the search finds the best choice, and no simple rule comes near it."""

import itertools

import numpy as np
import pytest

from course_lib.check.recompute import contract
from course_lib.check.recompute.segments import draw_costs, draw_small, every_choice
from course_lib.gpt.training.activation_memory import LayerCost, extra_seconds, peak_memory
from grading.authoring.cases import recompute as cases


@pytest.mark.parametrize("seed", range(12))
def test_the_search_finds_what_trying_every_choice_finds(seed):
    random = np.random.default_rng(seed)
    share = (-0.1, 0.0, 0.05, 0.2, 0.5, 1.0)[seed % 6]
    case = draw_small(random, share)
    found = cases.least_seconds(case.costs, case.budget)
    assert found == pytest.approx(np.inf if case.best is None else case.best)
    single = [r for r in every_choice(8) if all(stop - start == 1 for start, stop in r) and peak_memory(case.costs, r) <= case.budget]
    times = [extra_seconds(case.costs, ranges) for ranges in single]
    assert cases.least_seconds(case.costs, case.budget, longest=1) == pytest.approx(min(times, default=np.inf))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3, 0.5])
def test_no_simple_rule_is_nearly_as_good(share):
    for seed in range(5):
        case = cases.draw_case(np.random.default_rng(seed), share)
        rules = [r for r in cases.simple_choices(case.costs, case.budget) if peak_memory(case.costs, r) <= case.budget]
        assert all(extra_seconds(case.costs, ranges) > (1 + contract.TIMES_BEST.number) * case.best for ranges in rules)
        assert 0 < case.best < sum(cost.seconds for cost in case.costs)


def test_a_tight_budget_needs_a_long_range():
    for seed in range(5):
        case = cases.draw_case(np.random.default_rng(seed), cases.TIGHT)
        assert cases.least_seconds(case.costs, case.budget, longest=cases.LONGEST) > (1 + contract.TIMES_BEST.number) * case.best


def test_nothing_simple_fits_into_a_narrow_budget():
    for seed in range(5):
        case = cases.draw_case(np.random.default_rng(seed), cases.NARROW)
        assert case.best is not None and cases.least_seconds(case.costs, case.budget, longest=1) == np.inf
        assert all(peak_memory(case.costs, ranges) > case.budget for ranges in cases.simple_choices(case.costs, case.budget))


def test_the_least_peak_is_that_of_some_choice():
    costs = draw_costs(np.random.default_rng(1), 8)
    least = min(peak_memory(costs, ranges) for ranges in every_choice(8))
    assert least <= cases.least_peak(costs) <= least + 10**5


def test_the_peak_is_what_a_walk_through_forward_and_backward_holds():
    random = np.random.default_rng(3)
    for ranges in itertools.islice(every_choice(6), 0, None, 7):
        costs = [LayerCost(1.0, *(int(n) for n in random.integers(1, 50, 3))) for _ in range(6)]
        assert peak_memory(costs, ranges) == _walk(costs, ranges)


def _walk(costs, ranges):
    """Hold and free layer by layer."""
    inside = {k: (start, stop) for start, stop in ranges for k in range(start, stop)}
    held = {k: costs[k].kept if k not in inside else costs[k].input * (inside[k][0] == k) for k in range(len(costs))}
    most = 0
    for k in reversed(range(len(costs))):
        if k in inside and inside[k][1] == k + 1:  # computed again
            held |= {i: costs[i].kept for i in range(*inside[k])}
        most = max(most, sum(held.values()) + costs[k].work)
        held[k] = 0
    return most

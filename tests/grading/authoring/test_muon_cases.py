"""Part 36's cases for `owners`: a good choice passes, and each simpler rule fails in every case."""

import numpy as np
import pytest

from course_lib.check.muon.owners import TIMES_BEST, busiest, draw_blocks, flop
from grading.authoring.cases.muon import NEAR, WORSE, draw_case, elements, largest_first, simpler_choices


@pytest.mark.parametrize("n", [3, 4, 7, 16])
def test_each_case_decides(n):
    for seed in range(3):
        case = draw_case(np.random.default_rng(seed), n)
        assert case.n == n and case.best == busiest(case.shapes, largest_first(case.shapes, n), n)
        assert case.best <= NEAR * max(sum(map(flop, case.shapes)) / n, *map(flop, case.shapes))
        for owner in simpler_choices(case.shapes, n):
            assert len(owner) == len(case.shapes) and set(owner) <= set(range(n))
            assert busiest(case.shapes, owner, n) > TIMES_BEST * case.best
    assert WORSE > TIMES_BEST


def test_the_visible_cases_of_owners_tell_right_from_wrong():
    for n in (2, 3, 4):
        for seed in range(20):
            case = draw_blocks(np.random.default_rng(seed), n)
            assert busiest(case.shapes, largest_first(case.shapes, n), n) <= 1.01 * case.best
            order = sorted(range(len(case.shapes)), key=lambda i: flop(case.shapes[i]))
            in_turn = [order.index(i) % n for i in range(len(order))]
            smallest_first = largest_first(case.shapes, n, lambda shape: -flop(shape))
            for owner in (in_turn, [0] * len(order), smallest_first):
                assert busiest(case.shapes, owner, n) > TIMES_BEST * case.best, (n, seed)
            if n == 4:  # in the order of elements
                assert busiest(case.shapes, largest_first(case.shapes, n, order=elements), n) > 1.2 * case.best

"""Cases of part 32's `checkpoint` are found in few draws, so that no grading is without one."""

import numpy as np
import pytest

from course_lib.check.recompute import check as recompute

ENOUGH = 400  # of the `MOST_DRAWN` that a check makes; 15 are needed on average where dropout is strongest
DROPOUT = {
    False: [["sharded"], ["replicated", "router"], ["sharded"]],
    True: [[], ["replicated", "sharded"], ["router", "sharded"]],
}


@pytest.mark.parametrize(
    ("size", "dtype", "nested", "whole", "dropout"),
    [
        (1, np.float64, True, True, True),
        (2, np.float32, False, True, True),
        (4, np.float64, True, True, True),
        (2, np.float64, False, False, False),
        (1, np.float64, False, True, False),
    ],
)
def test_a_case_is_found_in_few_draws(monkeypatch, size, dtype, nested, whole, dropout):
    monkeypatch.setattr(recompute, "MOST_DRAWN", ENOUGH)
    check = recompute.RecomputeCheck("checkpoint", None, show=False)
    drawing = DROPOUT[nested] if dropout else [[], [], []]
    for seed in range(10):
        how = seed, "router", drawing, nested
        case, _ = check._draw_telling(list(range(size)), dtype, False, whole, how)
        lengths = {batch[0]["grad"].shape[1] for batch in case.batches}
        assert len(lengths) == recompute.MICRO_BATCHES
        assert dropout or 1 in lengths

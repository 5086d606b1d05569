"""Check of part 13's `rank_batches` and `check_parameter_closeness`; `on_ranks` has what runs on the ranks."""

from __future__ import annotations

import numpy as np

from course_lib.autograd import ArrayDataset, DataLoader
from course_lib.check import Check
from course_lib.check.data.replicas.on_ranks import compare_models, take_batches

Case = tuple[list[list[np.ndarray]], bool, str]  # each rank's parameters, whether they are close, and what they are in words


class ReplicasCheck(Check):
    """A `Check` of the batches and the parameters of four replicas of a model."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def batches(self, samples: int, batch: int, size: int, shuffle: bool) -> None:
        """Check the batches of every rank of a group of `size`."""
        self.case = f"{samples} samples in {'shuffled ' * shuffle}batches of {batch}, {size} ranks"
        loader = DataLoader(ArrayDataset(np.arange(samples), -np.arange(samples)), batch, shuffle=shuffle)
        batches = list(loader)
        cause = (
            "leftover batches for only some ranks; a count used as an index; blocks instead of every n-th batch; "
            "a second pass over the loader"
        )
        answer = self.ranks.call(take_batches, dict(samples=samples, batch=batch, shuffle=shuffle, size=size), show=self.show)[0]
        for r, got in enumerate(answer):
            expected = batches[r : len(batches) // size * size : size]
            self.value(len(got), len(expected), name="the number of batches", rank=r, cause=cause)
            for i, (pair, (x, y)) in enumerate(zip(got, expected, strict=True)):
                self.array(pair[0], x, name=f"the samples of its batch {i}", rank=r, cause=cause)
                self.array(pair[1], y, name=f"the labels of its batch {i}", rank=r, cause=cause)

    def closeness(self, values: list[list[np.ndarray]], close: bool, case: str) -> None:
        """Check the answer for models with these parameters, one list for each rank."""
        self.case = case
        answers = self.ranks.call(compare_models, [dict(values=v) for v in values], show=self.show)
        if type(answers[0][0]) not in (bool, np.bool_) or answers[0][0] != close:
            self.fail(f"rank 0 returned {answers[0][0]!r}, which is wrong", "a parameter or a rank left out, or == instead of allclose")
        if not all(same for _, same in answers):
            self.fail("the call changed the parameters", "a Bcast into the parameter itself")

    def parameters(self, dtype: type = np.float64, scale: float = 1.0) -> list[list[np.ndarray]]:
        """Draw three parameters, the same on all four ranks."""
        shapes = self.random.integers(2, 7, (3, 2))
        drawn = [(scale * self.random.uniform(0.5, 2, s) * self.random.choice([-1, 1], s)).astype(dtype) for s in shapes]
        return [[p.copy() for p in drawn] for _ in range(4)]

    def differences(self, dtype: type, scale: float) -> list[Case]:
        """Draw cases of one dtype: equal models, rounding differences, and a difference on each rank in each parameter."""
        drawn = [self.parameters(dtype, scale) for _ in range(18)]
        drawn[1][1][1] *= dtype(1 + 4 * np.finfo(dtype).eps)
        cases = [(drawn[0], True, "equal parameters"), (drawn[1], True, "a rounding difference")]
        for k, values in enumerate(drawn[2:14]):  # which rank, which parameter, which place, which sign
            i, place = ((0, (0, 0)), (1, (-1, 0)), (2, (-1, -1)))[k % 3]
            values[k // 3][i][place] += scale * dtype(self.random.choice([-0.01, 0.01]))
            cases.append((values, False, "one value that differs on one rank"))
        drawn[14][1][0] += dtype(0.1)
        drawn[14][2][0] -= dtype(0.1)
        drawn[15][3][2][0, 0] = np.nan
        cases += [(drawn[14], False, "differences that sum to zero"), (drawn[15], False, "one value that is NaN")]
        return cases + [(values, True, "equal parameters") for values in drawn[16:]]

"""Check of part 13's `rank_batches` and `check_parameter_closeness`; `on_ranks` has what runs on the ranks."""

from __future__ import annotations

import numpy as np

from course_lib.check import Check
from course_lib.check.data.replicas.on_ranks import batch_loader, compare_models, take_batches

Case = tuple[list[list[np.ndarray]], bool, str]  # each rank's parameters, whether they are close, and what they are in words


class ReplicasCheck(Check):
    """A `Check` of the batches and the parameters of four replicas of a model."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def batches(self, samples: int, batch: int, size: int, shuffle: bool, drop_last: bool = False) -> None:
        """Check the batches of every rank of a group of `size` in two epochs; each of the four ranks computes them all."""
        self.case = f"{samples} samples in {'shuffled ' * shuffle}batches of {batch}, {size} ranks"
        how = dict(samples=samples, batch=batch, shuffle=shuffle, seed=int(self.random.integers(1, 1 << 30)), drop_last=drop_last)
        loader = batch_loader(**how)
        epochs = [list(loader) for _ in range(2)]
        cause = (
            "leftover batches for only some ranks; a count used as an index; blocks instead of every n-th batch; "
            "a second pass over the loader, or a loader of its own"
        )
        answers = self.ranks.call(take_batches, dict(size=size, loader=how), show=self.show)
        for r, epoch in ((r, epoch) for r in range(size) for epoch in range(2)):
            expected = epochs[epoch][r : len(loader) // size * size : size]
            for got in (answer[r][epoch] for answer in answers):
                self.value(len(got), len(expected), name="the number of batches", rank=r, cause=cause)
                for i, (pair, (x, y)) in enumerate(zip(got, expected, strict=True)):
                    where = f"its batch {i}" + " of the second epoch" * epoch
                    self.array(pair[0], x, name=f"the samples of {where}", rank=r, cause=cause)
                    self.array(pair[1], y, name=f"the labels of {where}", rank=r, cause=cause)
        self.covers("sizes", "group sizes", "repetition")

    def closeness(self, values: list[list[np.ndarray]], close: bool, case: str) -> None:
        """Check the answer for models with these parameters, one list for each rank."""
        self.case = case
        answers = self.ranks.call(compare_models, [dict(values=v) for v in values], show=self.show)
        if type(answers[0][0]) not in (bool, np.bool_) or answers[0][0] != close:
            self.fail(f"rank 0 returned {answers[0][0]!r}, which is wrong", "a parameter or a rank left out, or == instead of allclose")
        if not all(same for _, same in answers):
            self.fail("the call changed the parameters", "a Bcast into the parameter itself")
        self.covers("dtypes", "special values", "sizes", "repetition", "arguments")

    def parameters(self, dtype: type = np.float64, scale: float = 1.0) -> list[list[np.ndarray]]:
        """Draw a weight, a bias and another weight, the same on all four ranks."""
        shapes = [tuple(s) for s in self.random.integers(3, 7, (3, 2))]  # with values between the first and the last
        shapes[1] = shapes[1][:1]
        drawn = [(scale * self.random.uniform(0.5, 2, s) * self.random.choice([-1, 1], s)).astype(dtype) for s in shapes]
        return [[p.copy() for p in drawn] for _ in range(4)]

    def differences(self, dtype: type, scale: float) -> list[Case]:
        """Draw cases of one dtype: equal models, rounding differences, and a difference on each rank in each parameter."""
        drawn = [self.parameters(dtype, scale) for _ in range(22)]
        drawn[1][1][1] *= dtype(1 + 4 * np.finfo(dtype).eps)
        cases = [(drawn[0], True, "equal parameters"), (drawn[1], True, "a rounding difference")]
        for k, values in enumerate(drawn[2:14]):  # which rank, which parameter, which place, which sign
            i, place = ((0, (0, 0)), (1, (-1,)), (2, (-1, -1)))[k % 3]
            values[k // 3][i][place] += scale * dtype(self.random.choice([-0.01, 0.01]))
            cases.append((values, False, "one value that differs on one rank"))
        drawn[14][1][0] += dtype(0.1)
        drawn[14][2][0] -= dtype(0.1)
        drawn[15][3][2][0, 0] = np.nan
        cases += [(drawn[14], False, "differences that sum to zero"), (drawn[15], False, "one value that is NaN")]
        for i, values in enumerate(drawn[16:19]):
            p = values[int(self.random.integers(1, 4))][i]
            p[tuple(n // 2 for n in p.shape)] += scale * dtype(0.01)
            cases.append((values, False, "one value in the middle that differs on one rank"))
        p = drawn[19][int(self.random.integers(1, 4))][2]
        p[0, 0], p[-1, -1] = p[-1, -1], p[0, 0]
        cases.append((drawn[19], False, "two values that have changed places on one rank"))
        return cases + [(values, True, "equal parameters") for values in drawn[20:]]

    def tolerances(self) -> list[Case]:
        """Draw cases that the default tolerances of `np.allclose` decide, 1e-5 relative and 1e-8 absolute, and one of two dtypes."""
        near, far, small, large, nan, mixed = (self.parameters() for _ in range(6))
        small_rank, large_rank = self.random.integers(1, 4, 2)
        for r in range(4):
            for p, q in zip(near[r], far[r], strict=True):
                p *= 1 + (0, 8e-6, -8e-6, 0)[r]
                q *= 1 + 6e-6 * r
            small[r][1][:] = 5e-9 * (r == small_rank)
            large[r][1][:] = 3e-8 * (r == large_rank)
            nan[r][2][0, 0] = np.nan
            mixed[r][0] = mixed[r][0].astype(np.float32)
        return [
            (near, True, "relative differences of 8e-6 from rank 0"),
            (far, False, "ranks that are each close to the next, but not to rank 0"),
            (small, True, "differences of 5e-9 from zero"),
            (large, False, "differences of 3e-8 from zero"),
            (nan, False, "the same NaN on all ranks"),
            (mixed, True, "parameters of two dtypes"),
        ]

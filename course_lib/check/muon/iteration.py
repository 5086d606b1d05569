"""Check of part 36's `newton_schulz`: its polynomial on the singular values, and its memory."""

from __future__ import annotations

import os

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.muon.on_ranks import iterate
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # Jordan et al., 2024
TOLERANCES = {"float64": 1e-9, "float32": 2e-3}
LARGE_NUMBERS = {"float64": 1e6, "float32": 10.0}  # next to which the small number in the denominator does not count
EPSILON = 1e-7  # the small number in the denominator
SMALL_NORM, SMALL_TOLERANCE = 1e-3, 1e-4  # next to which a larger one than EPSILON counts, and a smaller one does not
LONG = 2000  # rows of a matrix with few columns
MOST_BYTES = 4 << 20  # for a matrix of LONG rows; a product of LONG times LONG has 16 MB even in float32


def polynomial(values: np.ndarray, steps: int) -> np.ndarray:
    """Singular values after some steps.

    >>> polynomial(np.array([0.0, 1.0]), 1).round(4)
    array([0.   , 0.701])
    """
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        values = a * values + b * values**3 + c * values**5
    return values


class IterationCheck(GroupCheck):
    """A `Check` of `newton_schulz` on every rank."""

    def values(self, *steps: int, dtype: type = np.float64) -> IterationCheck:
        """Check wide, tall and square matrices, single rows and columns, for these numbers of steps; a large one, small numbers, zeros."""
        a, b, c = sorted(self.sizes(3, 3, 17))
        for shape in ((a, c), (c, a), (b, b), (1, c), (c, 1), (b, c), (c, b)):
            for n in steps:
                self._run(shape, n, dtype)
        self._run(tuple(self.sizes(2, 60, 90)), steps[-1], dtype)
        self._run((1, c), 1, dtype, "small numbers")
        self._run((b, c), steps[-1], dtype, "zeros")
        return self

    def _run(self, shape: tuple[int, int], steps: int, dtype: type, numbers: str = "") -> None:
        name, (rows, columns) = np.dtype(dtype).name, shape
        self.case = f"a {name} matrix of {numbers}{', ' * bool(numbers)}{rows} rows and {columns} columns, {steps} step{'s' * (steps != 1)}"
        drawn = [self.random.standard_normal(shape) for _ in range(self.ranks.n)]
        scales = {"": [LARGE_NUMBERS[name] * self.random.uniform(0.5, 5) for _ in drawn], "zeros": [0.0] * len(drawn)}
        scales["small numbers"] = [SMALL_NORM / np.linalg.norm(x) for x in drawn]
        given = [(x * scale).astype(dtype) for x, scale in zip(drawn, scales[numbers], strict=True)]
        near = SMALL_TOLERANCE if numbers == "small numbers" else TOLERANCES[name]
        answers = self.ranks.call(iterate, [dict(matrices=[x], steps=[steps], watched=False) for x in given], show=self.show)
        for r, (x, ((out,), (after,), _)) in enumerate(zip(given, answers, strict=True)):
            u, s, vt = np.linalg.svd(x.astype(float), full_matrices=False)
            size = np.linalg.norm(s) + EPSILON

            def result(scale: float, count: int, u=u, s=s, vt=vt) -> np.ndarray:
                return u * polynomial(s / scale, count) @ vt

            known = {
                "the result of a matrix that was divided by its largest singular value": result(s[0] or 1.0, steps),
                "the result of a matrix that was not divided by its norm": result(1.0, 1) if steps == 1 else np.zeros(0),
                "the result of one step fewer": result(size, max(steps - 1, 0)),
                "the result of one step more": result(size, steps + 1),
            }
            cause = "X Xᵀ on the wrong side, or a matrix that is transposed but not transposed back"
            if numbers:
                cause = "a division by a norm of zero, or by one to which much more than 1e-7 was added"
            want = result(size, steps)
            self.array(out, want.astype(dtype), name="the result", rank=r, rtol=near, scale=1.0, cause=cause, instead=known)
            self.array(after, x, name="the argument, after the call,", rank=r, cause="an operation in place, such as /=")

    def memory(self) -> IterationCheck:
        """Check that no product is as large as the longer side squared."""
        watched = ISOLATION_VARIABLE not in os.environ
        few = self.sizes(1, 2, 5)[0]
        for shape in ((LONG, few), (few, LONG)):
            self.case = f"a matrix of {shape[0]} rows and {shape[1]} columns"
            given = self.random.standard_normal(shape)
            answers = self.ranks.call(iterate, dict(matrices=[given], steps=[1], watched=watched), show=self.show, peak=True)
            for r, (((out,), _, seen), peak) in enumerate(zip(answers, self.ranks.peaks, strict=True)):
                u, s, vt = np.linalg.svd(given, full_matrices=False)
                self.array(out, u * polynomial(s / np.linalg.norm(s), 1) @ vt, name="the result", rank=r, rtol=1e-5, scale=1.0)
                if (held := seen if peak is None else peak) > MOST_BYTES:
                    cause = "X Xᵀ of a matrix with more rows than columns; transpose it first"
                    self.fail(f"newton_schulz on rank {r} held {wording.size(held)}; {wording.size(MOST_BYTES)} are enough", cause)
        return self

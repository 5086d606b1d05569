"""Check of part 36's `newton_schulz`: its polynomial on the singular values, and its memory."""

from __future__ import annotations

import os

import numpy as np

from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.cases.repetition import Call, in_turn
from course_lib.check.groups import GroupCheck
from course_lib.check.muon import contract
from course_lib.check.muon.on_ranks import iterate
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

COEFFICIENTS = 3.4445, -4.7750, 2.0315  # Jordan et al., 2024
TOLERANCES = {"float64": 1e-9, "float32": 2e-3}
LARGE_NUMBERS = {"float64": 1e6, "float32": 10.0}  # next to which the small number in the denominator does not count
EPSILON = 1e-7  # the small number in the denominator
SMALL_NORM, SMALL_TOLERANCE = 1e-3, 1e-4  # next to which a larger one than EPSILON counts, and a smaller one does not
NEARLY = 0.03  # largest difference of a result that is nearly right
LONG = 2000  # rows of a matrix with few columns
DEFAULT_STEPS = 5


def polynomial(values: np.ndarray, steps: int, coefficients: tuple[float, float, float] = COEFFICIENTS) -> np.ndarray:
    """Singular values after some steps.

    >>> polynomial(np.array([0.0, 1.0]), 1).round(4)
    array([0.   , 0.701])
    """
    a, b, c = coefficients
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
        self._run((b, c), 0, dtype)
        self._not_a_number((b, c), dtype)
        return self

    def _not_a_number(self, shape: tuple[int, int], dtype: type) -> None:
        """Check that a NaN in the matrix makes NaN of the result."""
        self.case = f"a {np.dtype(dtype).name} matrix of {shape[0]} rows and {shape[1]} columns with a NaN"
        x = self.random.standard_normal(shape).astype(dtype)
        x[-1, 0] = np.nan
        answers = self.ranks.call(iterate, dict(matrices=[x], steps=[DEFAULT_STEPS], watched=False), show=self.show)
        for r, ((out,), _, _) in enumerate(answers):
            if not np.isnan(out).any():
                cause = "NaN that is turned into numbers, which hides that training has failed"
                self.fail(f"the result on rank {r} has no NaN", cause)
        self.covers("special values")

    def in_turn(self) -> IterationCheck:
        """Check calls in turn, in each layout, some with the default of steps: each result is a new array."""
        a, b, c = sorted(self.sizes(3, 3, 17))
        shapes = (a, c), (a, c), (c, a), (c, a), (b, b), (1, 1)
        dtypes = np.repeat(self.random.permutation(["float32", "float64", "float64"]), 2).tolist()
        layouts = self.random.permutation(LAYOUTS).tolist()
        matrices, calls = [], []
        for i, (shape, dtype, layout) in enumerate(zip(shapes, dtypes, layouts, strict=True)):
            matrices.append((LARGE_NUMBERS[dtype] * self.random.standard_normal(shape)).astype(dtype))
            keywords = {"steps": DEFAULT_STEPS - 2} if i % 2 else {}
            calls.append(Call([[matrices[-1]]] * 4, layout=layout, keywords=keywords))
        self.case = "several calls in turn"
        found = in_turn(self, "newton_schulz", calls)
        for call, x, answers in zip(calls, matrices, found, strict=True):
            steps = call.keywords.get("steps", DEFAULT_STEPS)
            said = f"{steps} steps" if call.keywords else "steps by default"
            self.case = f"a {x.dtype} matrix of {x.shape[0]} rows and {x.shape[1]} columns, {said}, {call.layout}"
            for r, out in enumerate(answers):
                self._compare(out, x, steps, r)
        self.covers("dtypes", "layouts", "sizes")
        return self

    def _run(self, shape: tuple[int, int], steps: int, dtype: type, numbers: str = "") -> None:
        name, (rows, columns) = np.dtype(dtype).name, shape
        self.case = f"a {name} matrix of {numbers}{', ' * bool(numbers)}{rows} rows and {columns} columns, {steps} step{'s' * (steps != 1)}"
        drawn = [self.random.standard_normal(shape) for _ in range(self.ranks.n)]
        scales = {"": [LARGE_NUMBERS[name] * self.random.uniform(0.5, 5) for _ in drawn], "zeros": [0.0] * len(drawn)}
        scales["small numbers"] = [SMALL_NORM / np.linalg.norm(x) for x in drawn]
        given = [(x * scale).astype(dtype) for x, scale in zip(drawn, scales[numbers], strict=True)]
        answers = self.ranks.call(iterate, [dict(matrices=[x], steps=[steps], watched=False) for x in given], show=self.show)
        for r, (x, ((out,), (after,), _)) in enumerate(zip(given, answers, strict=True)):
            self._compare(out, x, steps, r, numbers)
            if not np.array_equal(after, x):
                self.fail(f"the argument is another one after the call, on rank {r}", "an operation in place, such as /=")

    def _compare(self, out: object, x: np.ndarray, steps: int, r: int, numbers: str = "") -> None:
        """Check a rank's result for the matrix x."""
        near = SMALL_TOLERANCE if numbers == "small numbers" else TOLERANCES[x.dtype.name]
        with np.errstate(over="ignore", invalid="ignore"):  # a mistake that is compared with may overflow
            want, known = self._results(x.astype(float), steps)
        cause = "another formula; all products in it are products of matrices, as @ makes them"
        if isinstance(out, np.ndarray) and out.shape == x.shape and np.max(np.abs(out - want)) < NEARLY:
            cause = "numbers that were rounded to a smaller dtype, or a norm to which more than 1e-7 was added"
        if numbers:
            cause = "a division by a norm of zero, or by one to which much more than 1e-7 was added"
            known |= self._epsilons(x.astype(float), steps) if numbers == "small numbers" else {}
        shape_cause = "a matrix that is transposed but not transposed back"
        how = dict(rtol=near, scale=1.0, cause=cause, instead=known, shape_cause=shape_cause)
        self.array(out, want.astype(x.dtype), name="the result", rank=r, **how)

    @staticmethod
    def _epsilons(x: np.ndarray, steps: int) -> dict[str, np.ndarray]:
        """Return the results with other small numbers in the denominator."""
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        some = (0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
        return {f"the result with {e:g} in the place of 1e-7": u * polynomial(s / (np.linalg.norm(s) + e), steps) @ vt for e in some}

    def _results(self, x: np.ndarray, steps: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return what `newton_schulz` must return, and what known mistakes give."""
        u, s, vt = np.linalg.svd(x, full_matrices=False)
        size = np.linalg.norm(s) + EPSILON

        def result(scale: float, count: int, coefficients: tuple = COEFFICIENTS) -> np.ndarray:
            return u * polynomial(s / scale, count, coefficients) @ vt

        (a, b, c), wide = COEFFICIENTS, (x if x.shape[0] <= x.shape[1] else x.T) / size
        for _ in range(steps):
            square = wide @ wide.T
            wide = a * wide + (b * square + c * square * square) @ wide
        known = {
            "the argument": x,
            "the argument divided by its norm": x / size,
            "the result of a matrix that was divided by its largest singular value": result(s[0] or 1.0, steps),
            "the result of a matrix that was divided by its largest number": result(np.abs(x).max() or 1.0, min(steps, 1)),
            "the result of a matrix that was not divided by its norm": result(1.0, min(steps, 1)),
            "the result of one step fewer": result(size, max(steps - 1, 0)),
            "the result of one step more": result(size, steps + 1),
            "the result of five steps, whatever the argument steps is": result(size, 5),
            "the result without the last term, with c": result(size, steps, (a, b, 0.0)),
            "the result with the other sign of b": result(size, steps, (a, -b, c)),
            "a matrix whose singular values are all 1, not those of the iteration": u @ vt,
            "the result with each number of A squared, not the matrix: A @ A": wide if x.shape[0] <= x.shape[1] else wide.T,
        }
        return result(size, steps), known

    def memory(self) -> IterationCheck:
        """Check that no product is as large as the longer side squared."""
        watched = ISOLATION_VARIABLE not in os.environ
        few = self.sizes(1, 2, 5)[0]
        for shape in ((LONG, few), (few, LONG)):
            self.case = f"a matrix of {shape[0]} rows and {shape[1]} columns"
            self.baseline_memory("the result")
            given = self.random.standard_normal(shape)
            answers = self.ranks.call(
                iterate, dict(matrices=[given], steps=[1], watched=watched), show=self.show, peak=self.baseline_limit()
            )
            for r, (((out,), _, seen), peak) in enumerate(zip(answers, self.ranks.peaks, strict=True)):
                u, s, vt = np.linalg.svd(given, full_matrices=False)
                self.array(out, u * polynomial(s / np.linalg.norm(s), 1) @ vt, name="the result", rank=r, rtol=1e-5, scale=1.0)
                held, most = seen if peak is None else peak, contract.PRODUCTS
                if held > most.number:
                    cause = "a product with as many rows and columns as the longer side; it is small if X has no more rows than columns"
                    self.fail(f"newton_schulz on rank {r} held {wording.size(held)}", cause, limit=most)
        return self

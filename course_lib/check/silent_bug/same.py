"""Check of part 33's `same_on`: arrays that are the same, and such that differ in one way only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.groups import GroupCheck
from course_lib.check.silent_bug import contract
from course_lib.check.silent_bug.grids import DP, DP_CP, DP_TP, THREE, TP, TP_DP, WITH_ONE
from course_lib.check.silent_bug.on_ranks import call_same_on
from course_lib.mesh import Mesh

LARGE = 50_000  # numbers in an array that is too large to send

# Usual causes, by case; the other cases have the common one.
CAUSE = "another group than mesh.along(axis), a result of an earlier call, or values that are compared with a tolerance"
CAUSES = {
    "another shape": "bytes without the shape",
    "another size": "bytes without the shape, or an exchange of the arrays themselves",
    "another dtype": "values without the dtype",
    "the same bytes": "bytes without the dtype",
    "not a number": "values that are compared with ==; NaN equals nothing, but its bits are the same",
    "one number of one dimension": "np.ascontiguousarray, which makes an array of one dimension of a single number",
    "other shapes of nothing": "an answer without a look at the shape",
    "other dtypes of nothing": "an answer without a look at the dtype",
    "another NaN": "values as text or compared as such; not a number has many bit patterns",
    "whole numbers": "whole numbers that are rounded to float64",
    "a signed zero": "values that are compared with ==; -0.0 == 0.0, but their bits differ",
    "one number of many": "a digest of a part of the array",
} | dict.fromkeys(LAYOUTS, "bytes in their order in memory; array.tobytes() has them in C order")


class SameCase(NamedTuple):
    """Arrays of the four ranks of a grid, in its order.

    Attributes
    ----------
    name : str
    axes : dict of str to int
        Of a grid of three ranks, or of four; the fourth one may be on a grid of its own.
    arrays : list of numpy.ndarray
    layout : str
        Of every second array, as equal ones may lie in memory in other ways; see `cases.layouts`.
    """

    name: str
    axes: dict[str, int]
    arrays: list[np.ndarray]
    layout: str = "C"


class SameCheck(GroupCheck):
    """A `Check` of `same_on`, on grids of the four ranks."""

    def same(self) -> SameCheck:
        """Check `same_on` with all cases, those of a grid one after the other."""
        by_grid: dict[tuple, list[SameCase]] = {}
        for case in self._cases():
            # Large ones by themselves: bytes are counted for several calls together.
            large = case.arrays[0].size == LARGE
            by_grid.setdefault((large, *case.axes.items()), []).append(case)
        for cases in by_grid.values():
            self._in_turn(cases)
        self.covers("dtypes", "special values", "layouts", "sizes", "group order", "group sizes")
        self.covers("repetition", "same ranks twice", "arguments")
        return self

    def _cases(self) -> list[SameCase]:
        """Draw arrays of all kinds."""
        rows = int(self.random.integers(5, 9))
        one, two, three, four = self.random.standard_normal((4, rows, 3))
        number, other_number, zeros = np.array(1.5), np.array(2.5), np.zeros((rows, 3))
        last_bit, minus, with_nan = one.copy(), zeros.copy(), one.copy()
        last_bit[-1, -1] = np.nextafter(one[-1, -1], 9)
        minus[1, 1] = -0.0
        with_nan[1, 2] = np.nan
        other_nan, whole = with_nan.copy(), np.full(rows, 2**53)
        other_nan.view(np.int64)[1, 2] ^= 1  # still not a number
        sum_6, other_sum_6, none = np.array([1.0, 5]), np.array([3.0, 3]), np.zeros((0, 3))
        ones, few = np.ones(4), np.zeros(4)
        return [
            SameCase("equal", DP_TP, [one] * 4),
            SameCase("equal on four", DP, [one] * 4),
            SameCase("equal on tp", DP_TP, [one, one, two, two]),
            SameCase("equal on dp", DP_TP, [one, two, one, two]),
            SameCase("equal on the first axis", TP_DP, [one, two, one, two]),
            SameCase("all different", DP_TP, [one, two, three, four]),
            SameCase("one rank of four", DP, [one, one, one, two]),
            SameCase("one group", DP_TP, [one, one, one, two]),
            SameCase("two of each", DP, [one, two, two, one]),
            SameCase("equal on three", THREE, [one, one, one, two]),
            SameCase("one rank of three", THREE, [one, two, one, one]),
            SameCase("a last bit", DP_TP, [one, one, last_bit, one]),
            SameCase("another order", DP_CP, [one, one, one[::-1], one]),
            SameCase("other signs", DP, [one, one, -one, one]),
            SameCase("the same sum", DP, [sum_6, sum_6, other_sum_6, sum_6]),
            SameCase("another shape", DP, [one, one, one.reshape(3, rows), one]),
            SameCase("another size", DP, [one, one[:-1], one, one]),
            SameCase("another dtype", DP, [ones, ones, ones.astype(np.float32), ones]),
            SameCase("the same bytes", TP, [few.astype(np.int64), few, few, few]),
            SameCase("not a number", DP_TP, [with_nan] * 4),
            SameCase("another NaN", DP, [with_nan, with_nan, other_nan, with_nan]),
            SameCase("a signed zero", DP, [minus, zeros, minus, minus]),
            SameCase("one number", DP_TP, [number, number, other_number, other_number]),
            SameCase("one number of one dimension", DP, [number, number, number.reshape(1), number]),
            SameCase("nothing", DP, [none] * 4),
            SameCase("other shapes of nothing", DP, [none, none, np.zeros((0, 4)), none]),
            SameCase("other dtypes of nothing", DP, [none, none, none.astype(np.float32), none]),
            SameCase("an axis of one rank", WITH_ONE, [one, two, three, four]),
            SameCase("whole numbers", DP_TP, [whole, whole, whole, whole + (np.arange(rows) == 1)]),
            *(SameCase(layout, DP, [one] * 4, layout) for layout in LAYOUTS[1:]),
            *(SameCase(layout, DP, [two, two, two, one], layout) for layout in LAYOUTS[1:]),
            *self._large_cases(),
        ]

    def _large_cases(self) -> list[SameCase]:
        """Large arrays that differ in one number: the first, the last, or any but every fifth."""
        large = self.random.standard_normal(LARGE)
        anywhere = 30 * self.random.permutation(LARGE // 30)[:2] + 1
        arrays = []
        for where in (0, LARGE - 1, *anywhere):
            arrays.append(large.copy())
            arrays[-1][where] += 1
        first, last, one, other = arrays
        return [
            SameCase("one number of many", DP_TP, [large, first, large, last]),
            SameCase("one number of many", DP_TP, [one, large, large, other]),
        ]

    def _in_turn(self, cases: list[SameCase]) -> None:
        """Call same_on with each of these cases of a grid, on each axis, in random order."""
        axes = cases[0].axes
        mesh = Mesh(**axes)
        (order,) = self.groups(4)  # the rank at each place of the grid, and after it those outside
        turns = [(case, axis) for case in cases for axis in axes]
        turns = [turns[i] for i in self.random.permutation(len(turns))]
        arguments: list = [None] * 4
        for place, r in enumerate(order):
            layouts = [case.layout if place % 2 else "C" for case, _ in turns]
            calls = [(case.arrays[place], axis, layout) for (case, axis), layout in zip(turns, layouts, strict=True)]
            inside = place < mesh.size
            own_axes = axes if inside else dict.fromkeys(axes, 1)
            arguments[r] = dict(place=(int(not inside), place), axes=own_axes, calls=calls)
        self.case = repr(mesh)
        answers = self.call(call_same_on, arguments, show=self.show)
        for place, r in enumerate(order):
            most_bytes, called = 0.0, {place}
            for (case, axis), (answer, after) in zip(turns, answers[r], strict=True):
                group = mesh.group(axis, place) if place < mesh.size else (place,)
                most_bytes += (len(group) - 1) * contract.DIGEST_BYTES.number
                called.update(group)
                self.case = f"{mesh!r}, axis {axis}, arrays: {case.name}"
                self._answer(answer, case, group, place, r)
                if not _identical(after, case.arrays[place]):
                    self.fail(f"same_on has changed its array on rank {r}")
            self.case = repr(mesh)
            self._cost(r, len(turns), most_bytes, [order[other] for other in called])

    def _answer(self, answer: object, case: SameCase, group: tuple[int, ...], place: int, r: int) -> None:
        """Compare an answer with what is right for these places of the grid."""
        want = all(_identical(case.arrays[other], case.arrays[place]) for other in group)
        if not isinstance(answer, bool):
            self.fail(f"same_on on rank {r} must return True or False; got {answer!r}", "a missing return")
        if answer != want:
            problem = f"must be {want}" if self.show else "has the wrong value"
            self.fail(f"same_on on rank {r} {problem}", CAUSES.get(case.name, CAUSE))

    def _cost(self, r: int, turns: int, most_bytes: float, group: list[int]) -> None:
        """Check what a rank has sent in so many calls."""
        name, moved = f"same_on, called {turns} times,", self.ranks.traffic[r]
        cause = "arrays that are sent; a digest of each is enough"
        self.sent(moved, most_bytes, name=name, rank=r, cause=cause, limit=contract.DIGEST_BYTES)
        most = turns * int(contract.DIGEST_CALLS.number)
        self.calls(moved, most, group=group, name=name, rank=r, limit=contract.DIGEST_CALLS)


def _identical(a: object, b: np.ndarray) -> bool:
    """The same shape, dtype and bits."""
    if not isinstance(a, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.tobytes() == b.tobytes()

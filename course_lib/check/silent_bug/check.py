"""Check of part 33's instruments: faults of many kinds, and right runs that only look odd, in random order."""

from __future__ import annotations

import numpy as np

from course_lib import traffic
from course_lib.check.groups import SHUFFLED_ORDERS, GroupCheck
from course_lib.check.silent_bug.close_pairs import draw_pairs
from course_lib.check.silent_bug.faults import DISTORTIONS, SAMPLES, Case, Fault, draw
from course_lib.check.silent_bug.on_ranks import call_close_enough, call_compare, call_same_on
from course_lib.gpt.silent_bugs import KINDS
from course_lib.mesh import Mesh

# Grids of the four ranks: with one axis, with two, and with axes whose order or names an answer must not take for granted.
DP, DP_TP, TP_DP, TP, CP_TP, DP_CP, WITH_ONE, EP_DP = (
    dict(dp=4),
    dict(dp=2, tp=2),
    dict(tp=2, dp=2),
    dict(tp=4),
    dict(cp=2, tp=2),
    dict(dp=2, cp=2),
    dict(dp=2, pp=1, tp=2),
    dict(ep=2, dp=2),
)
LAST_ONLY = [0, 0, 0, 0, 0, 0, 4, 4]  # weights of the samples, where all should be 1
FACTOR_RTOL = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.06}
EXPONENTS = (-11, 0, -4, 3)  # powers of ten, of the size of a step's numbers, which the cases take in turn
DIGEST_BYTES = 1024  # that `same_on` may send, whatever the size of the array
LARGE = 50_000  # numbers in an array that is too large to send

# Usual causes, by case; the other cases have the common one.
SAME_CAUSE = "another group than mesh.along(axis), or values that are compared with a tolerance"
SAME_CAUSES = {
    "another shape": "bytes without the shape",
    "another size": "bytes without the shape, or an exchange of the arrays themselves",
    "another dtype": "values without the dtype",
    "the same bytes": "bytes without the dtype",
    "not a number": "values that are compared with ==; NaN equals nothing, but its bits are the same",
    "one number of one dimension": "np.ascontiguousarray, which makes an array of one dimension of a single number",
    "other shapes of nothing": "an answer without a look at the shape",
    "another NaN": "values as text or compared as such; not a number has many bit patterns",
    "whole numbers": "whole numbers that are rounded to float64",
    "a signed zero": "values that are compared with ==; -0.0 == 0.0, but their bits differ",
    "Fortran order": "bytes in their order in memory; array.tobytes() has them in C order",
    "every second column": "bytes in their order in memory; array.tobytes() has them in C order",
}
CLOSE_CAUSE = "a bound without the dtype, the number of terms or the largest value"
CLOSE_CAUSES = {
    "nothing but zeros": "a < b, where both are 0; or a division by the largest value",
    "no numbers": "the maximum of an empty array; np.max(..., initial=0) is 0",
    "not a number": "a comparison with NaN, which is never true",
    "not a number in both": "a comparison with NaN, which is never true",
    "other shapes": "arrays of other shapes",
    "a shape that broadcasts": "arrays of other shapes, which NumPy broadcasts",
    "infinite": "an infinite bound",
    "one infinite": "an infinite bound",
    "infinite in both": "an answer before all values are known to be finite",
    "the other infinite": "an infinite bound, as only one of the arrays is known to be finite",
    "negative values": "the largest value without np.abs",
}


class SilentBugCheck(GroupCheck):
    """A `Check` of part 33's instruments, on grids of the four ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self._drawn = 0

    def _order(self) -> list[int]:
        """The rank at each place of a grid: the usual order in a visible check, any other in a hidden test."""
        return [0, 1, 2, 3] if self.show else list(SHUFFLED_ORDERS[int(self.random.integers(len(SHUFFLED_ORDERS)))])

    def same(self, *names: str) -> SilentBugCheck:
        """Check `same_on` with arrays that are the same and with such that differ, by default in all ways."""
        cases = [case for case in self._same_cases() if not names or case[0] in names]
        for i in self.random.permutation(len(cases)):
            self._same(*cases[i])
        return self

    def _same_cases(self) -> list[tuple[str, dict[str, int], list[np.ndarray], str]]:
        draw, n = self.random.standard_normal, int(self.random.integers(5, 9))
        one, two, three, four = (draw((n, 3)) for _ in range(4))
        last_bit, minus = one.copy(), np.zeros((n, 3))
        last_bit[-1, -1] = np.nextafter(one[-1, -1], 9)
        minus[1, 1] = -0.0
        with_nan = one.copy()
        with_nan[1, 2] = np.nan
        other_nan, whole = with_nan.copy(), np.full(n, 2**53)
        other_nan.view(np.int64)[1, 2] ^= 1  # still not a number
        large = draw(LARGE)
        changed = large.copy()
        changed[int(self.random.integers(LARGE // 4, LARGE // 2)) | 1] += 1  # none of every second one
        found = [
            ("equal", DP_TP, [one] * 4),
            ("equal on four", DP, [one] * 4),
            ("equal on tp", DP_TP, [one, one, two, two]),
            ("equal on dp", DP_TP, [one, two, one, two]),
            ("equal on the first axis", TP_DP, [one, two, one, two]),
            ("all different", DP_TP, [one, two, three, four]),
            ("one rank of four", DP, [one, one, one, two]),
            ("one group", DP_TP, [one, one, one, two]),
            ("two of each", DP, [one, two, two, one]),
            ("a last bit", DP_TP, [one, one, last_bit, one]),
            ("another order", DP_CP, [one, one, one[::-1], one]),
            ("other signs", DP, [one, one, -one, one]),
            ("the same sum", DP, [np.array([1.0, 5]), np.array([1.0, 5]), np.array([3.0, 3]), np.array([1.0, 5])]),
            ("another shape", DP, [one, one, one.reshape(3, n), one]),
            ("another size", DP, [one, one[:-1], one, one]),
            ("another dtype", TP, [np.ones(4), np.ones(4), np.ones(4, np.float32), np.ones(4)]),
            ("the same bytes", TP, [np.zeros(4, np.int64), np.zeros(4), np.zeros(4), np.zeros(4)]),
            ("not a number", DP_TP, [with_nan] * 4),
            ("another NaN", DP, [with_nan, with_nan, other_nan, with_nan]),
            ("a signed zero", DP, [minus, np.zeros((n, 3)), minus, minus]),
            ("one number", DP_TP, [np.array(1.5), np.array(1.5), np.array(2.5), np.array(2.5)]),
            ("one number of one dimension", DP, [np.array(1.5), np.array(1.5), np.array([1.5]), np.array(1.5)]),
            ("nothing", DP, [np.zeros((0, 3))] * 4),
            ("other shapes of nothing", DP, [np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 4)), np.zeros((0, 3))]),
            ("an axis of one rank", WITH_ONE, [one, two, three, four]),
            ("whole numbers", DP_TP, [whole, whole, whole, whole + (np.arange(n) == 1)]),
            ("large", DP, [large] * 4),
            ("one number of many", DP, [large, large, changed, large]),
        ]
        return [(name, axes, [np.array(array, order="C") for array in arrays], "") for name, axes, arrays in found] + [
            ("Fortran order", DP, [one] * 4, "Fortran"),
            ("every second column", DP_TP, [one] * 4, "strided"),
        ]

    def _same(self, name: str, axes: dict[str, int], arrays: list[np.ndarray], layout: str) -> None:
        mesh, order = Mesh(**axes), self._order()
        for axis in axes:
            self.case = f"{mesh!r}, axis {axis}, arrays: {name}"
            given: list = [None] * 4
            for place, r in enumerate(order):
                how = layout if place % 2 else ""  # equal arrays may lie in memory in different ways
                given[r] = dict(axes=axes, place=(0, place), array=arrays[place], axis=axis, layout=how)
            answers = self.ranks.call(call_same_on, given, show=self.show)
            for place, r in enumerate(order):
                (got, after), group = answers[r], mesh.group(axis, place)
                want = all(_identical(arrays[m], arrays[place]) for m in group)
                if not isinstance(got, bool):
                    self.fail(f"same_on on rank {r} must return True or False; got {got!r}", "a missing return")
                if got != want:
                    cause = SAME_CAUSES.get(name, SAME_CAUSE)
                    self.fail(f"same_on on rank {r} must be {want}" if self.show else f"same_on on rank {r} has the wrong value", cause)
                if not _identical(after, arrays[place]):
                    self.fail(f"same_on has changed its array on rank {r}")
                if name == "large":
                    cause = "arrays that are sent; a digest of each is enough"
                    most = traffic.wire_bytes("Allgather", len(group), DIGEST_BYTES)
                    made = [entry for entry in self.ranks.traffic[r] if entry[0] != "Split"]
                    self.sent(made, most, name="same_on", rank=r, cause=cause)

    def close(self, *names: str) -> SilentBugCheck:
        """Check `close_enough` with pairs that rounding explains, and with such that it does not."""
        pairs = [pair for pair in draw_pairs(self.random) if not names or pair.name in names]
        order = self.random.permutation(len(pairs))
        args = [(pairs[i].a, pairs[i].b, pairs[i].dtype, pairs[i].terms) for i in order]
        for r, answers in enumerate(self.ranks.call(call_close_enough, dict(pairs=args), show=self.show)):
            for i, got in zip(order, answers, strict=True):
                pair = pairs[i]
                self.case = f"{pair.dtype}, {pair.terms} terms: {pair.name}" if self.show else f"{pair.dtype}, {pair.terms} terms"
                if not isinstance(got, bool):
                    self.fail(f"close_enough must return True or False; got {got!r}", "a missing return")
                if got != pair.close:
                    found = "takes rounding for a bug" if pair.close else "takes a bug for rounding"
                    self.fail(f"close_enough on rank {r} {found}", CLOSE_CAUSES.get(pair.name, CLOSE_CAUSE))
        return self

    def compare(self, *cases: Case) -> SilentBugCheck:
        """Check `compare_with_one_rank` with these cases, in random order."""
        for i in self.random.permutation(len(cases)):
            case, order = cases[i], self._order()
            self.case = case.about
            given: list = [None] * 4
            for place, r in enumerate(order):
                given[r] = dict(axes=case.axes, place=(0, place), step=case.step, results=case.results[place])
            for r, (got, kept) in enumerate(self.ranks.call(call_compare, given, show=self.show)):
                self._finding(got, case, r)
                if not kept:
                    self.fail(f"compare_with_one_rank has changed the batches on rank {r}")
        return self

    def _finding(self, got: object, case: Case, r: int) -> None:
        want, says = case.expected, f"compare_with_one_rank on rank {r}"
        if got is not None and (not isinstance(got, tuple) or len(got) != 4 or got[2] not in KINDS):
            self.fail(f"{says} must return None, or a Finding whose kind is one of {', '.join(KINDS)}; got {got!r}"[:400])
        if want is None:
            if got is not None:
                self.fail(f"{says} accuses a run that is right", "a bound below what rounding explains in this dtype")
            return
        told = f": {want}" if self.show else ""
        if got is None:
            self.fail(f"{says} finds nothing, but a gradient is wrong{told}", "a bound that depends on the size of the numbers")
        if got[0] != want.parameter:
            names = case.step["names"]
            later = got[0] in names and names.index(got[0]) > names.index(want.parameter)
            found = f" ({got[0]!r}, {'but an earlier one is wrong, too' if later else 'which is right'}: {want.parameter!r})"
            self.fail(f"{says} names the wrong parameter{found if self.show else ''}")
        for what, a, b in zip(("axis", "kind"), got[1:], want[1:], strict=False):
            if a != b:
                found = f" ({a!r}, not {b!r})" if self.show else ""
                self.fail(f"{says} names the wrong {what}{found}")
        if want.factor is None and got[3] is not None:
            self.fail(f"{says} gives a factor ({got[3]!r}) for kind {got[2]!r}", "a factor of another kind; here it is None")
        if want.factor is not None:
            number = isinstance(got[3], (int, float, np.number)) and not isinstance(got[3], bool)
            if not number or not abs(got[3] - want.factor) <= FACTOR_RTOL[case.step["dtype"]] * abs(want.factor):
                self.fail(f"{says} names the wrong factor" + (f": {got[3]!r}, not {want.factor:g}" if self.show else ""))

    def examples(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with each kind, with several faults in one step, and with right runs."""
        return self.compare(
            self._case(DP, "float64"),
            self._case(DP_TP, "float32"),
            self._case(DP, "float64", Fault(3, "factor", how=4.0), Fault(5, "other", how="noise")),
            self._case(TP_DP, "float64", Fault(4, "factor", "dp", how=0.5)),
            self._case(DP_TP, "float64", Fault(2, "missing sum", "tp")),
            self._case(DP_TP, "float64", Fault(0, "missing sum", "dp", how=True)),
            self._case(TP, "float64", Fault(3, "wrong shard", "tp")),
            self._case(DP, "float64", Fault(5, "stale")),
            self._case(DP, "float64", Fault(1, "some samples", how=LAST_ONLY)),
            self._case(TP_DP, "float64", Fault(2, "some samples", "tp", how=LAST_ONLY)),
            self._case(DP_TP, "float64", Fault(2, "other", how="noise")),
        )

    def kinds(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with each of the first five kinds, on each kind of grid, and with right runs between them."""
        last, size = [1] * (SAMPLES - 1), SAMPLES
        dropped = self.random.permutation([0, *last]).tolist()
        return self.compare(
            self._case(DP_TP, "float64"),
            self._case(TP, "float64", odd=True),
            self._case(DP, "float32", odd=True),
            self._case(DP, "float64", Fault(1, "factor", how=4.0), Fault(3, "other", how="noise")),
            self._case(DP_TP, "float64", Fault(5, "factor", how=-1.0)),
            self._case(TP_DP, "float32", Fault(4, "factor", "dp", how=0.5)),
            self._case(CP_TP, "float64", Fault(3, "factor", "tp", how=1.25)),
            self._case(DP_TP, "float64", Fault(3, "factor", how=0.0)),
            self._case(DP, "float64", Fault(2, "missing sum", "dp", how=True)),
            self._case(DP_TP, "float32", Fault(4, "missing sum", "dp")),
            self._case(DP_CP, "float64", Fault(4, "missing sum", "cp"), Fault(5, "factor", how=100.0)),
            self._case(CP_TP, "float64", Fault(1, "missing sum", "cp", how=True)),
            self._case(WITH_ONE, "float32", Fault(1, "missing sum", "dp", how=True), Fault(2, "stale")),
            self._case(EP_DP, "float64", Fault(2, "missing sum", "ep")),
            self._case(TP, "float64", Fault(4, "missing sum", "tp")),
            self._case(TP, "float64", Fault(5, "wrong shard", "tp")),
            self._case(DP_TP, "float64", Fault(1, "wrong shard", "tp", how="swap"), Fault(2, "missing sum", "dp")),
            self._case(TP, "float32", Fault(3, "wrong shard", "tp", how="swap")),
            self._case(DP, "float64", Fault(1, "stale")),
            self._case(CP_TP, "float64", Fault(5, "stale", "tp")),
            self._case(DP_TP, "float64", Fault(2, "stale", "dp"), Fault(4, "factor", how=2.0)),
            self._case(DP, "float64", Fault(5, "some samples", how=LAST_ONLY)),
            self._case(DP_TP, "float64", Fault(3, "some samples", how=dropped)),
            self._case(TP_DP, "float64", Fault(1, "some samples", "tp", how=[2, *last[:-1], 0])),
            self._case(DP_CP, "float32", Fault(4, "some samples", how=[size / 4] * 4 + [0] * 4)),
            self._case(DP, "float64", Fault(0, "factor", how=0.5), Fault(4, "stale")),
            self._case(DP_TP, "float64", Fault(0, "missing sum", "dp", how=True)),
        )

    def others(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with kinds that no notebook shows, and with right runs between them."""
        grids, found = [DP, DP_TP, TP, CP_TP], []
        for i, how in enumerate(self.random.permutation(list(DISTORTIONS)).tolist()):
            found.append(self._case(grids[i % 4], "float32" if how == "16 bits" else "float64", Fault(1 + i % 5, "other", how=how)))
        return self.compare(
            *found,
            *(self._case(grid, "float32", odd=True) for grid in grids),
            self._case(DP, "float64"),
            self._case(DP_TP, "float64", Fault(2, "other", how="another parameter's")),
            self._case(DP, "float64", Fault(4, "other", how="the largest")),
            self._case(DP_TP, "float64", Fault(3, "other", how="transposed")),
            self._case(DP_TP, "float64", Fault(4, "other", "one rank", how="not a number")),
            self._case(TP_DP, "float64", Fault(2, "other", "dp", how="signs")),
            self._case(DP, "float64", Fault(2, "other", "dp", how="half zero")),
        )

    def roundings(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with right runs whose sums are rounded in other ways, and with wrong ones in few bits."""
        grids, low = [DP, DP_TP, TP_DP, TP, CP_TP, DP_CP], "bfloat16"
        return self.compare(
            *(self._case(grid, dtype, odd=True) for grid in grids for dtype in (low, "float32")),
            self._case(DP, low, Fault(2, "factor", how=2.0)),
            self._case(DP, low, Fault(3, "missing sum", "dp", how=True)),
            self._case(TP, low, Fault(5, "wrong shard", "tp")),
            self._case(DP_TP, low, Fault(4, "stale")),
            self._case(DP, low, Fault(1, "some samples", how=LAST_ONLY)),
            self._case(DP_TP, low, Fault(2, "other", how="noise")),
            self._case(DP, "float32", Fault(4, "factor", how=1.001)),
            self._case(DP, "float64", Fault(3, "factor", how=1 + 1e-7)),
        )

    def _case(self, axes: dict[str, int], dtype: str, *faults: Fault, odd: bool = False) -> Case:
        self._drawn += 1
        return draw(self.random, axes, dtype, *faults, odd=odd, exponent=EXPONENTS[self._drawn % len(EXPONENTS)])


def _identical(a: np.ndarray, b: np.ndarray) -> bool:
    """The same shape, dtype and bits."""
    return isinstance(a, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()

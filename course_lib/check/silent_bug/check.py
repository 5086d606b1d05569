"""Check of part 33's comparisons: faults of many kinds, and right runs that only look odd."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.groups import GroupCheck
from course_lib.check.silent_bug import contract
from course_lib.check.silent_bug.close_pairs import draw_pairs
from course_lib.check.silent_bug.faults import DISTORTIONS, SAMPLES, Case, Fault, draw
from course_lib.check.silent_bug.grids import (
    CP_TP,
    DP,
    DP_CP,
    DP_TP,
    EP_DP,
    THREE,
    TP,
    TP_DP,
    WITH_ONE,
)
from course_lib.check.silent_bug.on_ranks import call_close_enough, call_compare
from course_lib.gpt.silent_bugs import KINDS

FACTOR_RTOL = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.06}
EXPONENTS = (
    -11,
    0,
    -4,
    3,
)  # powers of ten, of the size of a step's numbers, which the cases take in turn

# Usual causes, by case; the other cases have the common one.
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
IN_PLACE = "an operation in place, such as -= or out=; work on a copy"


class SilentBugCheck(GroupCheck):
    """A `Check` of part 33's instruments, on grids of the four ranks."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self._drawn = 0

    def close(self) -> SilentBugCheck:
        """Check `close_enough` with pairs that rounding explains, and others; on each rank in another order."""
        pairs = draw_pairs(self.random)
        orders = [self.random.permutation(len(pairs)) for _ in range(4)]
        sent = []
        for i, pair in enumerate(pairs):
            layouts = LAYOUTS[i % len(LAYOUTS)], LAYOUTS[(i + 1) % len(LAYOUTS)]
            sent.append((pair.a, pair.b, pair.dtype, pair.terms, layouts))
        arguments = [dict(pairs=[sent[i] for i in order]) for order in orders]
        answers = self.call(call_close_enough, arguments, show=self.show)
        for r, order in enumerate(orders):
            for i, (answer, after) in zip(order, answers[r], strict=True):
                pair = pairs[i]
                self.case = f"{pair.dtype}, {pair.terms} terms"
                if self.show:
                    self.case += f": {pair.name}"
                if not isinstance(answer, bool):
                    self.fail(
                        f"close_enough must return True or False; got {answer!r}",
                        "a missing return",
                    )
                if answer != pair.close:
                    verdict = "takes rounding for a bug" if pair.close else "takes a bug for rounding"
                    limit = contract.ROUNDING if "factor" in pair.name else None
                    self.fail(
                        f"close_enough on rank {r} {verdict}",
                        CLOSE_CAUSES.get(pair.name, CLOSE_CAUSE),
                        limit=limit,
                    )
                for array, before in zip(after, (pair.a, pair.b), strict=True):
                    self.array(
                        array,
                        np.asarray(before),
                        name="an array after close_enough",
                        rank=r,
                        cause=IN_PLACE,
                    )
        self.covers("dtypes", "special values", "layouts", "sizes", "repetition", "arguments")
        return self

    def compare(self, *cases: Case, beside: Case | None = None) -> SilentBugCheck:
        """Check `compare_with_one_rank` with these cases, those of a grid in turn, in random order.

        Ranks outside a grid judge the case `beside` at the same time, each by itself.
        """
        by_grid: dict[tuple, list[Case]] = {}
        for i in self.random.permutation(len(cases)):
            by_grid.setdefault(tuple(cases[i].axes.items()), []).append(cases[i])
        for some in by_grid.values():
            self._compare(some, beside)
        self.covers(
            "dtypes",
            "special values",
            "sizes",
            "group order",
            "repetition",
            "same ranks twice",
            "arguments",
        )
        return self

    def _compare(self, cases: list[Case], beside: Case | None) -> None:
        """Check `compare_with_one_rank` with these cases of one grid."""
        (order,) = self.groups(4)  # the rank at each place of the grid, and after it those outside
        size = len(cases[0].results)
        arguments: list = [None] * 4
        for place, r in enumerate(order):
            inside = place < size
            own_cases, own_place = (cases, place) if inside else ([beside], 0)
            calls = [(case.step, case.results[own_place]) for case in own_cases]
            color, axes = 0 if inside else place, own_cases[0].axes
            arguments[r] = dict(place=(color, place), axes=axes, calls=calls)
        self.case = cases[0].about
        answers = self.call(call_compare, arguments, show=self.show)
        for place, r in enumerate(order):
            own_cases = cases if place < size else [beside]
            for case, (finding, batches) in zip(own_cases, answers[r], strict=True):
                self.case = case.about
                self._finding(finding, case, r)
                if len(batches) != 2:
                    self.fail(
                        f"compare_with_one_rank on rank {r} has changed the list of batches",
                        "pop or append",
                    )
                for after, before in zip(batches, case.step["batches"], strict=True):
                    self.array(
                        after,
                        before,
                        name="a batch after compare_with_one_rank",
                        rank=r,
                        cause=IN_PLACE,
                    )
        if size < 4:
            self.covers("group sizes")

    def _finding(self, got: object, case: Case, r: int) -> None:
        want, says = case.expected, f"compare_with_one_rank on rank {r}"
        if got is not None and (not isinstance(got, tuple) or len(got) != 4 or got[2] not in KINDS):
            self.fail(f"{says} must return None, or a Finding whose kind is one of {', '.join(KINDS)}; got {got!r}"[:400])
        if want is None:
            if got is not None:
                self.fail(
                    f"{says} accuses a run that is right",
                    "a bound below what rounding explains in this dtype",
                )
            return
        told = f": {want}" if self.show else ""
        if got is None:
            self.fail(
                f"{says} finds nothing, but a gradient is wrong{told}",
                "a bound that depends on the size of the numbers",
            )
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
            self.fail(
                f"{says} gives a factor ({got[3]!r}) for kind {got[2]!r}",
                "a factor of another kind; here it is None",
            )
        if want.factor is not None:
            number = isinstance(got[3], (int, float, np.number)) and not isinstance(got[3], bool)
            if not number or not abs(got[3] - want.factor) <= FACTOR_RTOL[case.step["dtype"]] * abs(want.factor):
                self.fail(f"{says} names the wrong factor" + (f": {got[3]!r}, not {want.factor:g}" if self.show else ""))

    def examples(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with each kind, several faults in a step, and right runs."""
        return self.compare(
            self._case(DP, "float64"),
            self._case(DP_TP, "float32"),
            self._case(TP, "float64", zeros=True),
            self._case(DP, "float64", Fault(3, "factor", how=4.0), Fault(5, "other", how="noise")),
            self._case(TP_DP, "float64", Fault(4, "factor", "dp", how=0.5)),
            self._case(DP, "float64", Fault(2, "factor", "dp", how=2.0, some=2)),
            self._case(DP, "float64", Fault(0, "stale")),
            self._case(DP_TP, "float64", Fault(2, "missing sum", "tp")),
            self._case(DP_TP, "float64", Fault(0, "missing sum", "dp", how=True)),
            self._case(TP, "float64", Fault(3, "wrong shard", "tp")),
            self._case(DP, "float64", Fault(5, "stale")),
            self._case(DP, "float64", Fault(1, "some samples", how="the last ones")),
            self._case(TP_DP, "float64", Fault(2, "some samples", "tp", how="the last ones")),
            self._case(TP, "float64", Fault(3, "some samples", how="a factor by rank")),
            self._case(DP_TP, "float64", Fault(2, "other", how="noise")),
            self._case(DP_TP, "float64", Fault(3, "other", how="noise", some=(0, 3))),
        ).threes()

    def threes(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` on three ranks, and on the one that is left."""
        return self.compare(
            self._case(THREE, "float64"),
            self._case(THREE, "float64", Fault(1, "missing sum", "dp")),
            self._case(THREE, "float64", Fault(3, "factor", "dp", how=3.0)),
            beside=self._case(dict(dp=1), "float64", Fault(2, "some samples", how="all but one")),
        )

    def kinds(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with the first five kinds on each kind of grid, and right runs."""
        return self.compare(
            self._case(DP_TP, "float64"),
            self._case(TP, "float64", odd=True),
            self._case(DP, "float32", odd=True),
            self._case(DP, "float64", Fault(1, "factor", how=4.0), Fault(3, "other", how="noise")),
            self._case(TP_DP, "float32", Fault(4, "factor", "dp", how=0.5)),
            self._case(CP_TP, "float64", Fault(3, "factor", "tp", how=1.25)),
            self._case(DP_TP, "float64", Fault(3, "factor", how=0.0)),
            self._case(DP, "float64", Fault(2, "factor", "dp", how=2.0, some=2)),
            self._case(DP_CP, "float64", Fault(4, "factor", how=-3.0, some=(0, 3))),
            self._case(DP, "float64", Fault(2, "missing sum", "dp", how=True)),
            self._case(DP_TP, "float32", Fault(4, "missing sum", "dp")),
            self._case(CP_TP, "float64", Fault(1, "missing sum", "cp", how=True)),
            self._case(WITH_ONE, "float32", Fault(1, "missing sum", "dp", how=True), Fault(2, "stale")),
            self._case(EP_DP, "float64", Fault(2, "missing sum", "ep")),
            self._case(DP, "float64", Fault(5, "missing sum", "dp", how="a factor by rank")),
            self._case(TP, "float64", Fault(5, "wrong shard", "tp")),
            self._case(TP, "float64", Fault(1, "wrong shard", "tp", how="the first")),
            self._case(
                DP_TP,
                "float64",
                Fault(1, "wrong shard", "tp", how="swap"),
                Fault(2, "missing sum", "dp"),
            ),
            self._case(DP_TP, "float64", Fault(3, "wrong shard", "tp", how="in one group")),
            self._case(DP, "float64", Fault(1, "stale")),
            self._case(CP_TP, "float64", Fault(5, "stale", "tp")),
            self._case(DP, "float64", Fault(4, "stale", "dp", some=2)),
            self._case(DP, "float64", Fault(5, "some samples", how="the last ones")),
            self._case(TP_DP, "float64", Fault(1, "some samples", "tp", how="one twice")),
            self._case(DP_CP, "float32", Fault(4, "some samples", how="the first half")),
            self._case(DP_CP, "float64", Fault(1, "some samples", how="each rank's own")),
            self._case(TP, "float64", Fault(3, "some samples", how="a factor by rank")),
            self._case(DP_TP, "float64", Fault(4, "some samples", how="a factor by rank")),
            self._case(DP, "float64", Fault(0, "factor", how=0.5), Fault(4, "stale")),
            self._case(DP_TP, "float64", Fault(0, "missing sum", "dp", how=True)),
            self._case(DP_TP, "float64", Fault(0, "stale")),
        ).threes()

    def others(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with faults that no notebook shows, and with right runs."""
        grids, cases = [DP, DP_TP, TP, CP_TP], []
        for i, how in enumerate(self.random.permutation(list(DISTORTIONS)).tolist()):
            cases.append(
                self._case(
                    grids[i % 4],
                    "float32" if how == "16 bits" else "float64",
                    Fault(1 + i % 5, "other", how=how),
                )
            )
        return self.compare(
            *cases,
            *(self._case(grid, "float32", odd=True) for grid in grids),
            self._case(DP_CP, "float64", zeros=True),
            self._case(DP, "float64", Fault(0, "other", how="not a number")),
            self._case(DP_TP, "float64", Fault(2, "other", how="another parameter's")),
            self._case(DP, "float64", Fault(4, "other", how="the largest")),
            self._case(DP_TP, "float64", Fault(3, "other", how="transposed")),
            self._case(DP, "float64", Fault(3, "other", how="doubled, then stale")),
            self._case(DP, "float64", Fault(1, "other", how="stale, then doubled")),
            self._case(TP, "float64", Fault(3, "other", how="another shard, then doubled")),
            self._case(DP_TP, "float64", Fault(4, "other", how="not a number", some=(2,))),
            self._case(DP, "float64", Fault(3, "other", "dp", how="signs", some=3)),
            self._case(DP, "float64", Fault(4, "other", how="not zero"), zeros=True),
        )

    def roundings(self) -> SilentBugCheck:
        """Check `compare_with_one_rank` with right runs rounded in other ways, and faults in few bits."""
        low = "bfloat16"
        return self.compare(
            *(self._case(grid, low, odd=True) for grid in (DP, DP_TP, TP, CP_TP)),
            self._case(DP, low, Fault(2, "factor", how=2.0)),
            self._case(DP, low, Fault(3, "missing sum", "dp", how=True)),
            self._case(TP, low, Fault(5, "wrong shard", "tp")),
            self._case(DP_TP, low, Fault(4, "stale")),
            self._case(DP, low, Fault(1, "some samples", how="the last ones")),
            self._case(DP_TP, low, Fault(2, "other", how="noise")),
            self._case(DP, "float32", Fault(4, "factor", how=1.001)),
            self._case(DP, "float64", Fault(3, "factor", how=1 + 1e-7)),
        )

    def _case(
        self,
        axes: dict[str, int],
        dtype: str,
        *faults: Fault,
        odd: bool = False,
        zeros: bool = False,
    ) -> Case:
        self._drawn += 1
        exponent = EXPONENTS[self._drawn % len(EXPONENTS)]
        samples = SAMPLES[self._drawn % len(SAMPLES)] if dtype != "bfloat16" else SAMPLES[0]
        return draw(
            self.random,
            axes,
            dtype,
            *faults,
            odd=odd,
            exponent=exponent,
            samples=samples,
            zeros=zeros,
        )

"""Check of part 30's `choose`: the faster of two all-reduces, by the model of latency and bandwidth."""

from __future__ import annotations

import math

from course_lib.check.collectives.on_ranks import choose_often
from course_lib.check.groups import GroupCheck
from course_lib.utils import wording

ALGORITHMS = ("recursive doubling", "ring")  # what `choose` returns; indexed by whether the ring is faster
SIZES = (2, 4, 8, 16, 64, 1024)  # numbers of ranks
FACTORS = (0.02, 0.5, 0.97, 1.03, 2, 50)  # of the bytes for which both take equally long


class ChoiceCheck(GroupCheck):
    """A `Check` of `choose`."""

    def everything(self) -> ChoiceCheck:
        """Check the choice on either side of where both algorithms take equally long, and far from it."""
        for n in SIZES:
            alpha, beta = 10 ** self.random.uniform(-6, -4), 10 ** self.random.uniform(8, 11)
            equal = equal_bytes(n, alpha, beta)
            sizes = [0, 1 << 40]
            if math.isfinite(equal):
                sizes += [int(factor * equal) for factor in FACTORS]
            cases = [(nbytes, n, alpha, beta) for nbytes in sizes]
            self.case, wants = f"{n} ranks", [ALGORITHMS[nbytes > equal] for nbytes in sizes]
            for r, answers in enumerate(self.call(choose_often, dict(cases=cases), show=self.show)):
                self._compare(answers, wants, cases, r)
        self.covers("sizes", "group sizes", "many ranks", "repetition")
        return self

    def _compare(self, answers: list, wants: list[str], cases: list[tuple], r: int) -> None:
        """Compare what rank r answers with what it should answer in these cases."""
        strange = [answer for answer in answers if not isinstance(answer, str) or answer not in ALGORITHMS]
        if strange:
            cause = "a missing return" if strange[0] is None else ""
            got = wording.shown(strange[0])
            self.fail(f"choose on rank {r} must return 'ring' or 'recursive doubling'; got {got}", cause)
        cause = "one half of the ring forgotten, whole arrays in its steps, or beta taken for the time of a byte"
        if not any(answer == want for answer, want in zip(answers, wants, strict=True)):
            cause = "the two algorithms swapped"
        for (nbytes, n, alpha, beta), answer, want in zip(cases, answers, wants, strict=True):
            if answer != want:
                said = "the slower one"
                if self.show:
                    self.case = f"{nbytes:,} bytes on {n} ranks, alpha {alpha:.3g} s, beta {beta:.3g} bytes per second"
                    said = f"{answer!r}, expected {want!r}"
                self.fail(f"choose on rank {r} says {said}", cause)


def equal_bytes(n: int, alpha: float, beta: float) -> float:
    """Return the bytes for which ring and recursive doubling take equally long on n ranks, a power of two.

    Infinite if the ring is never faster. The model is that of Thakur, Rabenseifner and Gropp, 2005, "Optimization of collective
    communication operations in MPICH", without the time of the additions.

    Examples
    --------
    >>> round(equal_bytes(4, 1e-5, 1e9) / (1e-5 * 1e9), 9)
    8.0
    >>> equal_bytes(2, 1e-5, 1e9)
    inf
    """
    more_steps, fewer_arrays = 2 * (n - 1) - math.log2(n), math.log2(n) - 2 * (n - 1) / n
    return alpha * beta * more_steps / fewer_arrays if fewer_arrays > 0 else math.inf

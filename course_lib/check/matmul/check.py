"""Check of a matrix product whose work is split over four ranks (part 11): the product, and what each rank sent for it."""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.cases.repetition import Call, in_turn
from course_lib.check.cases.values import same_values
from course_lib.check.groups import GroupCheck
from course_lib.check.matmul import contract

ALONE = "rank 0 does all the work"
SPECIAL = "NaN and infinities that are turned into numbers, or a part of zeros that is left out: 0 times infinity is NaN"


class MatmulCheck(GroupCheck):
    """A `Check` of a function that multiplies A by B, both of which are on rank 0 at the start."""

    def __init__(self, function: str, ranks, *, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.function, self.by_row = function, function == "par_matmul_by_row"

    def drawn(self, count: int = 4) -> MatmulCheck:
        """Check products of drawn sizes, and look at what was sent."""
        for _ in range(count):
            m, k, n = self.sizes(3, 20, 90)
            self.product(*((4 * m, k, n) if self.by_row else (m, 4 * k, n)), look=True)
        return self

    def product(self, m: int, k: int, n: int, look: bool = False) -> MatmulCheck:
        """Check a product of matrices of shapes (m, k) and (k, n).

        Parameters
        ----------
        look : bool
            Whether to look at the arrays that were sent, and not only at their sizes.
        """
        self.case = f"A {m} x {k}, B {k} x {n}"
        A, B = self.random.standard_normal((m, k)), self.random.standard_normal((k, n))
        given = [dict(A=A, B=B)] + [dict(A=None, B=None)] * 3
        answers, moved = self.ranks.call(self.function, given, show=self.show, keep=look), self.ranks.traffic
        for r in range(4):
            self._result(answers[r], A, B, r)
            self._bytes(moved[r], m, k, n, r)
            if look:
                self._sent_arrays(A, B, r)
        return self

    def in_turn(self, m: int, k: int, n: int) -> MatmulCheck:
        """Check products of the same sizes in turn, in each layout that can be sent.

        Each product is an array of its own, and A and B are as before. In one of them, A has a NaN
        and B an infinity; in another, a rank's part of A is zero, and B has an infinity that meets
        it; in the last, it is the other way round.
        """
        pairs = [(self.random.standard_normal((m, k)), self.random.standard_normal((k, n))) for _ in CONTIGUOUS]
        (A, B), zero_A, zero_B = pairs
        A[self.random.integers(m), self.random.integers(k)] = np.nan
        B[self.random.integers(k), self.random.integers(n)] = np.inf
        if min(m, k, n) > 1:  # np.dot leaves out a single number that is 0
            self._zero_part(*zero_A, in_A=True)
            self._zero_part(*zero_B, in_A=False)
        layouts = self.random.permutation(CONTIGUOUS).tolist()
        calls = [Call([list(pair)] + [[None, None]] * 3, layout=layout) for pair, layout in zip(pairs, layouts, strict=True)]
        self.case = f"products in turn, A {m} x {k}, B {k} x {n}"
        found = in_turn(self, self.function, calls)
        for (A, B), layout, answers in zip(pairs, layouts, found, strict=True):
            self.case = f"products in turn, A {m} x {k}, B {k} x {n}, {layout}"
            for r, answer in enumerate(answers):
                self._result(answer, A, B, r)
        for r, moved in enumerate(self.ranks.traffic):
            self._bytes(moved, m, k, n, r, len(calls))
            self.requests_completed(self.ranks.unended[r], r)
        self.covers("layouts", "sizes", "special values")
        return self

    def _zero_part(self, A: np.ndarray, B: np.ndarray, *, in_A: bool) -> None:
        """Make a rank's part of A or of B zero, and place an infinity in the other matrix where it meets these zeros."""
        (m, k), n, r = A.shape, B.shape[1], int(self.random.integers(4))
        rows, inner = np.arange(m), np.arange(k)  # those of the rank
        if self.by_row:
            rows = np.split(rows, 4)[r]
        else:
            inner = np.split(inner, 4)[r]
        if in_A:
            A[np.ix_(rows, inner)] = 0
            B[self.random.choice(inner), self.random.integers(n)] = np.inf
        else:
            B[inner] = 0
            A[self.random.choice(rows), self.random.choice(inner)] = np.inf

    def _result(self, answer: object, A: np.ndarray, B: np.ndarray, r: int) -> None:
        k = A.shape[1]
        largest = [float(np.abs(array[np.isfinite(array)]).max(initial=0)) for array in (A, B)]
        scale = largest[0] * largest[1] * k
        if self.by_row and r:
            if answer is not None:
                self.fail(f"the result on rank {r} must be None", "a Gather with another rank as root, or an Allgather")
            return
        own = slice(r * k // 4, (r + 1) * k // 4)
        known = None if self.by_row or k % 4 else {"this rank's own term of the sum": A[:, own] @ B[own]}
        cut = "a piece of the transposed A that was not transposed back before the product"
        cause = "parts in the wrong order" if self.by_row else f"columns of A that were not made contiguous before they were sent, or {cut}"
        with np.errstate(invalid="ignore"):
            product = A @ B
        usual = SPECIAL if _wrong_where_not_finite(answer, product) else cause
        self.array(answer, product, name="the product", rank=r, rtol=1e-13, scale=scale, cause=usual, instead=known, shape_cause=cause)

    def _bytes(self, moved: list[tuple], m: int, k: int, n: int, r: int, products: int = 1) -> None:
        if self.by_row:
            least = 0 if r == 0 else 8 * m * n / 4
            most = 8 * (k * n + m * k * 3 / 4) if r == 0 else 8 * (k * n * (r < 3) + m * n / 4)
        else:
            least = 8 * m * n
            most = 8 * (1.5 * m * n + (m * k + k * n) * 3 / 4 * (r == 0))
        cause = "whole matrices are sent where parts would do"
        limit = contract.BYTES[self.function]
        self.sent(moved, products * (most + limit.number), name=self.function, rank=r, cause=cause, limit=limit)
        if sum(payload for *_, payload in moved) < products * least:
            self.fail(f"rank {r} sent less than its part of the product", ALONE, limit=contract.WORK[self.function])

    def _sent_arrays(self, A: np.ndarray, B: np.ndarray, r: int) -> None:
        """Check that each rank did its part of the work, from the arrays that it sent."""
        (m, k), sent, want = A.shape, self.ranks.arrays[r], A @ B
        if r == 0:
            self.among(sent, A, 3 / 4, name="A", rank=0, cause=ALONE)
            self.among(sent, B, 1 if self.by_row else 3 / 4, name="B", rank=0, cause=ALONE)
        if self.by_row and r:
            self.among(sent, want[m * r // 4 : m * (r + 1) // 4], name="its part", rank=r, cause=ALONE)
        if not self.by_row:
            own = slice(r * k // 4, (r + 1) * k // 4)
            self.among(sent, A[:, own] @ B[own], name="the product of its columns and rows", rank=r, cause=ALONE)


def _wrong_where_not_finite(got: object, want: np.ndarray) -> bool:
    """Return whether an array is wrong where the right one has NaN or an infinity."""
    if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype != want.dtype:
        return False
    return not same_values(got, want)[~np.isfinite(want)].all()

"""Check of part 36's `owners`: the busiest rank's work next to the best there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.muon.on_ranks import call_owners

TIMES_BEST = 1.1  # the largest load that counts as balanced
SECONDS_ALLOWED = 8.0  # for the calls of one case
Shape = tuple[int, int]


@dataclass(frozen=True)
class OwnersCase:
    """Shapes to share among n ranks; `best` is the busiest rank's FLOP in the best choice that is known."""

    shapes: list[Shape]
    n: int
    best: float


def flop(shape: Shape, steps: int = 5) -> float:
    """FLOP of `newton_schulz`, for a matrix with s rows or columns, whichever is fewer, and l of the others.

    A step has two products of an s x s and an s x l matrix or of their transposes, and one of two s x s matrices.

    >>> flop((10, 100), steps=1)
    42000
    """
    s, long = sorted(int(x) for x in shape)
    return steps * (4 * s * s * long + 2 * s**3)


def loads(shapes: list[Shape], owner: list[int], n: int) -> list[float]:
    """FLOP of each of n ranks.

    >>> loads([(10, 100), (10, 100), (1, 1)], [0, 0, 1], 2)
    [420000.0, 30.0]
    """
    found = [0.0] * n
    for shape, rank in zip(shapes, owner, strict=True):
        found[rank] += flop(shape)
    return found


def busiest(shapes: list[Shape], owner: list[int], n: int) -> float:
    """FLOP of the rank that has the most to do."""
    return max(loads(shapes, owner, n))


def best_load(shapes: list[Shape], n: int) -> float:
    """FLOP of the busiest rank in the best choice; tries every choice, which is too slow for more than about ten matrices.

    >>> best_load([(1, 3), (1, 3), (1, 2), (1, 2), (1, 2)], 2)  # 70, 70, 50, 50 and 50
    150.0
    """
    found = {(0.0,) * n}
    for shape in shapes:
        work = flop(shape)
        found = {tuple(sorted((*loads[:r], loads[r] + work, *loads[r + 1 :]))) for loads in found for r in range(n)}
    return min(loads[-1] for loads in found)


def draw_small(random: np.random.Generator, n: int) -> OwnersCase:
    """Draw the matrices of two blocks of some width, and a long thin one with as many elements as the largest."""
    width = int(random.integers(30, 200))
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * 2 + [(4, width * width)]
    shapes = [shapes[i] for i in random.permutation(len(shapes))]
    return OwnersCase(shapes, n, best_load(shapes, n))


class OwnersCheck(GroupCheck):
    """A `Check` of `owners`.

    Parameters
    ----------
    draw : callable
        Draws a case, given a random generator and a number of ranks, as `draw_small` does.
    """

    def __init__(self, what: str, ranks, draw: Callable[[np.random.Generator, int], OwnersCase] = draw_small, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self.draw = draw

    def balanced(self, *sizes: int) -> OwnersCheck:
        """Check drawn cases for these numbers of ranks."""
        for n in sizes:
            self._run(self.draw(self.random, n))
        return self

    def few(self) -> OwnersCheck:
        """Check fewer matrices than ranks, one rank alone, and no matrices."""
        shapes = [(10, 10), (30, 40), (40, 30), (8, 90), (20, 25)]
        for n, many in ((8, 5), (3, 3), (4, 1), (1, 5), (2, 0)):
            some = [shapes[i] for i in self.random.permutation(5)[:many]]
            best = sum(map(flop, some)) if n == 1 else max(map(flop, some), default=0.0)
            self._run(OwnersCase(some, n, best))
        return self

    def _run(self, case: OwnersCase) -> None:
        self.case = f"{len(case.shapes)} matrices on {case.n} rank{'s' * (case.n != 1)}" + f": {case.shapes}" * self.show
        answers = self.ranks.call(call_owners, dict(cases=[(case.shapes, case.n)] * 2), limit=SECONDS_ALLOWED, show=self.show)
        first = None
        for r, answer in enumerate(answers):
            self.sent(self.ranks.traffic[r], 0, name="owners", rank=r, cause="a question to another rank, which is not needed")
            for owner in answer:
                self._require_owners(owner, case, r)
                first = first or (list(map(int, owner)),)
                if list(owner) != first[0]:
                    cause = "something random, or this rank's own number; all ranks must come to the same answer without asking each other"
                    self.fail(f"owners on rank {r} gives other ranks than on rank 0, or other ones when it is called again", cause)
        load = busiest(case.shapes, first[0], case.n)
        if load > TIMES_BEST * case.best:
            shown = f" ({load:,.0f} FLOP; {case.best:,.0f} are possible)" if self.show else ""
            cause = "matrices that are counted, or measured by their numbers of elements; or large ones that come last"
            self.fail(f"the busiest rank has {load / case.best:.2f} times as much to do as in the best choice{shown}", cause)

    def _require_owners(self, owner: object, case: OwnersCase, r: int) -> None:
        """Check that an answer is a list with a rank for each matrix."""
        if not isinstance(owner, (list, tuple)) or len(owner) != len(case.shapes):
            what = f"{len(owner)} values" if isinstance(owner, (list, tuple)) else type(owner).__name__
            self.fail(f"owners on rank {r} must return a list of {len(case.shapes)} ranks, one for each matrix; got {what}")
        for rank in owner:
            if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < case.n:
                self.fail(f"owners on rank {r} names {rank!r}, but the ranks are 0 to {case.n - 1}")

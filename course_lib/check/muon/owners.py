"""Check of part 36's `owners`: the busiest rank's work next to the best there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from course_lib.check.groups import GroupCheck
from course_lib.check.muon import contract
from course_lib.check.muon.on_ranks import call_owners

TIMES_BEST = 1 + contract.BALANCE.number / 100  # the largest load that counts as balanced
CALLS = 2  # of each case
EXPLANATIONS = {
    "TimeLimit": (
        f"owners takes more than {contract.SECONDS.number} seconds",
        "a loop over all choices, of which there are n to the power of the number of matrices",
    )
}
Shape = tuple[int, int]


@dataclass(frozen=True)
class OwnersCase:
    """Shapes to share among n ranks.

    Attributes
    ----------
    best : float
        The busiest rank's FLOP in the best choice that is known, or, within 1%, in the best possible one.
    """

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


def draw_blocks(random: np.random.Generator, n: int) -> OwnersCase:
    """Draw the matrices of blocks of three widths, long thin ones with as many elements as a larger one, and a large one late.

    The best choice gives each rank nearly the same, or the largest matrix to one rank that has nothing else.
    """
    width = int(random.integers(30, 120))
    shapes = [(4, width * width)] * 2
    for w in (*[width] * 2, *[width // 2] * 2, *[width // 3] * 2):
        shapes += [(w, 3 * w), (w, w), (w, 4 * w), (4 * w, w)]
    shapes = [shapes[i] for i in random.permutation(len(shapes))]
    shapes.insert(len(shapes) // 2 if n == 3 else len(shapes), (2 * width, 2 * width))
    return OwnersCase(shapes, n, max(sum(map(flop, shapes)) / n, *map(flop, shapes)))


class OwnersCheck(GroupCheck):
    """A `Check` of `owners`.

    Parameters
    ----------
    draw : callable
        Draws a case, given a random generator and a number of ranks, as `draw_blocks` does.
    """

    def __init__(self, what: str, ranks, draw: Callable[[np.random.Generator, int], OwnersCase] = draw_blocks, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self.draw = draw

    def balanced(self, *sizes: int) -> OwnersCheck:
        """Check drawn cases for these numbers of ranks."""
        for n in sizes:
            self._run(self.draw(self.random, n))
        self.covers("many ranks")
        return self

    def few(self) -> OwnersCheck:
        """Check fewer matrices than ranks, one rank alone, and no matrices."""
        shapes = [(10, 10), (30, 40), (40, 30), (8, 90), (20, 25)]
        for n, many in ((8, 5), (3, 3), (4, 1), (1, 5), (2, 0)):
            some = [shapes[i] for i in self.random.permutation(5)[:many]]
            best = sum(map(flop, some)) if n == 1 else max(map(flop, some), default=0.0)
            self._run(OwnersCase(some, n, best))
        self.covers("sizes", "group sizes")
        return self

    def _run(self, case: OwnersCase) -> None:
        self.case = f"{len(case.shapes)} matrices on {case.n} rank{'s' * (case.n != 1)}" + f": {case.shapes}" * self.show
        how = dict(explain=EXPLANATIONS, limit=CALLS * contract.SECONDS.number, show=self.show)
        answers = self.call(call_owners, dict(cases=[(case.shapes, case.n)] * CALLS), **how)
        first, group = None, list(range(4))
        for r, (answer, given) in enumerate(answers):
            cause, limit = "a question to another rank, or a barrier; neither is needed", contract.SILENT
            self.calls(self.ranks.traffic[r], 0, group=group, name="owners", rank=r, cause=cause, limit=limit)
            if any([tuple(shape) for shape in shapes] != case.shapes for shapes in given):
                self.fail(
                    f"the list of shapes is another one after owners on rank {r}", "shapes.sort() or .pop(); sorted() makes a new list"
                )
            for owner in answer:
                self._require_owners(owner, case, r)
                first = first or (list(map(int, owner)),)
                if list(owner) != first[0]:
                    cause = "something random, or this rank's own number; all ranks must come to the same answer without asking each other"
                    where = "than on rank 0, or " if r else ""
                    self.fail(f"owners on rank {r} gives other ranks {where}when it is called again", cause)
        load = busiest(case.shapes, first[0], case.n)
        if load > TIMES_BEST * case.best:
            shown = f" ({load:,.0f} FLOP; {case.best:,.0f} are possible)" if self.show else ""
            said = f"the busiest rank has {load / case.best:.2f} times as much to do as in the best choice{shown}"
            self.fail(said, self._cause(first[0], case), limit=contract.BALANCE)
        self.covers("repetition", "arguments")

    @staticmethod
    def _cause(owner: list[int], case: OwnersCase) -> str:
        """Tell from a choice what was balanced instead of FLOP."""
        by_work = sorted(case.shapes, key=flop, reverse=True)
        if any(busiest(order, owner, case.n) <= TIMES_BEST * case.best for order in (by_work, by_work[::-1])):
            return "ranks in the order in which matrices got their owners, not in the order of shapes"
        elements = np.bincount(owner, [rows * columns for rows, columns in case.shapes], case.n)
        if max(elements) <= TIMES_BEST * elements.mean():
            return "as many elements for each rank; flop(shape) tells the work"
        if max(many := np.bincount(owner, minlength=case.n)) - min(many) <= 1:
            return "matrices that are dealt out in turn or counted, or cheap ones that come first"
        return "expensive matrices that get their owners late, or anything else than flop(shape) that orders or measures them"

    def _require_owners(self, owner: object, case: OwnersCase, r: int) -> None:
        """Check that an answer is a list with a rank for each matrix."""
        if not isinstance(owner, (list, tuple)) or len(owner) != len(case.shapes):
            what = f"{len(owner)} values" if isinstance(owner, (list, tuple)) else type(owner).__name__
            self.fail(f"owners on rank {r} must return a list of {len(case.shapes)} ranks, one for each matrix; got {what}")
        for rank in owner:
            if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < case.n:
                self.fail(f"owners on rank {r} names {rank!r}, but the ranks are 0 to {case.n - 1}")

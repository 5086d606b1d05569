"""Several calls of a function on several communicators: its results, its arguments, and both once more later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from course_lib.check.cases.on_ranks import GROUP, call_in_turn
from course_lib.check.cases.values import same_values
from course_lib.check.groups import GroupCheck

SHARED = "a buffer that calls share, or a view of an argument: each call must return an array of its own"
KEPT = "a result or buffer that is kept for a communicator, or for the ranks in it"
IN_PLACE = "an operation in place, such as += or out=; work on a copy"


@dataclass
class Call:
    """One of several calls of a function.

    Parameters
    ----------
    arguments : list of list
        For each rank its arguments; `GROUP` stands for the communicator.
    group : int
        Which communicator.
    layout : str
        Of all arrays, see `layouts`.
    keywords : dict
        The same for all ranks.
    """

    arguments: list[list]
    group: int = 0
    layout: str = "C"
    keywords: dict = field(default_factory=dict)

    def on_rank(self, rank: int) -> dict:
        """Return what this rank is sent."""
        return {
            "arguments": self.arguments[rank],
            "keywords": self.keywords,
            "group": self.group,
            "layout": self.layout,
        }

    def arrays(self, rank: int) -> list[np.ndarray]:
        """Return the arrays that this rank passes."""
        values = (*self.arguments[rank], *self.keywords.values())
        return [value for value in values if isinstance(value, np.ndarray)]


def in_turn(
    check: GroupCheck,
    function: str,
    calls: list[Call],
    communicators: Sequence[list[list[int]]] = (),
    *,
    own_results: bool = True,
    **how: object,
) -> list[list]:
    """Make several calls of a function on the ranks, and check what does not depend on the function.

    Its arguments must be as before after each call, and its results the same after the last one,
    though the caller has overwritten its arrays by then.

    Parameters
    ----------
    check : GroupCheck
    function : str
        The exercise.
    calls : list of Call
    communicators : list of list of list of int
        For each communicator its groups of the four world ranks; two may have the same.
    own_results : bool
        Whether results must not share memory with arguments, as the docstring must say then.
    **how
        Passed on to `GroupCheck.call`.

    Returns
    -------
    list of list
        For each call the result of each rank.
    """
    places = [check.colors_and_keys(groups) for groups in communicators]
    each = [
        {
            "function": function,
            "calls": [call.on_rank(r) for call in calls],
            "groups": [group_places[r] for group_places in places],
            "reuse": own_results,
        }
        for r in range(len(calls[0].arguments))
    ]
    answers = check.call(call_in_turn, each, show=check.show, **how)
    case = check.case
    for r, made in enumerate(answers):
        for number, (call, (_, after, _)) in enumerate(zip(calls, made, strict=True), 1):
            for array, before in zip(after, call.arrays(r), strict=True):
                name = f"an argument of {function}, after call {number},"
                check.array(array, before, name=name, rank=r, cause=IN_PLACE, signed_zeros=True)
        for number, (result, _, later) in enumerate(made, 1):
            if not _same(result, later):
                after = "after a later call" if number < len(made) else "after the caller has reused its arrays"
                check.fail(f"the result of call {number} of {function} on rank {r} is another one {after}", SHARED)
    check.case = case
    check.covers("repetition", "arguments", "results")
    if len({str(sorted(map(sorted, groups))) for groups in communicators}) < len(communicators):
        check.covers("same ranks twice")
    return [[made[i][0] for made in answers] for i in range(len(calls))]


def _same(result: object, later: object) -> bool:
    """Compare a result with what it is later; anything but arrays and sequences counts as the same."""
    if isinstance(result, np.ndarray) and isinstance(later, np.ndarray):
        return result.shape == later.shape and bool(np.all(same_values(result, later)))
    if isinstance(result, (list, tuple)) and isinstance(later, (list, tuple)):
        return len(result) == len(later) and all(map(_same, result, later))
    return True


__all__ = ["GROUP", "KEPT", "Call", "in_turn"]

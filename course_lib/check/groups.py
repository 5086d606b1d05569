"""Groups of the four ranks, for checks of collective functions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from course_lib.check import Check, scratch
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

# Bytes that a rank may hold before it is measured: modules, and Python's bookkeeping for each request.
BASELINE_BYTES, BYTES_PER_REQUEST = 4 << 20, 2 << 10

# Orders of four ranks in which no rank keeps its number and the ring differs from the usual one, so that an answer that
# uses world ranks as group ranks is always found.
SHUFFLED_ORDERS = ((1, 0, 3, 2), (1, 3, 0, 2), (2, 0, 3, 1), (2, 3, 1, 0), (3, 2, 0, 1), (3, 2, 1, 0))
GATE_MESSAGE_BYTES = 8  # the number that a rank sends from a gate
Explanations: TypeAlias = dict[str, tuple[str, str]]  # see `GroupCheck.call`


class GroupCheck(Check):
    """A `Check` on groups of the four ranks.

    Attributes
    ----------
    baseline_bytes : int
        Bytes that a rank may hold before it is measured, besides some for each request.
    """

    baseline_bytes = BASELINE_BYTES

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks

    def call(self, function: Callable, arguments: list[dict] | dict, *, explain: Explanations | None = None, **how: object) -> list:
        """Call a function on the ranks (see `Ranks.call`).

        An error that contains a key of `explain` fails the check with that problem and its usual cause; any other error also says which
        case it came from.
        """
        try:
            return self.ranks.call(function, arguments, **how)
        except Exception as error:
            short = getattr(error, "short", "").strip()  # of a RanksError
            for name, (problem, cause) in (explain or {}).items():
                if name in short:
                    # A number is that of a closed gate, which says nothing to a student.
                    self.fail(problem if name.replace(",", "").isdigit() else f"{problem} ({short})", cause)
            if self.case:
                error.add_note(f"This was the case: {self.case}.")
            raise

    def baseline_memory(self, what: str) -> list[int]:
        """Bytes each rank holds before `what` exists; CheckFailed if it is so much that freeing it would distort the measurement."""
        most = self.baseline_limit()
        baseline = scratch.held_without_scratch(self.ranks, most)
        for r, held in enumerate(baseline if ISOLATION_VARIABLE in os.environ else []):
            if held > most:
                problem = f"before {what} exists, rank {r} holds {wording.size(held)}, but this check allows {wording.size(most)}"
                self.fail(problem, scratch.CAUSE)
        return baseline

    def baseline_limit(self) -> int:
        """Bytes that a rank may hold before it is measured."""
        return self.baseline_bytes + BYTES_PER_REQUEST * self.ranks.rounds

    def groups(self, size: int) -> list[list[int]]:
        """Draw groups of `size` of the four ranks, in any order; the remaining ranks form a smaller group.

        Visible checks keep all four ranks in the usual order, so that a rank has the same number everywhere.
        """
        order = self.random.permutation(4).tolist()
        if size > 2:
            order = list(SHUFFLED_ORDERS[int(self.random.integers(len(SHUFFLED_ORDERS)))])
        if size == 4 and self.show:
            order = [0, 1, 2, 3]
        return [order[i : i + size] for i in range(0, 4, size)]

    def regrouped(self, groups: list[list[int]]) -> list[list[int]]:
        """Groups of the same sizes with other members, if possible, to detect an answer that keeps the group of an earlier call."""
        if self.show and len(groups) == 1:
            return groups
        first, *order = (r for group in groups for r in group)
        order.append(first)
        return [order[i : i + len(groups[0])] for i in range(0, 4, len(groups[0]))]

    @staticmethod
    def colors_and_keys(groups: list[list[int]]) -> list[tuple[int, int]]:
        """Color and key of each rank, for `Split`."""
        found = {r: (color, key) for color, group in enumerate(groups) for key, r in enumerate(group)}
        return [found[r] for r in range(4)]

    @staticmethod
    def describe_groups(groups: list[list[int]], dtype: type | str) -> str:
        """Describe the groups in words, for a message."""
        names = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        return f"the group{'s' * (len(groups) > 1)} {names}, {np.dtype(dtype)}"

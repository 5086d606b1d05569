"""Groups whose ranks are not in order: a check refers to places 0 to 3, and any rank may have any place.

In each order, no pair of places is a pair of the usual order, and one of them is in descending order: an answer that uses a world rank as a
group rank is wrong in each call with groups of two, and in each with a group of four.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

ORDERS = [
    order for order in permutations(range(4)) if set(order[:2]) not in ({0, 1}, {2, 3}) and (order[0] > order[1] or order[2] > order[3])
]


class ShuffledRanks:
    """Ranks in random order, for a check that is written for the usual one.

    Parameters
    ----------
    ranks : Ranks
    random : numpy.random.Generator
        Draws a new order for each call.
    keep_order : bool
        Whether to keep the usual order, so that a visible check names the ranks.

    Attributes
    ----------
    traffic, unended : list
        Those of `ranks`, by place.
    order : list of int
        The world rank at each place, in the last call.
    """

    def __init__(self, ranks, random: np.random.Generator, keep_order: bool):
        self.ranks, self._random, self._keep_order = ranks, random, keep_order
        self.traffic, self.unended, self.order = [], [], list(range(4))

    def call(self, function, arguments: list[dict], same_order: bool = False, **how: object) -> list:
        """Call a function as `Ranks.call` does, passing it `me`, its place, from which it makes its group.

        `same_order`: keep the places of the previous call, from which the ranks have kept something.
        """
        if not same_order and not self._keep_order:
            self.order = list(ORDERS[self._random.integers(len(ORDERS))])
        order = self.order
        given: list = [None] * 4
        for me, r in enumerate(order):
            given[r] = {**arguments[me], "me": me}
        answers = self.ranks.call(function, given, **how)
        self.traffic, self.unended = [self.ranks.traffic[r] for r in order], [self.ranks.unended[r] for r in order]
        return [answers[r] for r in order]

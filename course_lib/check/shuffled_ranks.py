"""Groups that are not those of consecutive ranks: a check speaks of places 0 to 3, and any rank may have any place.

An answer that takes its rank among all for that in its group is right only by luck then.
"""

from __future__ import annotations

import numpy as np


class ShuffledRanks:
    """Ranks in another order, for a check that is written for the usual one.

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
        As those of `ranks`, for the places.
    """

    def __init__(self, ranks, random: np.random.Generator, keep_order: bool):
        self.ranks, self._random, self._keep_order = ranks, random, keep_order
        self.traffic, self.unended, self._order = [], [], list(range(4))

    def call(self, function, arguments: list[dict], same_order: bool = False, **how: object) -> list:
        """As `Ranks.call`; the function is also given `me`, its place, by which it makes its group.

        `same_order`: the ranks have the places of the call before, from which they have kept something.
        """
        if not same_order and not self._keep_order:
            self._order = self._random.permutation(4).tolist()
        order = self._order
        given: list = [None] * 4
        for me, r in enumerate(order):
            given[r] = {**arguments[me], "me": me}
        answers = self.ranks.call(function, given, **how)
        self.traffic, self.unended = [self.ranks.traffic[r] for r in order], [self.ranks.unended[r] for r in order]
        return [answers[r] for r in order]

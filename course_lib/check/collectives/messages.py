"""The messages of part 30's collectives: how many, how large, to whom, and in which step."""

from __future__ import annotations

import math

import numpy as np

from course_lib.check.collectives import contract
from course_lib.check.collectives.reference import ROOTED, ROWS
from course_lib.check.groups import GroupCheck


class MessagesCheck(GroupCheck):
    """A `Check` of the messages of one of the student's collectives.

    Parameters
    ----------
    function : str
        Its name.
    ranks : Ranks
    show : bool
    """

    def __init__(self, function: str, ranks, *, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.function = function

    def messages(self, sent: list[list[tuple[int, int]]], group: list[int], x: np.ndarray, root: int) -> None:
        """Check what a group's ranks have sent.

        Parameters
        ----------
        sent : list of list of (int, int)
            For each rank of the group its messages in order: the world rank that each went to, and its bytes.
        group : list of int
            World ranks.
        x : numpy.ndarray
            The argument on any of them.
        root : int
            A rank of the group.
        """
        if self.function == ROOTED:
            self._tree(sent, group, x.nbytes, root)
            return
        n = len(group)
        steps = 2 * (n - 1) if self.function == "ring_all_reduce" else n - 1
        piece = -(-x.size // n) * x.itemsize  # also a row of an all-to-all
        if self.function == "ring_all_gather":
            piece = x.nbytes
        for i, r in enumerate(group):
            self._pieces(sent[i], steps, piece, r)
            if self.function != ROWS:
                self._neighbors([to for to, _ in sent[i]], group, i)
        if self.function == ROWS:
            self._meetings([[to for to, _ in mine] for mine in sent])

    def _fail(self, problem: str, cause: str) -> None:
        self.fail(problem, cause, limit=contract.STEPS[self.function])

    def _pieces(self, sent: list[tuple[int, int]], steps: int, piece: int, r: int) -> None:
        """Check the number of messages that a rank has sent, and the size of each."""
        if len(sent) > steps:
            cause = "a step too many, a message to itself, or pieces that are cut up further"
            self._fail(f"{self.function} on rank {r} sends {len(sent)} messages; {steps} are enough", cause)
        largest = max((nbytes for _, nbytes in sent), default=0)
        if largest > piece:
            cause = "whole arrays in the place of pieces, or a last piece that takes all that n does not divide"
            self._fail(f"{self.function} on rank {r} sends a message of {largest:,} bytes; {piece:,} are enough", cause)

    def _neighbors(self, receivers: list[int], group: list[int], i: int) -> None:
        """Check that a rank of a ring sends to its next rank only; all the way round the other way is as good."""
        following = group[(i + 1) % len(group)]
        ways = [{following}, {group[i - 1]}]
        if self.function == "ring_all_reduce":  # its two halves may go different ways
            ways = [ways[0] | ways[1]]
        if not any(set(receivers) <= way for way in ways):
            far = min(set(receivers) - {following})
            cause = "an exchange with every rank in turn; in a ring, a piece goes from neighbor to neighbor"
            only = f"and not only to the next one, rank {following}"
            self._fail(f"{self.function} on rank {group[i]} sends to rank {far}, {only}", cause)

    def _meetings(self, receivers: list[list[int]]) -> None:
        """Check that in no step two ranks of an all-to-all send to the same one."""
        for step, whom in enumerate(zip(*receivers, strict=False), 1):
            if len(set(whom)) < len(whom):
                twice = max(whom, key=whom.count)
                cause = "every rank begins with rank 0; in step s, take the rank s places on instead"
                self._fail(f"in step {step}, {whom.count(twice)} ranks send to rank {twice} at once", cause)

    def _tree(self, sent: list[list[tuple[int, int]]], group: list[int], nbytes: int, root: int) -> None:
        """Check the tree of a broadcast: each other rank gets the array once, after at most log2 n steps, rounded up."""
        n, steps = len(group), math.ceil(math.log2(len(group)))
        parents: dict[int, tuple[int, int]] = {}  # of each rank: the sender, and which of the sender's messages it was
        for r, mine in zip(group, sent, strict=True):
            for number, (to, size) in enumerate(mine, 1):
                if to in parents or to == group[root] or size != nbytes:
                    cause = "a send to a place beyond n - 1" if n & (n - 1) else "an array that is sent in pieces, or twice"
                    problem = f"rank {r} sends rank {to} {size:,} bytes that it has already, or not the whole array"
                    self._fail(f"{self.function}: {problem}", cause)
                parents[to] = r, number
        missed = set(group) - {*parents, group[root]}
        if nbytes and missed:
            cause = "a place that is nobody's child, as beyond four ranks"
            self._fail(f"{self.function}: nobody sends rank {min(missed)} the array", cause)
        for r in group:
            depth, rank = 0, r
            while rank in parents:
                rank, number = parents[rank]
                depth += number
            if depth > steps:
                cause = "one rank that sends to all, a chain, or a root that serves the rank without children first"
                problem = f"rank {r} has the array after {depth} steps; {steps} are enough for {n} ranks"
                self._fail(f"{self.function}: {problem}", cause)

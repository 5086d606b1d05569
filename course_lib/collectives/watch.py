"""How a rank that waits finds that it waits for nobody."""

from __future__ import annotations

import time

from course_lib.collectives import explain
from course_lib.collectives.board import Board

EACH = 2e-3  # seconds between two looks of 8 ranks; a look of n ranks at n rows, each at n words, costs the cores n³ times as much
RAREST = 0.1


class Watch:
    """One wait: what has been seen of the ranks, and since when it has been so.

    Parameters
    ----------
    board : Board
    """

    def __init__(self, board: Board):
        self.board, self._each = board, min(EACH * (board.size / 8) ** 2, RAREST)
        self._picture, self._since, self._next, self._heard = None, 0.0, 0.0, False

    def listen(self) -> None:
        """Before a look, which then has what was heard: whether all that is seen of other machines is news."""
        self._heard = self.board.heard_since(self._since)

    def nobody_comes(self) -> str:
        """What is said when this rank can never go on, and that has been so for a while: all who are stuck say the same."""
        moment = time.monotonic()
        if moment < self._next:
            return ""
        self._next = moment + self._each
        rows = self.board.snapshot()
        stuck = self.board.stuck(rows)
        picture = self.board.picture(rows, stuck) if any(r.rank == self.board.rank for r in stuck) else None
        if picture is None or picture != self._picture:
            self._picture, self._since = picture, time.monotonic()
        elif self._heard and moment - self._since > self.board.sure(rows, stuck):
            said = explain.deadlock(self.board)  # before others end, who have found the same
            self.board.give_up()
            return said
        return ""

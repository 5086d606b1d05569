"""How a rank that waits finds that it waits for nobody."""

from __future__ import annotations

import time
from collections.abc import Iterable

from course_lib.collectives import explain
from course_lib.collectives.board import COMPUTING, GIVES_UP, STANDS, SURE, WAITING, Board, Row, late_ranks

EACH = 2e-3  # seconds between two looks of 8 ranks; a look of n ranks at n rows, each at n words, costs the cores n³ times as much
RAREST = 0.1
LATE = 2.0  # as SURE, where a rank that is waited for is still on its way: it may be one more that waits


def picture_of(rows: list[Row], stuck: Iterable[Row]) -> list[tuple]:
    """What must stay as it is until it is said that these ranks are stuck; of those that go on, nothing."""
    those = {r.rank for r in stuck}  # one that gives up meanwhile changes nothing: it waited for the same
    return [(r.rank, r.state in STANDS or r.state, r.key) for r in rows if r.rank in those or r.state not in (COMPUTING, WAITING)]


def sure(rows: list[Row], stuck: Iterable[Row], seconds: float = SURE, apart: Iterable[int] = ()) -> float:
    """How long it must stay so: longer where one of those that are waited for is still on its way. Then all who are stuck say the same.

    Parameters
    ----------
    rows : list of Row
    stuck : iterable of Row
        Those that can never go on.
    seconds : float
        Where nobody is on the way.
    apart : iterable of int
        Those who gave up before: they may catch the error, and come.

    Returns
    -------
    float
        Seconds.
    """
    newest, wanted = max(r.round for r in rows), 0
    for row in stuck:
        wanted |= row.members
    calls = {row.key for row in stuck if row.key > 0}  # who has come to one of these is named with those who wait there
    late = late_ranks(rows)
    on = {r.rank for r in rows if r.state == COMPUTING or (r.state == GIVES_UP and r.rank in apart)}
    coming = [r for r in rows if r.rank in late or (r.round == newest and r.rank in on and r.key not in calls)]
    return LATE if any(wanted >> r.rank & 1 for r in coming) else seconds


class Watch:
    """One wait: what has been seen of the ranks, and since when it has been so.

    Parameters
    ----------
    board : Board
    """

    def __init__(self, board: Board):
        self.board, self._each = board, min(EACH * (board.size / 8) ** 2, RAREST)
        self._picture, self._since, self._next, self._heard = None, 0.0, 0.0, False
        self._apart: set[int] = set()

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
        picture = picture_of(rows, stuck) if any(r.rank == self.board.rank for r in stuck) else None
        if picture is None or picture != self._picture:
            self._picture, self._since, self._apart = picture, time.monotonic(), set()
        if moment - self._since < SURE / 2:  # who gives up so soon was not stuck together with this rank
            self._apart |= {r.rank for r in rows if r.state == GIVES_UP}
        elif self._heard and moment - self._since > sure(rows, stuck, apart=self._apart):
            said = explain.deadlock(self.board)  # before others end, who have found the same
            self.board.give_up()
            return said
        return ""

"""Decide which ranks can never go on, from a snapshot of what all ranks do.

A rank that waits in a collective can go on when every rank of the group has come to it or can still come; one that waits for a message,
when a rank that may send it can. What can still come: a rank that computes, one that has not begun the cell yet but was asked to run it,
and a waiting rank that can itself go on. The same decision serves ranks on one machine, ranks on several, and isolated ranks: where the
snapshot comes from is another matter.
"""

from __future__ import annotations

from course_lib.collectives.calls import RECV, SEND
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, IN_CALL, WAITING, RankView, Snapshot

CONFIRM_SECONDS = 0.25  # seconds for which a deadlock must be seen unchanged
CONFIRM_LATE_SECONDS = 2.0  # the same where a rank that is waited for is still on its way: it may be one more that waits


def rank_mask(ranks) -> int:
    """A bit mask of ranks, as a signed 64-bit word has it: ask it with ``mask >> rank & 1``.

    >>> rank_mask([0, 2]), rank_mask([63]) >> 63 & 1
    (5, 1)
    """
    bits = sum(1 << rank for rank in ranks)
    return bits if bits < 1 << 63 else bits - (1 << 64)


def find_deadlocked(snapshot: Snapshot) -> tuple[RankView, ...]:
    """The ranks that wait and can never go on, as this snapshot shows them.

    Parameters
    ----------
    snapshot : Snapshot

    Returns
    -------
    tuple of RankView
    """
    newest, late = snapshot.newest, snapshot.late()
    runnable = {
        v.rank
        for v in snapshot.ranks
        if v.rank in late or (v.round == newest and v.state == COMPUTING) or (v.state == WAITING and v.released)
    }
    waiting = [v for v in snapshot.ranks if v.round == newest and v.state == WAITING]
    grew = True
    while grew:
        grew = False
        for view in waiting:
            if view.rank not in runnable and _can_go_on(view, runnable, len(snapshot.ranks)):
                runnable.add(view.rank)
                grew = True
    return tuple(v for v in waiting if v.rank not in runnable)


def _can_go_on(view: RankView, runnable: set[int], size: int) -> bool:
    others = [r for r in range(size) if view.members >> r & 1 and r != view.rank]
    if view.operation in (SEND, RECV):  # one partner would do; nobody does it for oneself
        return any(r in runnable for r in others)
    return all(r in runnable or view.arrived >> r & 1 for r in others)


class Detector:
    """Tells a deadlock from a moment's picture: the same ranks must be stuck in the same calls for a while.

    Parameters
    ----------
    seconds : float
        For how long.
    """

    def __init__(self, seconds: float = CONFIRM_SECONDS):
        self._seconds, self._last_fingerprint, self._since = seconds, None, 0.0
        self._had_given_up: set[int] = set()

    def is_confirmed(self, snapshot: Snapshot, found: tuple[RankView, ...], moment: float) -> bool:
        """Take a look; return whether these ranks have been stuck for long enough.

        Parameters
        ----------
        snapshot : Snapshot
        found : tuple of RankView
            What `find_deadlocked` gives; empty where the caller is not concerned.
        moment : float
            The time, in seconds.
        """
        picture = self._fingerprint(snapshot, found) if found else None
        if picture is None or picture != self._last_fingerprint:
            self._last_fingerprint, self._since, self._had_given_up = picture, moment, set()
        if moment - self._since < self._seconds / 2:  # who gives up so soon was not stuck together with these
            self._had_given_up |= {v.rank for v in snapshot.ranks if v.state == DEADLOCK_RAISING}
            return False
        return moment - self._since > self._confirm_seconds(snapshot, found)

    @staticmethod
    def _fingerprint(snapshot: Snapshot, found: tuple[RankView, ...]) -> list[tuple]:
        """Return the part of a view that must stay the same; nothing of ranks that go on."""
        those = {v.rank for v in found}  # one that gives up meanwhile changes nothing: it waited for the same
        shown = (v for v in snapshot.ranks if v.rank in those or v.state not in (COMPUTING, WAITING))
        return [(v.rank, v.state in IN_CALL or v.state, v.key) for v in shown]

    def _confirm_seconds(self, snapshot: Snapshot, found: tuple[RankView, ...]) -> float:
        """Longer where a rank that is waited for is still on its way. Then all who are stuck say the same."""
        wanted, arrived, newest, late = 0, 0, snapshot.newest, snapshot.late()
        for view in found:
            wanted |= view.members
            arrived |= view.arrived  # who has come to one of these calls is named with those who wait there
        on = {
            v.rank
            for v in snapshot.ranks
            if v.round == newest and (v.state == COMPUTING or (v.state == DEADLOCK_RAISING and v.rank in self._had_given_up))
        }
        coming = [r for r in late | {r for r in on if not arrived >> r & 1} if wanted >> r & 1]
        return CONFIRM_LATE_SECONDS if coming else self._seconds

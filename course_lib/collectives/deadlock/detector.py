"""Deadlock detector: a pure function from a snapshot of all ranks to the ranks that can never proceed.

A rank blocked in a collective can proceed if every rank of the group has entered it or can still run; one blocked in a message, if one of
the ranks that it waits for can still run. A rank can still run if it computes or is silent for a while, if it was asked to run the cell but
has not begun it, or if it is blocked and can itself proceed. The detector does not depend on where the snapshot comes from: the status
board on one machine, the boards of several machines, or the coordinator of isolated ranks.
"""

from __future__ import annotations

from course_lib.collectives.calls import RECV, SEND
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, IN_CALL, SILENT, WAITING, RankView, Snapshot

CONFIRM_SECONDS = 0.25  # seconds for which a deadlock must be seen unchanged
CONFIRM_LATE_SECONDS = 2.0  # the same if a rank that is waited for still runs: it may soon be deadlocked, too, and belong in the message


def rank_mask(ranks) -> int:
    """Return the bit mask of some ranks, as a signed 64-bit integer; test it with ``mask >> rank & 1``.

    >>> rank_mask([0, 2]), rank_mask([63]) >> 63 & 1
    (5, 1)
    """
    bits = sum(1 << rank for rank in ranks)
    return bits if bits < 1 << 63 else bits - (1 << 64)


def find_deadlocked(snapshot: Snapshot) -> tuple[RankView, ...]:
    """Return the waiting ranks that can never proceed, according to one snapshot.

    A snapshot of running ranks may be inconsistent: `Detector` asks for the same finding for a while.

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
        if v.rank in late or (v.round == newest and v.state in (COMPUTING, SILENT)) or (v.state == WAITING and v.released)
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
    if view.operation in (SEND, RECV):  # one partner is enough; a blocked rank cannot be its own
        return any(r in runnable for r in others)
    return all(r in runnable or view.arrived >> r & 1 for r in others)


class Detector:
    """Confirms a deadlock over time: the same ranks must be stuck in the same calls for a while.

    Parameters
    ----------
    seconds : float
        The time for which snapshots must agree.
    """

    def __init__(self, seconds: float = CONFIRM_SECONDS):
        self._seconds, self._last_fingerprint, self._since = seconds, None, 0.0
        self._had_given_up: set[int] = set()

    def is_confirmed(self, snapshot: Snapshot, found: tuple[RankView, ...], moment: float) -> bool:
        """Take note of one snapshot; return whether the same ranks have been stuck for long enough.

        Parameters
        ----------
        snapshot : Snapshot
        found : tuple of RankView
            The result of `find_deadlocked`; empty if the caller is not among those ranks.
        moment : float
            Time of the snapshot, in seconds.
        """
        picture = self._fingerprint(snapshot, found) if found else None
        if picture is None or picture != self._last_fingerprint:
            self._last_fingerprint, self._since, self._had_given_up = picture, moment, set()
        if moment - self._since < self._seconds / 2:  # a rank that raises so soon was not part of this deadlock
            self._had_given_up |= {v.rank for v in snapshot.ranks if v.state == DEADLOCK_RAISING}
            return False
        return moment - self._since > self._confirm_seconds(snapshot, found)

    @staticmethod
    def _fingerprint(snapshot: Snapshot, found: tuple[RankView, ...]) -> list[tuple]:
        """Return the part of a snapshot that must stay the same; ranks that can proceed are left out."""
        those = {v.rank for v in found}  # a rank that raises changes nothing: it was stuck in the same deadlock
        shown = (v for v in snapshot.ranks if v.rank in those or v.state not in (COMPUTING, WAITING))
        return [(v.rank, v.state in IN_CALL or v.state, v.key) for v in shown]

    def _confirm_seconds(self, snapshot: Snapshot, found: tuple[RankView, ...]) -> float:
        """Return the time to wait: longer if a rank that is waited for still runs, so that all deadlocked ranks report the same."""
        wanted, arrived, newest, late = 0, 0, snapshot.newest, snapshot.late()
        for view in found:
            wanted |= view.members
            arrived |= view.arrived  # a rank that has entered one of these calls is reported as waiting there
        on = {
            v.rank
            for v in snapshot.ranks
            if v.round == newest and (v.state in (COMPUTING, SILENT) or (v.state == DEADLOCK_RAISING and v.rank in self._had_given_up))
        }
        coming = [r for r in late | {r for r in on if not arrived >> r & 1} if wanted >> r & 1]
        return CONFIRM_LATE_SECONDS if coming else self._seconds

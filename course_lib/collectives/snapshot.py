"""Snapshot of the state of all ranks, as plain data: the deadlock detector's input, and that of diagnostics."""

from __future__ import annotations

from dataclasses import dataclass

# States of a rank. DEADLOCK_RAISING: it has detected its own deadlock and is about to raise. DEADLOCKED: its cell ended with that error.
# LOST: its machine no longer responds. SILENT: it stands still for a while (`Ranks.silence`), and will go on.
COMPUTING, WAITING, FINISHED, RAISED, GONE, DEADLOCKED, LOST, DEADLOCK_RAISING, SILENT = range(1, 10)
IN_CALL = (WAITING, DEADLOCK_RAISING, DEADLOCKED)  # states in which the rank is blocked in the call that its row shows


@dataclass(frozen=True)
class RankView:
    """State of one rank in a snapshot.

    Attributes
    ----------
    rank, state : int
    round : int
        Number of the cell that it runs, or ran last.
    targets : int
        Ranks that were asked to run this cell, as a bit mask.
    key : int
        Identifies the call in which it waits: a blocking collective has the same positive key on all ranks (see `progress.rendezvous`);
        any other wait has a negative one of its own. 0: it is in no call.
    operation : int
        The call's operation, an index in `calls.OPERATIONS`.
    members : int
        Ranks that take part in the call, as a bit mask.
    arrived : int
        Those of them that have entered the same collective, as a bit mask.
    released : bool
        True if the wait can end already: the event has happened, and the rank has not noticed it yet.
    text : str
        The place in the student's code where it waits, or the error that it raised.
    """

    rank: int
    state: int
    round: int = 0
    targets: int = 0
    key: int = 0
    operation: int = 0
    members: int = 0
    arrived: int = 0
    released: bool = False
    text: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Views of all ranks; with several machines, also the machine of each rank."""

    ranks: tuple[RankView, ...]
    machines: tuple[str, ...] = ()

    @property
    def newest(self) -> int:
        """The number of the latest cell that any rank has begun."""
        return max(view.round for view in self.ranks)

    def late(self) -> set[int]:
        """Return the ranks that were asked to run the latest cell but have not begun it."""
        newest = self.newest
        asked = next(view.targets for view in self.ranks if view.round == newest)
        return {view.rank for view in self.ranks if view.round < newest and asked >> view.rank & 1 and view.state != LOST}

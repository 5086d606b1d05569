"""A snapshot of what all ranks do, as data: the detector decides on it, and diagnostics say it."""

from __future__ import annotations

from dataclasses import dataclass

# What a rank is doing. DEADLOCK_RAISING: it waited, and has found that nobody will come. DEADLOCKED: its cell has ended with that.
# LOST: its machine does not answer.
COMPUTING, WAITING, FINISHED, RAISED, GONE, DEADLOCKED, LOST, DEADLOCK_RAISING = range(1, 9)
IN_CALL = (WAITING, DEADLOCK_RAISING, DEADLOCKED)  # it stands in the call that its row shows


@dataclass(frozen=True)
class RankView:
    """The state of one rank at the moment of a snapshot.

    Attributes
    ----------
    rank, state : int
    round : int
        The number of the cell that it runs, or has run last.
    targets : int
        The ranks that were asked to run this cell, as a bit mask.
    key : int
        Names the call in which it waits: the same on all ranks in a blocking collective, else negative and its own.
    operation : int
        The call's operation, see `calls.OPERATIONS`.
    members : int
        The ranks that take part in the call, as a bit mask.
    arrived : int
        Those of them that have come to the same collective, as a bit mask.
    released : bool
        Whether what it waits for is there, and it has yet to notice.
    text : str
        Where it waits, or what it has raised.
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
    """All ranks, and the machine of each where these are several."""

    ranks: tuple[RankView, ...]
    machines: tuple[str, ...] = ()

    @property
    def newest(self) -> int:
        """The number of the latest cell."""
        return max(view.round for view in self.ranks)

    def late(self) -> set[int]:
        """The ranks that were asked to run the latest cell and have not begun it."""
        newest = self.newest
        asked = next(view.targets for view in self.ranks if view.round == newest)
        return {view.rank for view in self.ranks if view.round < newest and asked >> view.rank & 1 and view.state != LOST}

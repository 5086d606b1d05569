"""Ranks rest: where a machine is shared, those of a notebook in which no cell runs for a while go, and come back at the next cell."""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from IPython import get_ipython

from course_lib.cluster.processes import rank_quota

IDLE_VARIABLE = "COURSE_REST"  # seconds without a cell; unset or 0, ranks stay


class RestartableRanks(Protocol):
    """The part of `ranks.Ranks` that this module uses."""

    n: int
    attached: str | None
    slurm: str | None
    idle_stop_seconds: float | None  # the seconds after which they went, while they rest

    def alive(self) -> bool: ...

    def stop(self) -> None: ...

    def restart(self, rerun: bool = False) -> None: ...


def stop_when_idle(ranks: RestartableRanks) -> None:
    """Let these ranks rest, in the notebook that this runs in, if the environment says after how long."""
    seconds, shell = float(os.environ.get(IDLE_VARIABLE) or 0), get_ipython()
    if seconds and shell is not None and not ranks.attached:
        _idle_timer.set(ranks, seconds, shell)


def bring_back(ranks: RestartableRanks) -> None:
    """Bring up new ranks in the place of those that rest, and say what became of these."""
    if ranks.slurm is None:
        rank_quota.check_quota(ranks.n)
    minutes, seconds = divmod(round(ranks.idle_stop_seconds), 60)
    past = " ".join([f"{minutes} min"] * bool(minutes) + [f"{seconds} s"] * bool(seconds or not minutes))
    print(f"The ranks rested, as no cell had run for {past}; new ones come up. What was in the memory of the old ones is gone.", flush=True)
    ranks.restart(rerun=True)


class _IdleTimer:
    """Rings when no cell has run for a while: between cells, in the kernel's own loop, so never while one runs."""

    def __init__(self):
        self.ranks, self.seconds = None, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, ranks: RestartableRanks, seconds: float, shell) -> None:
        """Watch over these ranks, and no longer over others."""
        self.ranks, self.seconds = ranks, seconds
        shell.events.register("pre_run_cell", self._begin)  # a second time, this does nothing
        shell.events.register("post_run_cell", self._end)

    def _begin(self, *_) -> None:
        if self._timer:
            self._timer.cancel()

    def _end(self, *_) -> None:
        self._begin()
        try:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._ring)
        except RuntimeError:  # no notebook: nobody is away
            self._timer = None

    def _ring(self) -> None:
        if self.ranks.alive():
            self.ranks.stop()
            self.ranks.idle_stop_seconds = self.seconds


_idle_timer = _IdleTimer()

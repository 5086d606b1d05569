"""Idle shutdown: on a shared machine, ranks are stopped when no cell has run for a while, and started again by the next cell."""

from __future__ import annotations

import asyncio
import os

from IPython import get_ipython

from course_lib.cluster.processes import rank_quota

IDLE_VARIABLE = "COURSE_REST"  # seconds without a cell; if unset or 0, ranks are never stopped


def stop_when_idle(ranks) -> None:
    """Stop these ranks, a `ranks.Ranks`, when this notebook is idle, if the environment sets a time."""
    seconds, shell = float(os.environ.get(IDLE_VARIABLE) or 0), get_ipython()
    if seconds and shell is not None and not ranks.attached:
        _idle_timer.set(ranks, seconds, shell)


def bring_back(ranks) -> None:
    """Start new ranks in place of those stopped for being idle, and tell the user."""
    if ranks.slurm is None:
        rank_quota.check_quota(ranks.n)
    minutes, seconds = divmod(round(ranks.idle_stop_seconds), 60)
    past = " ".join([f"{minutes} min"] * bool(minutes) + [f"{seconds} s"] * bool(seconds or not minutes))
    print(
        f"The ranks were stopped, as no cell had run for {past}; new ones are starting. What the old ones had in memory is gone.",
        flush=True,
    )
    ranks.restart(rerun=True)


class _IdleTimer:
    """Timer that stops the ranks when no cell has run for a while; it runs on the kernel's event loop, so never during a cell."""

    def __init__(self):
        self.ranks, self.seconds = None, 0.0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, ranks, seconds: float, shell) -> None:
        """Set the ranks to stop, in place of any others, and the idle time in seconds."""
        self.ranks, self.seconds = ranks, seconds
        shell.events.register("pre_run_cell", self._begin)  # has no effect if already registered
        shell.events.register("post_run_cell", self._end)

    def _begin(self, *_) -> None:
        if self._timer:
            self._timer.cancel()

    def _end(self, *_) -> None:
        self._begin()
        try:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._ring)
        except RuntimeError:  # not in a notebook
            self._timer = None

    def _ring(self) -> None:
        if self.ranks.alive():
            self.ranks.stop()
            self.ranks.idle_stop_seconds = self.seconds


_idle_timer = _IdleTimer()

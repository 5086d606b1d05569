"""Scheduler for isolated ranks: runs one rank at a time, in an order of priority, for checks that must not depend on timing.

Isolated ranks interact only through the broker. If it holds back the frames for a rank until all others are blocked, that rank is as slow
as a rank can be, whatever its code does; and between two steps, no more than one rank runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from course_lib.collectives.calls import RECV, SEND

# How long one rank may run while the others are held back; one that sleeps longer runs into the cell's time limit in the end.
MAX_RUN_SECONDS = 2.0


class RankScheduler:
    """Runs one rank at a time, by holding back the frames for the others.

    Parameters
    ----------
    order : list of int
        The ranks, by priority; the last one runs only when no other can.
    on_step : callable
        Called in the broker's thread with the number of the step, when all ranks are blocked and one is about to run.
    stop : (int, int), optional
        A rank, and the number of steps after which it is stopped; to the others, its process has ended.
    on_others_done : callable, optional
        Called when the others have done all that they can without the stopped rank, which then continues.
    max_run_seconds : float
        Seconds for which a rank may run before another one may, too.
    on_reply : callable, optional
        Called with the rank when a rank replies.

    Attributes
    ----------
    released : dict of int to int
        By rank: the number of its steps so far.
    """

    def __init__(
        self,
        order: list[int],
        on_step: Callable[[int], None],
        stop: tuple[int, int] | None = None,
        on_others_done: Callable[[], None] = lambda: None,
        max_run_seconds: float = MAX_RUN_SECONDS,
        on_reply: Callable[[int], None] = lambda rank: None,
    ):
        self.order, self._stop, self._max_run_seconds = order, stop, max_run_seconds
        self._on_step, self._on_others_done, self._on_reply = on_step, on_others_done, on_reply
        self.released = dict.fromkeys(order, 0)
        self._waiting: dict[int, list] = {r: [] for r in order}
        self._asked: set[int] = set()
        self._running: set[int] = set()
        self._gone: int | None = None
        self._number, self._since = 0, 0.0

    def hold(self, rank: int, header: dict, payload: bytes) -> None:
        """Queue a frame for a rank."""
        self._waiting[rank].append((header, payload))
        if "request" in header:
            self._asked.add(rank)

    def frame_received(self, rank: int, header: dict) -> None:
        """Take note of a frame from a rank: it may mean that the rank is blocked now."""
        if "reply" in header:
            self._on_reply(rank)
        blocks = "call" in header and header.get("start") is not True and header["signature"][0] not in (SEND, RECV)
        if blocks or {"wait", "reply", "gate"} & header.keys():
            self._running.discard(rank)

    def ended(self, rank: int) -> None:
        """Take note that a rank's process has ended."""
        self._running.discard(rank)
        self._waiting[rank].clear()

    def next_frames(self, coordinator) -> list[tuple[int, dict, bytes]]:
        """Return the frames to deliver now: all those queued for the next rank to run; empty while a rank still runs."""
        if len(self._asked) < len(self.order) or self._runs(coordinator):
            return []
        if self._gone is not None and not coordinator.busy - {self._gone}:
            self._on_others_done()
            coordinator.revive(self._gone)
            self._stop = self._gone = None
        ready = [r for r in self.order if self._waiting[r] and not self._stops(r)]
        if not ready:
            if self._stop and self._gone is None and self._stops(self._stop[0]):
                self._gone = self._stop[0]
                coordinator.mark_gone(self._gone)
            return []
        rank, self._number = ready[0], self._number + 1
        self._on_step(self._number)
        frames, self._waiting[rank] = self._waiting[rank], []
        self.released[rank] += 1
        self._running.add(rank)
        self._since = time.monotonic()
        return [(rank, *frame) for frame in frames]

    def _stops(self, rank: int) -> bool:
        """Return whether a rank is stopped, or due to be."""
        return self._stop is not None and rank == self._stop[0] and self.released[rank] >= self._stop[1]

    def _runs(self, coordinator) -> bool:
        """Return whether a rank is running within its time."""
        running = {r for r in self._running if not coordinator.is_waiting(r)}
        if running and time.monotonic() - self._since > self._max_run_seconds:
            self._running.clear()
            if self._stop and self._stop[0] in running and self._gone is None:
                self._gone = self._stop[0]
                coordinator.mark_gone(self._gone)
            return False
        return bool(running)

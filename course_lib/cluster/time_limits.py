"""Time limits while grading, where no user can stop a cell or run it again; new ranks replay the cells of ended ones."""

from __future__ import annotations

import os
from collections.abc import Callable

UNATTENDED = "COURSE_UNATTENDED"  # set when grading: seconds that a cell may take


LATER_DIVISOR, MIN_SECONDS = 3, 5.0  # after one call has run into the limit, later ones get a third of it, but at least 5 s
_ran_out = False


def limit(call: bool = False) -> float | None:
    """Return the seconds that a cell, or the `call` of a function, may take; None if a user is present."""
    seconds = float(os.environ.get(UNATTENDED, 0)) or None
    return max(seconds / LATER_DIVISOR, min(MIN_SECONDS, seconds)) if seconds and call and _ran_out else seconds


def reset() -> None:
    """Restore the full limit for calls, before another answer is tried."""
    global _ran_out
    _ran_out = False


def record_timeouts(replies: dict[int, dict | None]) -> None:
    """Take note if a call ran into the limit: an endless function in several tests would otherwise take the full time in each."""
    global _ran_out
    _ran_out |= any(not reply or (reply["error"] and reply["error"]["name"] == "TimeLimit") for reply in replies.values())


class ReplayLog:
    """The rounds of cells that neither crashed the ranks nor ran into the time limit, to be replayed on new ranks."""

    def __init__(self):
        self._rounds: list[dict[int, dict]] = []

    def add(self, requests: dict[int, dict], replies: dict[int, dict]) -> None:
        """Record a round while grading, unless it ran into the time limit."""
        if limit() and not any(reply["error"] and reply["error"]["name"] == "TimeLimit" for reply in replies.values()):
            self._rounds.append(requests)

    def replay(self, run: Callable[[dict[int, dict]], object]) -> None:
        """Run all rounds again; a round that now ends the ranks is dropped, with all later ones."""
        rounds, self._rounds = self._rounds, []
        for requests in rounds:
            run(requests)
            self._rounds.append(requests)

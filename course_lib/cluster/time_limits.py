"""Time limits for grading, where nobody stops a cell or runs one again; new ranks repeat the cells of the old ones."""

from __future__ import annotations

import os
from collections.abc import Callable

UNATTENDED = "COURSE_UNATTENDED"  # set when grading: seconds that a cell may take


LATER_DIVISOR, MIN_SECONDS = 3, 5.0  # once a function ran into the limit, its next ones are a third of it, and at least so many seconds
_ran_out = False


def limit(call: bool = False) -> float | None:
    """Seconds that a cell may take, or the call of a function; None where somebody watches."""
    seconds = float(os.environ.get(UNATTENDED, 0)) or None
    return max(seconds / LATER_DIVISOR, min(MIN_SECONDS, seconds)) if seconds and call and _ran_out else seconds


def reset() -> None:
    """Give the next functions all the time again: another answer is tried."""
    global _ran_out
    _ran_out = False


def record_timeouts(replies: dict[int, dict | None]) -> None:
    """Remember that a function ran into the limit: it may be in several tests, and one that has no end would take all that time in each."""
    global _ran_out
    _ran_out |= any(not reply or (reply["error"] and reply["error"]["name"] == "TimeLimit") for reply in replies.values())


class ReplayLog:
    """The cells that ended the ranks by neither a crash nor the time limit, to be run again on new ranks."""

    def __init__(self):
        self._rounds: list[dict[int, dict]] = []

    def add(self, requests: dict[int, dict], replies: dict[int, dict]) -> None:
        """Remember a round, if somebody may have to do it again."""
        if limit() and not any(reply["error"] and reply["error"]["name"] == "TimeLimit" for reply in replies.values()):
            self._rounds.append(requests)

    def replay(self, run: Callable[[dict[int, dict]], object]) -> None:
        """Do all rounds again; one that ends the ranks now is forgotten, with those behind it."""
        rounds, self._rounds = self._rounds, []
        for requests in rounds:
            run(requests)
            self._rounds.append(requests)

"""Quota of processor time for the ranks of a submission, for systems without control groups.

The ranks together may use one core. What they leave unused can be used later, up to
`BURST_SECONDS`: starting eight ranks takes 3 s of processor time, and no request of any part takes
more than 2 s on a rank.
"""

from __future__ import annotations

import time

CORES = 1.0
BURST_SECONDS = 20.0


class CpuQuota:
    """Token bucket of processor time.

    Parameters
    ----------
    now : float
        Time, in seconds.

    Attributes
    ----------
    left : float
        Processor time that may be used at once, in seconds; negative if it is overdrawn.
    """

    def __init__(self, now: float):
        self.reset(now)

    def reset(self, now: float) -> None:
        """Start over with all of `BURST_SECONDS`."""
        self.left, self._time = BURST_SECONDS, now

    def spend(self, seconds: float, now: float) -> None:
        """Record processor time that has been used since the last call."""
        gained = CORES * (now - self._time)
        self.left = min(BURST_SECONDS, self.left + gained - seconds)
        self._time = now


QUOTA = CpuQuota(time.monotonic())  # of the submission that this process grades

"""Number of turns of a benchmark."""

from __future__ import annotations

import os

MOST_TURNS_ENV = "COURSE_BENCH_TURNS"  # `make bench TURNS=1`: only to see that all benchmarks run


def turns(usual: int) -> int:
    """Return how often to measure: `usual`, or less if somebody wants less."""
    return min(usual, int(os.environ.get(MOST_TURNS_ENV) or usual))

"""Published measurements, compared with simulated results: `make validate`."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.plots.figures import Picture
from course_lib.sim.llm import pictures
from course_lib.sim.llm.measured.comparison import Comparison, errors, table
from course_lib.sim.llm.measured.comparison import times as compare
from course_lib.sim.llm.measured.rows import KORTHIKANTI, MEASURED

__all__ = ["MEASURED", "SOURCE", "Comparison", "errors", "picture", "table", "times"]

SOURCE = KORTHIKANTI  # the table that part 29 shows


def times() -> list[Comparison]:
    """Seconds per step of the table that part 29 shows, measured and simulated."""
    return compare([row for row in MEASURED if row.source == SOURCE])


def picture(rows: Sequence[Comparison]) -> Picture:
    """Draw the times as a scatter plot."""
    return pictures.scatter([(row.name, row.theirs, row.ours, row.fitted) for row in rows], "Seconds per iteration, simulated and measured")

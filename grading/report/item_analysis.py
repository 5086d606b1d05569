"""Item analysis of a class: distribution of points, difficulty of exercises, and how well they discriminate between students."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np

from grading.report.class_results import ClassResults

MIN_SUBMISSIONS = 20  # submissions for a correlation; with 20, chance alone gives 0.4 one time in ten
MIN_WITH_OTHER_POINTS = 5  # of them, with other points than most
MAX_BARS = 30  # of a distribution, at most


@dataclass(frozen=True)
class PointsStatistics:
    """Statistics of the points of an exercise or of a whole part.

    Attributes
    ----------
    bars : list of (str, int)
        Label and number of submissions for each step of points.
    share : float
        Mean, as a fraction of the maximum.
    correlation : float or None
        Correlation of an exercise's points with those of the rest of the part; None if it means nothing.
    why : str
        Reason for a missing correlation.
    """

    most: float
    mean: float
    median: float
    bars: list[tuple[str, int]]
    share: float
    correlation: float | None = None
    why: str = ""


def part_statistics(course: ClassResults) -> PointsStatistics:
    """Return the statistics of the whole part; it needs at least one graded submission."""
    return _figures([hand_in.total for hand_in in course.graded.values()], course.most)


def test_statistics(course: ClassResults) -> dict[str, PointsStatistics]:
    """Return the statistics of each test."""
    found = {}
    for test, most in course.tests.items():
        own = [hand_in.points[test] for hand_in in course.graded.values()]
        rest = [hand_in.total - hand_in.points[test] for hand_in in course.graded.values()]
        found[test] = _figures(own, most, *discrimination(own, rest, len(course.tests)))
    return found


def discrimination(own: list[float], rest: list[float], tests: int = 2) -> tuple[float | None, str]:
    """Return the correlation of an exercise's points with the rest's, or None and why not.

    >>> discrimination([1, 0], [3, 1])
    (None, 'too few: 20 graded hand-ins are needed')
    """
    if tests < 2:
        return None, "the part has only one exercise"
    if len(own) < MIN_SUBMISSIONS:
        return None, f"too few: {MIN_SUBMISSIONS} graded hand-ins are needed"
    for values, what in ((own, "here"), (rest, "in the rest")):
        others = len(values) - max(values.count(value) for value in set(values))
        if others < MIN_WITH_OTHER_POINTS:
            return (
                None,
                f"too few differ: all but {others} have the same points {what}"
                if others
                else f"too few differ: all have the same points {what}",
            )
    return float(np.corrcoef(own, rest)[0, 1]), ""


def _figures(points: list[float], most: float, correlation: float | None = None, why: str = "") -> PointsStatistics:
    mean = statistics.fmean(points)
    return PointsStatistics(most, mean, statistics.median(points), bars(points, most), mean / most if most else 0.0, correlation, why)


def bars(points: list[float], most: float) -> list[tuple[str, int]]:
    """Count the submissions in each step of points; the last step is full marks and more.

    >>> bars([0, 1, 1.5, 2], 2)
    [('0', 1), ('1', 2), ('2', 1)]
    """
    step = max(1.0, most / MAX_BARS)
    last = int(-(-most // step))
    counts = [0] * (last + 1)
    for value in points:
        counts[last if value >= most else max(0, min(int(value // step), last - 1))] += 1
    return [(f"{min(i * step, most):g}", count) for i, count in enumerate(counts)]

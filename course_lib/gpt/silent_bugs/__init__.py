"""Part 33: training runs that are silently wrong, and what helps to find out in which way."""

from course_lib.gpt.silent_bugs.finding import (
    KINDS,
    Finding,
    best_factor,
    best_fit,
    deciding_axis,
    held_by_all,
    part_of,
    parts_of,
)
from course_lib.gpt.silent_bugs.rounding import DTYPES, epsilon, rounded

__all__ = [
    "DTYPES",
    "KINDS",
    "Finding",
    "best_factor",
    "best_fit",
    "deciding_axis",
    "epsilon",
    "held_by_all",
    "part_of",
    "parts_of",
    "rounded",
]

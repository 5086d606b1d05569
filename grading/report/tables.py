"""The report's tables, for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grading import tables
from grading.formatting import printable
from grading.report.class_results import ClassResults
from grading.report.mistakes import Mistake
from grading.report.similarity import ExerciseSimilarity

MOST_PAIRS = 5000


def write(path: Path, head: list[str], rows: Iterable[list]) -> None:
    """Write a table; what students wrote and their names stay texts in one line."""
    tables.write(path, ([printable(value) if isinstance(value, str) else value for value in row] for row in (head, *rows)))


def points(course: ClassResults, path: Path) -> None:
    """Write a row for each student, including those who are missing."""
    rows = []
    for student in sorted({*course.graded, *course.ungraded, *course.missing}):
        hand_in, late = course.graded.get(student), round(course.late.get(student, 0))
        state = "graded" if hand_in else "not graded" if student in course.ungraded else "missing"
        own = [f"{hand_in.points[test]:g}" for test in course.tests] if hand_in else [""] * len(course.tests)
        flags = len(hand_in.flags) if hand_in else ""
        rows.append([student, course.names.get(student, ""), state, late, f"{hand_in.total:g}" if hand_in else "", *own, flags])
    write(path, ["student", "name", "state", "seconds late", f"points of {course.most:g}", *course.tests, "flags"], rows)


def mistakes(found: list[Mistake], names: dict[str, list[str]], path: Path) -> None:
    """Write a row for each mistake and student."""
    rows = [
        [len(mistake.students), mistake.message, " | ".join(mistake.tests), " | ".join(names.get(mistake.message, [])), student, said]
        for mistake in found
        for student, said in mistake.students.items()
    ]
    write(path, ["students", "mistake", "tests", "variants", "student", "what the test said"], rows)


def similar_pairs(found: list[ExerciseSimilarity], path: Path) -> None:
    """Write a row for each pair, the most similar first."""
    pairs = sorted((pair for likeness in found for pair in likeness.pairs), key=lambda pair: -pair.share * pair.runs)
    rows = [[pair.exercise, *pair.students, f"{pair.share:.2f}", f"{pair.runs:.1f}"] for pair in pairs[:MOST_PAIRS]]
    write(path, ["exercise", "student", "other student", "share of the shorter one's own", "runs in common"], rows)

"""Reasons for a missing grade: refused when collected, cannot be graded, not graded yet, or nothing handed in."""

from __future__ import annotations

from pathlib import Path

import nbformat

from grading.collecting import records
from grading.running.pending import NOT_GRADED
from grading.submission.assembly import UnreadableSubmission, assemble, is_regular_file, read_cells, read_submission

NOTHING_SUBMITTED, NOT_GRADED_YET = "nothing handed in", "not graded yet"
ASK_INSTRUCTOR = "your instructor has to look at it"
MAX_REASON_BYTES = 4096  # bytes of a reason


def missing_grade_reason(part: str, student: str, home: Path) -> str:
    """Return the reason for a missing grade, as far as it is known."""
    if final := lasting_reason(part, student, home):
        return final
    there = (home / "submitted" / student / part / f"{part}.ipynb").exists()
    return NOT_GRADED_YET if there else NOTHING_SUBMITTED


def lasting_reason(part: str, student: str, home: Path) -> str:
    """Return a reason that lasts until the student or the instructor does something; empty if there is none."""
    folder = home / "submitted" / student / part
    if not (folder / f"{part}.ipynb").exists():
        refused, _ = records.refused(home, student, part)
        return f"refused: {refused}" if refused else ""
    return f"not graded: {text}" if (text := _text(folder / NOT_GRADED)) else ""


def reason_for_student(part: str, student: str, home: Path) -> str:
    """Return the reason for the student's own page: without machine faults, other students, or the instructor's folders."""
    path = home / "submitted" / student / part / f"{part}.ipynb"
    if not path.exists():
        refused, for_student = records.refused(home, student, part)
        return refused if for_student else ASK_INSTRUCTOR if refused else ""
    if not _text(path.parent / NOT_GRADED):
        return ""
    try:
        found = read_cells(read_submission(path))
        assemble(nbformat.read(home / "source" / part / f"{part}.ipynb", as_version=4), found)
    except UnreadableSubmission as problem:
        return str(problem)
    except (OSError, ValueError):
        return ASK_INSTRUCTOR
    return ASK_INSTRUCTOR


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if is_regular_file(path, MAX_REASON_BYTES) else ""

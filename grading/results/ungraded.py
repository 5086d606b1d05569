"""Reasons for a missing grade: refused when it was collected, not to be graded, not graded yet, or nothing handed in."""

from __future__ import annotations

from pathlib import Path

import nbformat

from grading.collecting import records
from grading.handin.submission import NotReadable, assemble, is_plain, read, taken
from grading.running.waiting import NOT_GRADED

NOTHING, NOT_YET = "nothing handed in", "not graded yet"
ASK = "your instructor has to look at it"
LONGEST = 4096  # bytes of such a text


def why(part: str, student: str, home: Path) -> str:
    """Return the reason for a missing grade, as far as it is known."""
    if final := reason(part, student, home):
        return final
    there = (home / "submitted" / student / part / f"{part}.ipynb").exists()
    return NOT_YET if there else NOTHING


def reason(part: str, student: str, home: Path) -> str:
    """Return a reason that stays until the student or the instructor does something; empty if there is no such reason."""
    folder = home / "submitted" / student / part
    if not (folder / f"{part}.ipynb").exists():
        refused, _ = records.refused(home, student, part)
        return f"refused: {refused}" if refused else ""
    return f"not graded: {text}" if (text := _text(folder / NOT_GRADED)) else ""


def told(part: str, student: str, home: Path) -> str:
    """Return it for the student's own page: without faults of the machine, other students, or the instructor's folders."""
    path = home / "submitted" / student / part / f"{part}.ipynb"
    if not path.exists():
        refused, for_student = records.refused(home, student, part)
        return refused if for_student else ASK if refused else ""
    if not _text(path.parent / NOT_GRADED):
        return ""
    try:
        found = read(taken(path))
        assemble(nbformat.read(home / "source" / part / f"{part}.ipynb", as_version=4), found)
    except NotReadable as problem:
        return str(problem)
    except (OSError, ValueError):
        return ASK
    return ASK


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if is_plain(path, LONGEST) else ""

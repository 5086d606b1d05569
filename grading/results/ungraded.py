"""Why a student has no grade for a part: refused when it was collected, not to be graded, not graded yet, or nothing handed in."""

from __future__ import annotations

from pathlib import Path

from grading.collecting import records
from grading.handin.submission import is_plain
from grading.running.waiting import NOT_GRADED

NOTHING, NOT_YET = "nothing handed in", "not graded yet"
LONGEST = 4096  # bytes of such a text


def why(part: str, student: str, home: Path) -> str:
    """Why there is no grade, as far as that is known."""
    if final := reason(part, student, home):
        return final
    there = (home / "submitted" / student / part / f"{part}.ipynb").exists()
    return NOT_YET if there else NOTHING


def reason(part: str, student: str, home: Path) -> str:
    """What a student must know, as grading does not come to it by itself; empty where there is no such thing."""
    folder = home / "submitted" / student / part
    if not (folder / f"{part}.ipynb").exists():
        refused = records.refused(home, student, part)
        return f"refused: {refused}" if refused else ""
    return f"not graded: {text}" if (text := _text(folder / NOT_GRADED)) else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if is_plain(path, LONGEST) else ""

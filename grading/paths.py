"""The course's folders, and the names of its parts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions"
NOTEBOOKS = ROOT / "notebooks"
GRADING = Path(os.environ.get("COURSE_GRADING") or ROOT / "grading")  # on a hub, the instructor's own folder: the course is read only there


def parts() -> list[str]:
    """Return the names of all parts, in order."""
    return sorted(p.name for p in SOLUTIONS.iterdir() if (p / f"{p.name}.py").exists())


def selected_parts(arguments: list[str]) -> list[str]:
    """Return the parts that a command line names, by their names or numbers; all of them if it names none.

    Raises
    ------
    SystemExit
        There is no such part.
    """
    known, found = parts(), []
    for name in arguments:
        meant = [part for part in known if part == name] or [part for part in known if part.startswith(f"{name}_")]
        if len(meant) != 1:
            sys.exit(f"There is no part {name!r}. The parts: {', '.join(known)}.")
        found += meant
    return found or known


def required_part(arguments: list[str], usage: str) -> str:
    """Return the one part that a command line must name."""
    if not arguments:
        sys.exit(f"Which part? {usage}. The parts: {', '.join(parts())}.")
    return selected_parts(arguments[:1])[0]

"""Find the submissions to grade: new ones, replaced ones, and those whose tests have changed since."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grading.authoring.build import kind_of
from grading.paths import GRADING
from grading.submission.assembly import UnreadableSubmission, fingerprint, read_submission
from grading.submission.regrade_key import CHECKS_ENTRY, regrade_key

NEW, CHANGED, DONE, GONE = "new", "changed", "done", "gone"
NOT_GRADED = "not_graded.txt"  # beside a submission: why it could not be graded


@dataclass
class PendingSubmissions:
    """The submissions of a part, by what is to be done.

    Attributes
    ----------
    new, changed, done : list of str
        Students whose current submission was never graded, was graded by other tests, or needs nothing.
    cells : set of str
        Ids of the cells that have changed, for at least one of `changed`.
    """

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    cells: set[str] = field(default_factory=set)

    @property
    def students(self) -> list[str]:
        """Students whose submission is to be graded."""
        return sorted([*self.new, *self.changed])


def find_pending(part: str, source: NotebookNode, home: Path = GRADING) -> PendingSubmissions:
    """Sort the submissions of a part by their state."""
    found, now = PendingSubmissions(), regrade_key(source)
    for folder in sorted((home / "submitted").glob(f"*/{part}")):
        student = folder.parent.name
        kind = submission_state(part, student, home, now)
        if kind == CHANGED:
            found.cells |= _changed(_graded_metadata(part, student, home)["key"], now)
        {NEW: found.new, CHANGED: found.changed}.get(kind, found.done).append(student)
    return found


def submission_state(part: str, student: str, home: Path, now: dict[str, str]) -> str:
    """Return the state of a submission.

    Parameters
    ----------
    now : dict of str to str
        The part's current `regrade_key`.

    Returns
    -------
    str
        NEW: the one in submitted/ was never graded. CHANGED: it was, by other tests. DONE. GONE: there is none any more.
    """
    submitted = home / "submitted" / student / part
    if not submitted.exists():
        return GONE
    mark = _graded_metadata(part, student, home)
    if "graded" not in mark or "key" not in mark or mark["graded"] != _which(submitted / f"{part}.ipynb"):
        return NEW
    return DONE if mark["key"] == now else CHANGED


def current_key(part: str, home: Path) -> dict[str, str]:
    """Return the key by which submissions are graded now."""
    path = home / "source" / part / f"{part}.ipynb"
    return _key_of(path, path.stat().st_mtime_ns) if path.exists() else {}


@functools.lru_cache
def _key_of(path: Path, time: int) -> dict[str, str]:
    return regrade_key(nbformat.read(path, as_version=4))


def _graded_metadata(part: str, student: str, home: Path) -> dict:
    """Return a graded notebook's metadata about its grading."""
    try:
        return json.loads((home / "autograded" / student / part / f"{part}.ipynb").read_bytes())["metadata"]["course"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _which(path: Path) -> str:
    """Return a file's fingerprint; "" if it cannot be read."""
    try:
        return fingerprint(read_submission(path))
    except (OSError, UnreadableSubmission):
        return ""


def _changed(by: dict[str, str], now: dict[str, str]) -> set[str]:
    """Return the cells that have changed; one that was renamed counts once."""
    changed = {name for name in by.keys() & now.keys() if by[name] != now[name]}
    for is_test in (True, False):
        gone, come = ({name for name in names if name.startswith("test-") == is_test} for names in (by.keys() - now, now.keys() - by))
        changed |= max(come, gone, key=len)
    return changed


def describe_changes(found: PendingSubmissions, source: NotebookNode) -> str:
    """Describe the changes for the instructor, such as "3 tests have changed since"."""
    checks = ["the checks in course_lib"] * (CHECKS_ENTRY in found.cells)
    cells = found.cells - {CHECKS_ENTRY}
    tests = {cell.id for cell in source.cells if kind_of(cell) == "test"} | {name for name in cells if name.startswith("test-")}
    counts = {"test": len(cells & tests), "other cell": len(cells - tests)}
    words = [f"{n} {name}{'s' * (n > 1)}" for name, n in counts.items() if n] + checks
    return f"{' and '.join(words)} {'has' if len(cells) == 1 and not checks else 'have'} changed since"

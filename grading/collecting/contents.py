"""Inspect a file's content: which part's notebook it is, and whether it can be read as one."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from grading.collecting.unpack import NOTEBOOK, DownloadedFile
from grading.paths import NOTEBOOKS, parts
from grading.submission.assembly import MAX_CONTAINERS

MAX_INSPECTED_BYTES = 10 << 20  # bytes of a notebook whose metadata are read: larger ones take too much memory


@dataclass(frozen=True)
class Content:
    """Content of a file.

    Attributes
    ----------
    is_readable : bool
        Whether it can be read as a notebook, or is too large to inspect.
    part : str, optional
        The part that its metadata name, or those of its cells.
    """

    is_readable: bool
    part: str | None = None


def inspect_notebook(path: Path) -> Content:
    """Inspect a file that has a notebook's name."""
    if path.stat().st_size > MAX_INSPECTED_BYTES:
        return Content(True)
    try:
        data = path.read_bytes()
        if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
            return Content(True)
        notebook = json.loads(data.decode("utf-8-sig"))
        cells, metadata = notebook["cells"], notebook["metadata"]
        course = metadata.get("course", {}).get("part")
        ids = {c["metadata"].get("nbgrader", {}).get("grade_id") for c in cells if course is None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Content(False)  # grading reports what is wrong with it
    if isinstance(course, str):
        return Content(True, course if course in parts() else None)
    return Content(True, next((part for part, own in exercises().items() if own & ids), None))


def mismatch_reason(part: str, file: DownloadedFile, content: Content | None) -> str | None:
    """Return why a file is not a notebook of this part, or None if it is."""
    name = file.inside[-1]
    if content is None:
        return "neither a notebook nor a zip"
    if content.part == part or (content.part is None and part in name):
        return None
    return f"a notebook of {content.part}" if content.part else f"neither its content nor its name says that it is a notebook of {part}"


def is_notebook(file: DownloadedFile) -> bool:
    """Return whether a file has a notebook's name."""
    return NOTEBOOK.search(file.inside[-1]) is not None


@functools.cache
def exercises() -> dict[str, set[str]]:
    """Return the grade ids of each part's exercises, from the released notebooks."""
    found = {}
    for part in parts():
        cells = json.loads((NOTEBOOKS / part / f"{part}.ipynb").read_text(encoding="utf-8"))["cells"]
        marks = [cell["metadata"].get("nbgrader", {}) for cell in cells]
        found[part] = {mark["grade_id"] for mark in marks if mark.get("solution")}
    return found

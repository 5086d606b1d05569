"""The key that decides about regrading: a short hash of each cell, and of what the hidden tests call."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from nbformat import NotebookNode

from course_lib import check
from grading.authoring.build import WRITTEN_ANSWER, kind_of

CHECKS_ENTRY = "course_lib"  # an entry of the key, besides the cells' names


def regrade_key(source: NotebookNode) -> dict[str, str]:
    """Return the key: for each cell except texts and examples, a short hash of what it does and what it is worth."""
    cells = [cell for cell in source.cells if kind_of(cell) in ("given", "exercise", "test", WRITTEN_ANSWER)]
    return {CHECKS_ENTRY: _of_checks()} | {
        c.id: hashlib.sha256(
            f"{c.source if kind_of(c) != WRITTEN_ANSWER else ''}\n{c.metadata.nbgrader.get('points')}".encode()
        ).hexdigest()[:12]
        for c in cells
    }


@functools.cache
def _of_checks() -> str:
    """Hash what the hidden tests call: a tolerance there is as much a test as one in the notebook."""
    library = Path(check.__file__).parents[1]
    rooms = (library / "check", library / "sim" / "schedule" / "check")
    files = [*(path for room in rooms for path in sorted(room.rglob("*.py"))), library / "sim" / "plan" / "check.py"]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]

"""What is to be graded: hand-ins that are new, or were replaced, and those whose tests have changed since."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from grading.build import kind_of
from grading.paths import GRADING
from grading.submission import NotReadable, fingerprint, taken


@dataclass
class Waiting:
    """The hand-ins of a part, by what is to be done.

    Attributes
    ----------
    new, changed, done : list of str
        Students whose hand-in was never graded as it is, or was graded by other tests, or needs nothing.
    cells : set of str
        Ids of the cells that are other than they were, for one of `changed` at least.
    """

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    cells: set[str] = field(default_factory=set)

    @property
    def students(self) -> list[str]:
        """Whose hand-in is to be graded."""
        return sorted([*self.new, *self.changed])


def key(source: NotebookNode) -> dict[str, str]:
    """What a hand-in was graded by: of each cell but texts and examples, a short sum of what it does and what it is worth."""
    cells = [cell for cell in source.cells if kind_of(cell) in ("given", "exercise", "test")]
    return {c.id: hashlib.sha256(f"{c.source}\n{c.metadata.nbgrader.get('points')}".encode()).hexdigest()[:12] for c in cells}


def waiting(part: str, source: NotebookNode, home: Path = GRADING) -> Waiting:
    """Sort the hand-ins of a part."""
    found, now = Waiting(), key(source)
    for folder in sorted((home / "submitted").glob(f"*/{part}")):
        student, submitted = folder.parent.name, folder / f"{part}.ipynb"
        try:
            mark = json.loads((home / "autograded" / student / part / f"{part}.ipynb").read_bytes())["metadata"]["course"]
            before, by = mark["graded"], mark["key"]
        except (OSError, ValueError, KeyError):
            before = by = None
        if before is None or before != which(submitted):
            found.new.append(student)
        elif by != now:
            found.changed.append(student)
            found.cells |= {name for name in {*by, *now} if by.get(name) != now.get(name)}
        else:
            found.done.append(student)
    return found


def which(path: Path) -> str:
    """The fingerprint of a file; "" if it cannot be read."""
    try:
        return fingerprint(taken(path))
    except (OSError, NotReadable):
        return ""


def said(found: Waiting, source: NotebookNode) -> str:
    """What has changed, for a person: "3 tests have changed since"."""
    tests = {cell.id for cell in source.cells if kind_of(cell) == "test"} | {name for name in found.cells if name.startswith("test-")}
    counts = {"test": len(found.cells & tests), "other cell": len(found.cells - tests)}
    words = [f"{n} {name}{'s' * (n > 1)}" for name, n in counts.items() if n]
    return f"{' and '.join(words)} {'has' if len(found.cells) == 1 else 'have'} changed since"

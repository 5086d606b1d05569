"""Notes on a submission's cells for a person to read: where grading differs from the notebook.

They are in the cells' metadata, and become flags (see `flags`). None of them costs points.
"""

from __future__ import annotations

import re
import textwrap

from nbformat import NotebookNode

from course_lib.cluster.source import cell as cells
from grading.authoring.build import EXPERIMENT_TAG, FOLDED_TAG, kind_of
from grading.submission.execute import is_for_ranks
from grading.submission.matching import DEFINITION, defined

NOT_RUN_TAG = "course-not-run"  # tag of a cell of the student's that does not run
BELOW_TESTS = "it is below the hidden tests, and does more than define functions and variables"
MAX_TEXT_CHARS = 160  # characters of a cell that a note shows


def add(cell: NotebookNode, why: str, text: str = "") -> None:
    """Add a note to a cell: what a person should know, and the text that it is about."""
    course = cell.metadata.setdefault("course", {})
    course.setdefault("notes", []).append([why, textwrap.shorten(text, MAX_TEXT_CHARS)])


def notes_of(cell: NotebookNode) -> list[list[str]]:
    """Return a cell's notes."""
    return cell.metadata.get("course", {}).get("notes", [])


def not_code(cell: NotebookNode) -> dict[str, str]:
    """Return what an exercise should have defined that is not code in the submission, and why."""
    return cell.metadata.get("course", {}).get("not_code", {})


def runs(cell: NotebookNode) -> bool:
    """Return whether a student's cell runs on the ranks when it is graded."""
    tags = cell.metadata.get("tags", [])
    if {EXPERIMENT_TAG, FOLDED_TAG, NOT_RUN_TAG} & set(tags):
        return False
    kind = kind_of(cell)
    return kind == "exercise" or (kind == "example" and is_for_ranks(cell.source))


def add_notes(notebook: NotebookNode, source: NotebookNode) -> None:
    """Note what is defined twice, exercises on some ranks only, and helpers in experiments.

    Parameters
    ----------
    notebook, source : NotebookNode
        A submission as it is to run, and the part.
    """
    cells_with_exercises = [cell for cell in source.cells if kind_of(cell) == "exercise"]
    exercises = {name for cell in cells_with_exercises for name in defined(cell.source)}
    run = [cell for cell in notebook.cells if runs(cell)]
    first: dict[str, str] = {}  # by an exercise's function: the first cell that defines it
    for cell in run:
        again = {}
        for name in DEFINITION.findall(cell.source):
            if name in exercises and name in first:
                again[name] = first[name]
            first.setdefault(name, cell.id)
        for name, where in again.items():
            add(cell, f"defines {name} again, after {where}: the last one counts", cell.source)
        targets = cells.read(cell.source).targets if kind_of(cell) == "exercise" else None
        if targets:
            add(cell, f"runs on ranks {targets} only: the others lack what it defines", cell.source)
    known = {cell.id: exercises | defined(cell.source) for cell in source.cells}
    words = set(re.findall(r"\w+", "\n".join(cell.source for cell in run)))
    for cell in notebook.cells:
        if {EXPERIMENT_TAG, FOLDED_TAG} & set(cell.metadata.get("tags", [])):
            for name in sorted(words & defined(cell.source) - known.get(cell.id, set())):
                add(cell, f"defines {name}, in an experiment: it did not run", cell.source)

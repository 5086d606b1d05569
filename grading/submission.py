"""From what a student handed in, take what the student was to write, and nothing else."""

from __future__ import annotations

import nbformat
from nbformat import NotebookNode

from grading.build import kind_of

EXTRA = "course-extra"  # tag of a cell that the student added


def assemble(source: NotebookNode, submitted: NotebookNode) -> NotebookNode:
    """The notebook to grade: the instructor's cells, in the instructor's order, with the student's answers.

    Cells that set up, check and test come from `source`, whatever the submission did to them:
    changed, tagged, moved, copied or deleted. Exercises and worked examples have the student's
    text, found by grade_id or cell id. Code cells that the student added keep their place, behind
    the cell that they stand behind.

    Parameters
    ----------
    source, submitted : NotebookNode
        The part as `build` makes it, and as it was handed in.
    """
    texts: dict[str, str] = {}
    extras: dict[str | None, list[str]] = {}
    known = {cell.id: kind_of(cell) for cell in source.cells}
    last = None
    for cell in submitted.cells:
        if cell.cell_type != "code":
            continue
        marks = cell.metadata.get("nbgrader")
        grade_id = marks.get("grade_id") if isinstance(marks, dict) else None
        name = grade_id if grade_id in known else cell.get("id")
        if name in known:
            last = name
            if known[name] in ("exercise", "example") and name not in texts:
                texts[name] = cell.source
                continue
        if known.get(name) not in ("given", "test"):
            extras.setdefault(last, []).append(cell.source)
    notebook = nbformat.from_dict({**source, "cells": []})
    notebook.cells += [_extra(text, i) for i, text in enumerate(extras.pop(None, []))]
    count = len(notebook.cells)
    for cell in source.cells:
        cell = nbformat.from_dict(cell)
        kind = kind_of(cell)
        if kind == "exercise":
            cell.source = texts.get(cell.id, "# This exercise was missing from the submission.")
        elif kind == "example":
            cell.source = texts.get(cell.id, "")
        notebook.cells.append(cell)
        for text in extras.get(cell.id, []):
            notebook.cells.append(_extra(text, count))
            count += 1
    return notebook


def _extra(text: str, number: int) -> NotebookNode:
    return nbformat.v4.new_code_cell(text, id=f"extra-{number}", metadata={"tags": [EXTRA]})

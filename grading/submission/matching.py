"""Match the cells of a submission to those of the part, and find the places of the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from operator import or_

from nbformat import NotebookNode

from course_lib.cluster.source import cell as cells
from course_lib.cluster.source import rerun
from grading.authoring.build import WRITTEN_ANSWER, kind_of, only_shows
from grading.submission.execute import is_for_ranks

DEFINITION = re.compile(r"^(?:async def|def|class) +(\w+)", re.MULTILINE)


def defined(source: str) -> set[str]:
    """Return the functions and classes that a cell defines."""
    return set(DEFINITION.findall(source))


def plain(text: str) -> str:
    """Return a cell's text without what changes when it is merely opened and saved."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def names_of_cells(source: NotebookNode, submitted: Sequence[NotebookNode]) -> list[str | None]:
    """Return which cell of the part each submitted cell is; None for one that was added.

    A cell is found by its grade id, its id or its text, as platforms and editors may have removed
    ids. An exercise is also found by what it defines, even in the cell of a check or an experiment.
    """
    kinds = {cell.id: kind_of(cell) for cell in source.cells}
    names = [_marked(cell, kinds) for cell in submitted]
    left = [cell for cell in source.cells if cell.cell_type == "code" and cell.id not in names]
    by_text = {plain(cell.source): cell.id for cell in left}
    code = [number for number, cell in enumerate(submitted) if cell.cell_type == "code"]
    for number in code:
        names[number] = names[number] or by_text.get(plain(submitted[number].source))
    for exercise in source.cells:
        if kind_of(exercise) != "exercise" or exercise.id in names:
            continue
        wanted = defined(exercise.source)
        free = [number for number in code if kinds.get(names[number]) != "exercise"]
        like = [number for number in free if wanted & defined(submitted[number].source)]
        if like:
            first = min(like, key=lambda number: names[number] is not None)
            names[first] = exercise.id
    return names


def _marked(cell: NotebookNode, kinds: dict[str, str]) -> str | None:
    """Return which cell of the part this is, by its grade id or its id."""
    marks = cell.metadata.get("nbgrader")
    grade_id = marks.get("grade_id") if isinstance(marks, dict) else None
    for name in (grade_id, cell.get("id")):
        is_text = kinds.get(name) in ("text", WRITTEN_ANSWER)
        if name in kinds and (cell.cell_type == "code" or is_text):  # a text is no exercise
            return name
    return None


def text_in_place_of(
    exercise: NotebookNode,
    source: NotebookNode,
    submitted: Sequence[NotebookNode],
    is_missing: bool,
) -> NotebookNode | None:
    """Return the Markdown or raw cell that an exercise has become; None if there is none.

    If no code cell is the exercise (`is_missing`), a text that defines the same is taken for it.
    """
    wanted = defined(exercise.source) if is_missing else set()
    of_the_part = {plain(cell.source) for cell in source.cells if cell.cell_type != "code"}
    for cell in submitted:
        marks = cell.metadata.get("nbgrader", {})
        same_id = exercise.id in (marks.get("grade_id"), cell.get("id"))
        if cell.cell_type == "code" or plain(cell.source) in of_the_part:
            continue
        if same_id or wanted & defined(cell.source):
            return cell
    return None


def places_of_added_cells(
    source: NotebookNode,
    submitted: Sequence[NotebookNode],
    names: Sequence[str | None],
    added: Sequence[int],
) -> list[int | None]:
    """Return after which cell of the part each added cell runs; None if it does not run.

    It runs after the code cells above it and before the exercises below it, as in the student's
    notebook, but never before the ranks are set up. Below the hidden tests, a cell that
    only defines functions and variables may be meant for an exercise, so it runs before the first
    test; any other one does not run: it may tidy up what the tests need.

    Parameters
    ----------
    source : NotebookNode
        The part.
    submitted : sequence of NotebookNode
        The cells of the submission.
    names : sequence of (str or None)
        Which cell of the part each of them is.
    added : sequence of int
        Numbers of the cells that were added.
    """
    numbers = {cell.id: number for number, cell in enumerate(source.cells)}
    end = len(source.cells)
    tests = [number for number, cell in enumerate(source.cells) if kind_of(cell) == "test"]
    first_test = min(tests, default=end)
    set_up = _last_of_set_up(source)
    of_student = set(added)
    known: list[int | None] = [numbers.get(name) for name in names]
    for number, cell in enumerate(submitted):
        if cell.cell_type != "code" or number in of_student:
            known[number] = None

    # By submitted cell: the last cell of the part above it, whether a test is above it, and the
    # first exercise below it.
    before_tests = [set_up if k is None or k >= first_test else k for k in known]
    is_test = [k is not None and k >= first_test for k in known]
    is_exercise = [kind_of(cell) == "exercise" for cell in source.cells]
    exercises = [end if k is None or not is_exercise[k] else k for k in known]
    last_above = list(accumulate(before_tests, max, initial=set_up))
    test_above = list(accumulate(is_test, or_, initial=False))
    first_below = list(accumulate(reversed(exercises), min, initial=end))[::-1]

    places: list[int | None] = []
    for number in added:
        below = first_below[number + 1]
        if test_above[number] and below == end:
            needed = _may_be_needed(submitted[number].source)
            places.append(first_test - 1 if needed else None)
        else:
            places.append(max(set_up, min(last_above[number], below - 1)))
    return places


def _last_of_set_up(source: NotebookNode) -> int:
    """Return the number of the last of the cells that start and set up the ranks."""
    last = -1
    for number, cell in enumerate(source.cells):
        if cell.cell_type == "code":
            if kind_of(cell) != "given" or only_shows(cell):
                break
            last = number
    return last


def _may_be_needed(text: str) -> bool:
    """Return whether a cell defines what an exercise may need, or is not for the ranks at all."""
    cell = cells.read(text)
    code = cell.lines_for_ranks or cell.source
    return not is_for_ranks(text) or bool(cell.file) or rerun.defines_only(code)

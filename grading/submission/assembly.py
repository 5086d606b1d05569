"""Assemble the notebook to grade: take from a submission what the student was to write, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from grading.authoring.build import WRITTEN_ANSWER, YOUR_ANSWER, kind_of
from grading.submission import matching, notes
from grading.submission.matching import plain

Cells = Sequence[NotebookNode]
Names = Sequence[str | None]
STUB = "raise NotImplementedError"  # in an exercise that is not finished
ADDED_CELL_TAG = "course-extra"  # tag of a cell that the student added
MAX_NOTEBOOK_BYTES = 64 << 20  # bytes of a notebook
MAX_CONTAINERS = 1_000_000  # lists and objects in its JSON text: they take 20 times as much memory as the text
MAX_CELLS = 2_000  # code and text cells in it
MAX_CODE_CHARS = 1 << 20  # characters of code in it
MAX_ANSWER_CHARS, ANSWER_COLUMNS = 20_000, 100  # characters of a written answer, and columns of its lines as shown
MAX_ADDED_CELLS = 500  # cells that a student may add


class UnreadableSubmission(ValueError):
    """The file is not a notebook of this part; the message says what is missing."""


def read_submission(path: Path) -> bytes:
    """Read a submitted file.

    Raises
    ------
    UnreadableSubmission
        It is not a regular file, or has more than 64 MB.
    """
    if path.is_symlink() or (path.exists() and not is_regular_file(path)):
        raise UnreadableSubmission(f"{path.name} is not a regular file, but a link or something else")
    if path.stat().st_size > MAX_NOTEBOOK_BYTES:
        raise UnreadableSubmission(
            f"the notebook has {path.stat().st_size / 1e6:.0f} MB; clear its outputs (Kernel, Restart and Clear Outputs)"
        )
    return path.read_bytes()


def read_cells(data: bytes) -> NotebookNode:
    """Read the sources of a notebook's cells, with their ids and grade ids.

    Notebooks of formats 3 and 4 can be read, with any line endings, and with or without a byte order
    mark. The time and memory that this takes are bounded: nothing else in the file is looked at, and
    what would be large is refused before it is read.

    Raises
    ------
    UnreadableSubmission
        It is not a notebook, or too large.
    """
    containers = data.count(b"[") + data.count(b"{")
    if containers > MAX_CONTAINERS:
        raise UnreadableSubmission(
            f"the notebook has {containers:,} lists and objects, and the limit is {MAX_CONTAINERS:,}; "
            "clear its outputs (Kernel, Restart and Clear Outputs)"
        )
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        cells = _cells(json.loads(data.decode(encoding)))
    except RecursionError:
        raise UnreadableSubmission("the file is not a notebook: it is nested too deeply") from None
    except ValueError as error:
        raise UnreadableSubmission(f"the file is not a notebook: it is no JSON ({str(error)[:200]})") from None
    except (KeyError, TypeError, AttributeError):
        raise UnreadableSubmission("the file is not a notebook: its cells are missing, or not written as in a notebook") from None
    if len(cells) > MAX_CELLS:
        raise UnreadableSubmission(f"it has {len(cells):,} cells, and the limit is {MAX_CELLS:,}")
    # Line endings may have two characters.
    _check_code_size((cell["source"] for cell in cells if cell["cell_type"] == "code"), 2)
    bare = [_bare(cell) for cell in cells]
    _check_code_size(cell.source for cell in bare if cell.cell_type == "code")
    ids: set[str] = set()
    for cell in bare:  # of a cell that was copied with its id, only the first keeps it
        if cell.get("id") in ids:
            cell.pop("id", None)
        ids.add(cell.get("id"))
    return NotebookNode(cells=bare)


def _check_code_size(sources: Iterable[str], factor: int = 1) -> None:
    size = sum(map(len, sources))
    if size > factor * MAX_CODE_CHARS:
        raise UnreadableSubmission(f"its code has {size:,} characters, and the limit is {MAX_CODE_CHARS:,}")


def _cells(notebook: dict) -> list[dict]:
    """Return type, source, grade id and id of the cells of a parsed notebook."""
    sheets = [notebook] if "cells" in notebook else notebook["worksheets"]  # the latter in format 3
    cells = []
    for cell in (cell for sheet in sheets for cell in sheet["cells"]):
        kind = cell["cell_type"]
        source = cell["input"] if kind == "code" and "input" in cell else cell["source"]
        source = source if isinstance(source, str) else "".join(source)
        if kind == "heading":  # of format 3, like "html"
            source = f"{'#' * cell['level']} {source}"
        if kind in ("code", "markdown", "heading", "html", "raw"):
            kind = kind if kind in ("code", "raw") else "markdown"
            marks = cell.get("metadata", {}).get("nbgrader")
            grade_id = marks.get("grade_id") if isinstance(marks, dict) else None
            cells.append({"cell_type": kind, "source": source, "grade_id": grade_id, "id": cell.get("id")})
    return cells


def is_regular_file(path: Path, most: int | None = None) -> bool:
    """Return whether it is a regular file, not a link, pipe or device, of at most `most` bytes."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and (most is None or found.st_size <= most)


def fingerprint(data: bytes) -> str:
    """Return a hash that tells submissions apart."""
    return hashlib.sha256(data).hexdigest()


def _bare(cell: dict) -> NotebookNode:
    """Return a cell from `_cells` with plain line endings, and only the ids that are texts."""
    source = cell["source"]
    if cell["cell_type"] != "code":
        source = source[: 2 * MAX_ANSWER_CHARS]  # it may contain a picture
    # Line endings of all systems, and lone surrogates, which no file can hold.
    source = source.replace("\r\n", "\n").replace("\r", "\n").encode(errors="replace").decode()
    if cell["cell_type"] != "code":
        source = source[: MAX_ANSWER_CHARS + 1]
    marks = {"nbgrader": {"grade_id": cell["grade_id"]}} if isinstance(cell["grade_id"], str) else {}
    bare = nbformat.from_dict({"cell_type": cell["cell_type"], "source": source, "metadata": marks})
    if isinstance(cell["id"], str):
        bare.id = cell["id"]
    return bare


def assemble(source: NotebookNode, submitted: NotebookNode) -> NotebookNode:
    """Assemble the notebook to grade: the part's cells, in its order, with the student's answers.

    Cells that set up, check and test come from `source`, whatever the submission did to them:
    changed, tagged, moved, copied or deleted. Exercises and worked examples have the student's
    text (see `matching`). Code cells that the student added keep their place, but all that run do
    so before the first hidden test. Written answers are found by grade_id, by cell id, or by the
    text that they follow, and are shown as they were typed.

    Parameters
    ----------
    source, submitted : NotebookNode
        The part as made by `build`, and as submitted.

    Raises
    ------
    UnreadableSubmission
        The part has exercises, but the notebook has none of them; or too many cells were added.
    """
    names = matching.names_of_cells(source, submitted.cells)
    kinds = {cell.id: kind_of(cell) for cell in source.cells}
    texts: dict[str, str] = {}
    added: list[int] = []
    for number, (cell, name) in enumerate(zip(submitted.cells, names, strict=True)):
        is_students = kinds.get(name) in ("exercise", "example")
        if cell.cell_type != "code" or kinds.get(name) in ("given", "test"):
            continue
        if is_students and name not in texts:
            texts[name] = cell.source
        else:
            added.append(number)
    if len(added) > MAX_ADDED_CELLS:
        count = f"{len(added):,} cells were added to the notebook"
        raise UnreadableSubmission(f"{count}, and the limit is {MAX_ADDED_CELLS:,}")
    places = matching.places_of_added_cells(source, submitted.cells, names, added)
    extras: dict[int | None, list[NotebookNode]] = defaultdict(list)
    for i, (number, place) in enumerate(zip(added, places, strict=True)):
        extras[place].append(_extra(submitted.cells[number].source, i))

    notebook = nbformat.from_dict({**source, "cells": []})
    notebook.cells += extras[-1]
    for number, cell in enumerate(source.cells):
        cell = nbformat.from_dict(cell)
        kind = kind_of(cell)
        if kind in ("exercise", "example"):
            cell.source = texts.get(cell.id, "")
        elif kind == WRITTEN_ANSWER:
            cell.source = verbatim(_written(cell, source, submitted.cells, names))
        notebook.cells += [cell, *extras[number]]
    for extra in extras[None]:
        extra.metadata.tags.append(notes.NOT_RUN_TAG)
        notes.add(extra, f"did not run: {notes.BELOW_TESTS}", extra.source)
    notebook.cells += extras[None]
    _fill_missing(notebook, source, submitted.cells, texts)
    notes.add_notes(notebook, source)
    return notebook


def _fill_missing(
    notebook: NotebookNode,
    source: NotebookNode,
    submitted: Cells,
    texts: dict[str, str],
) -> None:
    """Say in the cells of exercises that are missing where they are, or what is in their place.

    An exercise that is not begun counts as missing if another cell has an answer to it.

    Raises
    ------
    UnreadableSubmission
        All exercises of the part are missing.
    """
    exercises = [cell for cell in source.cells if kind_of(cell) == "exercise"]
    missing = {cell.id for cell in exercises if cell.id not in texts}
    texts_instead = {}  # by exercise: the text cell that it has become
    for cell in exercises:
        is_missing = cell.id in missing
        texts_instead[cell.id] = matching.text_in_place_of(cell, source, submitted, is_missing)
    if exercises and len(missing) == len(exercises):
        wanted = sorted({name for cell in exercises for name in matching.defined(cell.source)})
        problem = f"expected a cell that defines {', '.join(wanted)}"
        if any(texts_instead.values()):
            problem += " (a text cell has it: in JupyterLab, Y makes it code)"
        raise UnreadableSubmission(f"no exercise of this part is in the notebook; {problem}")
    in_notebook = {cell.id: cell for cell in notebook.cells}
    stubs = {cell.id for cell in exercises if STUB in texts.get(cell.id, "")}
    others = [cell for cell in notebook.cells if notes.runs(cell) and cell.id not in stubs]
    by_others = {name for cell in others for name in matching.defined(cell.source)}
    for exercise in exercises:
        cell = in_notebook[exercise.id]
        names = matching.defined(exercise.source)
        text = texts_instead[cell.id]
        is_answered = bool(names) and names <= by_others
        if text is not None:
            kind = {"markdown": "a Markdown cell", "raw": "a raw cell"}[text.cell_type]
            why = f"is {kind} in the submission, not code; in JupyterLab, Y makes it code"
            notes.add(cell, f"did not run: it {why}", text.source)
        if is_answered and cell.id in missing | stubs:
            cell.source = "# Another cell of the submission defines this exercise."
        elif cell.id in missing and text is not None:
            lines = [f"# {line}" for line in text.source.splitlines()]
            cell.source = "\n".join([f"# Not run: this exercise {why}. It holds:", *lines])
            cell.metadata.course["not_code"] = dict.fromkeys(sorted(names), f"it {why}.")
        elif cell.id in missing:
            cell.source = "# This exercise was missing from the submission."
            notes.add(cell, "is missing from the submission")


def _written(cell: NotebookNode, source: NotebookNode, submitted: Cells, names: Names) -> str:
    """Return a written answer: its cells, including copies, and the texts added right after them; empty if there are none."""
    before = source.cells[source.cells.index(cell) - 1]
    own = [i for i, name in enumerate(names) if name == cell.id]
    if not own:
        text = plain(before.source)
        like = (names[i] == before.id or plain(c.source) == text for i, c in enumerate(submitted))
        own = [i for i, is_before in enumerate(like) if is_before][:1]
    ours = {plain(other.source) for other in source.cells if other.id != cell.id}
    ours |= {"", plain(YOUR_ANSWER)}
    found = [submitted[i].source for i in own if names[i] == cell.id]
    for place in own:
        for other, name in zip(submitted[place + 1 :], names[place + 1 :], strict=True):
            if name or other.cell_type == "code":
                break
            found.append(other.source)
    return "\n\n".join(text for text in found if plain(text) not in ours)


def verbatim(text: str) -> str:
    """Format an untrusted text as Markdown that shows what was typed, without effect for the reader; `YOUR_ANSWER` if it is empty.

    >>> verbatim("Because <b> and ```:" + chr(10) + "see above.")
    '````text\\nBecause <b> and ```:\\nsee above.\\n````'
    """
    if plain(text) in ("", plain(YOUR_ANSWER)):
        return YOUR_ANSWER
    if len(text) > MAX_ANSWER_CHARS:
        text = f"{text[:MAX_ANSWER_CHARS]}\n... (cut after {MAX_ANSWER_CHARS:,} characters)"
    lines = [part for line in text.strip().splitlines() for part in textwrap.wrap(line, ANSWER_COLUMNS, replace_whitespace=False) or [""]]
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return "\n".join([f"{fence}text", *lines, fence])


def _extra(text: str, number: int) -> NotebookNode:
    return new_code_cell(text, id=f"extra-{number}", metadata={"tags": [ADDED_CELL_TAG]})

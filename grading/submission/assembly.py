"""Assemble the notebook to grade: take from a submission what the student was to write, and nothing else."""

from __future__ import annotations

import hashlib
import itertools
import re
import stat
import textwrap
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from grading.authoring.build import WRITTEN_ANSWER, YOUR_ANSWER, kind_of

ADDED_CELL_TAG = "course-extra"  # tag of a cell that the student added
MAX_NOTEBOOK_BYTES = 64 << 20  # bytes of a notebook
MAX_CODE_CHARS = 1 << 20  # characters of code in it
MAX_ANSWER_CHARS, ANSWER_COLUMNS = 20_000, 100  # characters of a written answer, and columns of its lines as shown
MAX_ADDED_CELLS = 500  # cells that a student may add
_DEFINED = re.compile(r"^(?:async def|def|class) +(\w+)", re.MULTILINE)


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
    """Read the sources of a notebook's code and text cells, with their ids and grade ids, and nothing else.

    Notebooks of formats 3 and 4 can be read, with any line endings, and with or without a byte order mark.

    Raises
    ------
    UnreadableSubmission
        It is not a notebook.
    """
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        found = nbformat.reads(data.decode(encoding), as_version=4)
        bare = new_notebook(cells=[_bare(cell) for cell in found.cells if cell.cell_type in ("code", "markdown")])
    except RecursionError:
        raise UnreadableSubmission("the file is not a notebook: it is nested too deeply") from None
    except Exception as error:
        raise UnreadableSubmission(f"the file is not a notebook: {type(error).__name__}: {str(error)[:200]}") from None
    if (size := sum(len(cell.source) for cell in bare.cells if cell.cell_type == "code")) > MAX_CODE_CHARS:
        raise UnreadableSubmission(f"its code has {size:,} characters, and the limit is {MAX_CODE_CHARS:,}")
    return bare


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


def _bare(cell: NotebookNode) -> NotebookNode:
    marks = cell.get("metadata", {}).get("nbgrader")
    grade_id = marks.get("grade_id") if isinstance(marks, dict) else None
    source = cell.source if isinstance(cell.source, str) else "".join(cell.source)
    # Line endings of all systems, and lone surrogates, which no file can hold.
    source = source.replace("\r\n", "\n").replace("\r", "\n").encode(errors="replace").decode()
    source = source if cell.cell_type == "code" else source[: MAX_ANSWER_CHARS + 1]  # a text may contain a picture
    new_cell = new_code_cell if cell.cell_type == "code" else new_markdown_cell
    bare = new_cell(source, metadata={"nbgrader": {"grade_id": grade_id}} if isinstance(grade_id, str) else {})
    if isinstance(cell.get("id"), str):
        bare.id = cell.id
    return bare


def assemble(source: NotebookNode, submitted: NotebookNode) -> NotebookNode:
    """Assemble the notebook to grade: the instructor's cells, in the instructor's order, with the student's answers.

    Cells that set up, check and test come from `source`, whatever the submission did to them:
    changed, tagged, moved, copied or deleted. Exercises and worked examples have the student's
    text, found by grade_id, by cell id, or by what it defines. Code cells that the student added
    keep their place, after the cell that they follow. Written answers are found by grade_id,
    by cell id, or by the text that they follow, and are shown as they were typed.

    Parameters
    ----------
    source, submitted : NotebookNode
        The part as made by `build`, and as submitted.

    Raises
    ------
    UnreadableSubmission
        The part has exercises, but the notebook has none of them; or too many cells were added.
    """
    known = {cell.id: kind_of(cell) for cell in source.cells}
    marked = [_marked(cell, known) for cell in submitted.cells]
    names = [name or _name(cell, source, known, set(marked)) for cell, name in zip(submitted.cells, marked, strict=True)]
    texts: dict[str, str] = {}
    extras: dict[str | None, list[str]] = {}
    last = None
    for cell, name in zip(submitted.cells, names, strict=True):
        if cell.cell_type != "code":
            continue
        if name in known:
            last = name
            if known[name] in ("exercise", "example") and name not in texts:
                texts[name] = cell.source
                continue
        if known.get(name) not in ("given", "test"):
            extras.setdefault(last, []).append(cell.source)
    if (added := sum(map(len, extras.values()))) > MAX_ADDED_CELLS:
        raise UnreadableSubmission(f"{added:,} cells were added to the notebook, and the limit is {MAX_ADDED_CELLS:,}")
    exercises = [cell for cell in source.cells if kind_of(cell) == "exercise"]
    if exercises and not any(cell.id in texts for cell in exercises):
        wanted = ", ".join(sorted({name for cell in exercises for name in _DEFINED.findall(cell.source)}))
        raise UnreadableSubmission(f"no exercise of this part is in the notebook; expected a cell that defines {wanted}")
    notebook = nbformat.from_dict({**source, "cells": []})
    notebook.cells += [_extra(text, i) for i, text in enumerate(extras.pop(None, []))]
    count = len(notebook.cells)
    for cell in source.cells:
        cell = nbformat.from_dict(cell)
        kind = kind_of(cell)
        if kind == "exercise":
            cell.source = texts.get(cell.id, "# This exercise was missing from the submission.")
        elif kind == WRITTEN_ANSWER:
            cell.source = verbatim(_written(cell, source, submitted.cells, marked))
        elif kind == "example":
            cell.source = texts.get(cell.id, "")
        notebook.cells.append(cell)
        for text in extras.get(cell.id, []):
            notebook.cells.append(_extra(text, count))
            count += 1
    return notebook


def _marked(cell: NotebookNode, known: dict[str, str]) -> str | None:
    """Return which cell of the source this is, by its grade id or its id."""
    marks = cell.metadata.get("nbgrader")
    for name in (marks.get("grade_id") if isinstance(marks, dict) else None, cell.get("id")):
        if name in known and (cell.cell_type == "code" or known[name] in ("text", WRITTEN_ANSWER)):  # an exercise made a text is no answer
            return name
    return None


def _name(cell: NotebookNode, source: NotebookNode, known: dict[str, str], marked: set[str | None]) -> str | None:
    """Return the same for a cell that is not marked, by its text or by what it defines: platforms and editors may have removed ids."""
    left = [other for other in source.cells if other.id not in marked]
    if cell.cell_type != "code":
        return None
    for other in left:
        if other.cell_type == "code" and _plain(other.source) == _plain(cell.source):
            return other.id
    defined = set(_DEFINED.findall(cell.source))
    for other in left:
        if known[other.id] == "exercise" and defined & set(_DEFINED.findall(other.source)):
            return other.id
    return None


def _written(cell: NotebookNode, source: NotebookNode, submitted: list[NotebookNode], marked: list[str | None]) -> str:
    """Return a written answer: its cells, including copies, and the texts added right after them; empty if there are none."""
    before = source.cells[source.cells.index(cell) - 1]
    own = [i for i, name in enumerate(marked) if name == cell.id]
    if not own:
        own = [i for i, other in enumerate(submitted) if marked[i] == before.id or _plain(other.source) == _plain(before.source)][:1]
    ours = {_plain(other.source) for other in [*source.cells, cell] if other.id != cell.id} | {"", _plain(YOUR_ANSWER)}
    found = [submitted[i].source for i in own if marked[i] == cell.id]
    for place in own:
        behind = zip(submitted[place + 1 :], marked[place + 1 :], strict=True)
        added = itertools.takewhile(lambda pair: pair[0].cell_type == "markdown" and not pair[1], behind)
        found += [other.source for other, _ in added]
    return "\n\n".join(text for text in found if _plain(text) not in ours)


def verbatim(text: str) -> str:
    """Format an untrusted text as Markdown that shows what was typed, without effect for the reader; `YOUR_ANSWER` if it is empty.

    >>> verbatim("Because <b> and ```:" + chr(10) + "see above.")
    '````text\\nBecause <b> and ```:\\nsee above.\\n````'
    """
    if _plain(text) in ("", _plain(YOUR_ANSWER)):
        return YOUR_ANSWER
    if len(text) > MAX_ANSWER_CHARS:
        text = f"{text[:MAX_ANSWER_CHARS]}\n... (cut after {MAX_ANSWER_CHARS:,} characters)"
    lines = [part for line in text.strip().splitlines() for part in textwrap.wrap(line, ANSWER_COLUMNS, replace_whitespace=False) or [""]]
    fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return "\n".join([f"{fence}text", *lines, fence])


def _plain(text: str) -> str:
    """Return a cell's text without what changes when it is merely opened and saved."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _extra(text: str, number: int) -> NotebookNode:
    return new_code_cell(text, id=f"extra-{number}", metadata={"tags": [ADDED_CELL_TAG]})

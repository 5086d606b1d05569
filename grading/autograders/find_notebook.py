"""Find this part's notebook among the submitted files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nbformat import NotebookNode

from grading.submission.assembly import UnreadableSubmission, assemble, is_regular_file, read_cells

MAX_NOTEBOOK_BYTES = 20 << 20  # bytes of a notebook: reading it takes about ten times as much memory
MAX_NOTEBOOKS, MAX_NAMES_LISTED = 50, 5  # notebooks that are inspected, and that a message names
IGNORED_FOLDERS = (".ipynb_checkpoints", "__MACOSX")  # left by editors and systems


def find_notebook(folder: Path, part: str, source: NotebookNode) -> bytes:
    """Return the notebook of a part, whatever its file is called.

    Parameters
    ----------
    folder : Path
        Where the platform has put the submitted files.
    part : str
    source : NotebookNode
        The released part.

    Raises
    ------
    UnreadableSubmission
        There is none, there are several, or the only one cannot be read; the message says what to do.
    """
    files = notebooks(folder)
    if not files:
        there = ", ".join(sorted(p.name[:100] for p in folder.iterdir())[:MAX_NAMES_LISTED]) or "nothing"
        raise UnreadableSubmission(f"expected the notebook {part}.ipynb, got {there}")
    if len(files) > MAX_NOTEBOOKS:
        raise UnreadableSubmission(f"expected one notebook, {part}.ipynb, got {len(files)}")
    found, why = {}, {}
    for path in files:
        try:
            found[path] = _of_part(path, part, source)
        except UnreadableSubmission as problem:
            why[path] = str(problem)
    for alike in (found, {p: data for p, data in found.items() if p.name == f"{part}.ipynb"}):
        if len(set(alike.values())) == 1:
            return next(iter(alike.values()))
    if found:
        raise UnreadableSubmission(f"expected one notebook of {part}, got {len(found)}: {_names(found)}. Hand in only the one that counts")
    raise UnreadableSubmission(why[files[0]] if len(files) == 1 else f"none of the notebooks belongs to {part}: {_names(why)}")


def notebooks(folder: Path) -> list[Path]:
    """List all notebooks in a folder, except links and files left by editors."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in IGNORED_FOLDERS)
        found += [Path(place) / name for name in sorted(names) if name.lower().endswith(".ipynb") and not name.startswith("._")]
    return [path for path in found if is_regular_file(path)]


def _of_part(path: Path, part: str, source: NotebookNode) -> bytes:
    if path.stat().st_size > MAX_NOTEBOOK_BYTES:
        size, most = path.stat().st_size / 1e6, MAX_NOTEBOOK_BYTES >> 20
        raise UnreadableSubmission(
            f"the notebook has {size:.0f} MB, and the limit is {most} MB; clear its outputs (Kernel, Restart and Clear Outputs)"
        )
    data = path.read_bytes()
    notebook = read_cells(data)
    if (said := _says(data)) not in (None, part):
        raise UnreadableSubmission(f"this is the notebook of {said}; expected that of {part}")
    assemble(source, notebook)
    return data


def _says(data: bytes) -> str | None:
    """Return the part named in a notebook's metadata."""
    try:
        said = json.loads(data.decode("utf-8-sig"))["metadata"]["course"]["part"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return said[:100] if isinstance(said, str) else None


def _names(files: dict[Path, object]) -> str:
    names = [path.name[:100] for path in files]
    return ", ".join(names[:MAX_NAMES_LISTED]) + (f" and {len(names) - MAX_NAMES_LISTED} more" if len(names) > MAX_NAMES_LISTED else "")

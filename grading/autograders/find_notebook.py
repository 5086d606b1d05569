"""Which of the files that were handed in is the notebook of this part."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nbformat import NotebookNode

from grading.submission.assembly import UnreadableSubmission, assemble, is_regular_file, read_cells

MAX_NOTEBOOK_BYTES = 20 << 20  # bytes of a notebook: to read it takes some ten times as much memory
MAX_NOTEBOOKS, MAX_NAMES_LISTED = 50, 5  # notebooks that are looked at, and that a sentence names
IGNORED_FOLDERS = (".ipynb_checkpoints", "__MACOSX")  # what editors and systems leave


def find_notebook(folder: Path, part: str, source: NotebookNode) -> bytes:
    """The notebook of a part, whatever it is called.

    Parameters
    ----------
    folder : Path
        Where a platform has put what was handed in.
    part : str
    source : NotebookNode
        The part as it was released.

    Raises
    ------
    UnreadableSubmission
        There is none, or there are several, or the one that is there cannot be read; the message says what to do.
    """
    files = notebooks(folder)
    if not files:
        there = ", ".join(sorted(p.name[:100] for p in folder.iterdir())[:MAX_NAMES_LISTED]) or "nothing"
        raise UnreadableSubmission(f"expected the notebook {part}.ipynb, and got {there}")
    if len(files) > MAX_NOTEBOOKS:
        raise UnreadableSubmission(f"expected one notebook, {part}.ipynb, and got {len(files)}")
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
        raise UnreadableSubmission(
            f"expected one notebook of {part}, and got {len(found)}: {_names(found)}. Hand in the one that counts, alone"
        )
    raise UnreadableSubmission(why[files[0]] if len(files) == 1 else f"none of the notebooks is one of {part}: {_names(why)}")


def notebooks(folder: Path) -> list[Path]:
    """All notebooks in a folder, without links and what editors leave."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in IGNORED_FOLDERS)
        found += [Path(place) / name for name in sorted(names) if name.lower().endswith(".ipynb") and not name.startswith("._")]
    return [path for path in found if is_regular_file(path)]


def _of_part(path: Path, part: str, source: NotebookNode) -> bytes:
    if path.stat().st_size > MAX_NOTEBOOK_BYTES:
        size, most = path.stat().st_size / 1e6, MAX_NOTEBOOK_BYTES >> 20
        raise UnreadableSubmission(
            f"the notebook has {size:.0f} MB, and {most} are what is read; clear its outputs (Kernel, Restart and Clear Outputs)"
        )
    data = path.read_bytes()
    notebook = read_cells(data)
    if (said := _says(data)) not in (None, part):
        raise UnreadableSubmission(f"this is the notebook of {said}, and expected is that of {part}")
    assemble(source, notebook)
    return data


def _says(data: bytes) -> str | None:
    """The part that a notebook's metadata name."""
    try:
        said = json.loads(data.decode("utf-8-sig"))["metadata"]["course"]["part"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return said[:100] if isinstance(said, str) else None


def _names(files: dict[Path, object]) -> str:
    names = [path.name[:100] for path in files]
    return ", ".join(names[:MAX_NAMES_LISTED]) + (f" and {len(names) - MAX_NAMES_LISTED} more" if len(names) > MAX_NAMES_LISTED else "")

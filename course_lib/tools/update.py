"""`make update PART=...`: merge a part's new text into the notebook that a student has begun.

`make lab` keeps each notebook as released in my_work/.originals/, to tell the student's changes since then from the
course's.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

ORIGINALS = ".originals"  # in the student's folder
# nbdime merges the lines of a cell; cells are matched by their ids.
MERGE_OPTIONS = SimpleNamespace(
    merge_strategy="use-local", input_strategy=None, output_strategy="use-local", ignore_transients=True, log_level="ERROR"
)


class UpdateError(RuntimeError):
    """A notebook cannot be updated; the message says why."""


def keep_original(work: Path, source: Path) -> None:
    """Keep a copy of a notebook as released now."""
    (work / ORIGINALS).mkdir(exist_ok=True)
    _write_atomically(source.read_bytes(), work / ORIGINALS / source.name)


def keep_untouched(notebooks: Path, work: Path) -> None:
    """Keep the originals of copies that were made before originals were kept, if they are still as released."""
    for source in notebooks.glob("*/*.ipynb"):
        mine = work / source.name
        if mine.is_file() and not _original_path(mine).exists() and _same_bytes(mine, source):
            keep_original(work, source)


def is_unchanged(mine: Path) -> bool:
    """Compare a student's copy, cell by cell, with the notebook as released, if that was kept."""
    original = _original_path(mine)
    return not original.exists() or _cells(mine) == _cells(original)


def outdated(notebooks: Path, work: Path) -> list[Path]:
    """List the student's notebooks that are based on an older version of the course's notebook."""
    pairs = [(work / source.name, source) for source in sorted(notebooks.glob("*/*.ipynb"))]
    return [
        mine for mine, source in pairs if mine.exists() and _original_path(mine).exists() and not _same_bytes(_original_path(mine), source)
    ]


def update(mine: Path, source: Path) -> tuple[Path | None, list[str]]:
    """Merge the new version of a notebook into the student's copy.

    Parameters
    ----------
    mine : Path
        The student's copy; its previous version is kept next to it.
    source : Path
        The new version.

    Returns
    -------
    old : Path or None
        Path of the previous version; None if there was nothing to do.
    both : list of str
        First lines of cells that both the student and the course have changed; the student's text is kept.

    Raises
    ------
    UpdateError
        The copy is not a notebook, or its original version is unknown.
    """
    import nbformat

    original = _original_path(mine)
    if not original.exists():
        raise UpdateError(
            f"{mine.name} was begun before the course kept the originals, so it cannot tell your text from its own. "
            f"Rename your file, run make lab for the new one, and copy your answers into it."
        )
    if _same_bytes(original, source):
        return None, []
    try:
        base, local, remote = (nbformat.read(path, as_version=4) for path in (original, mine, source))
    except (OSError, ValueError, nbformat.ValidationError) as error:
        raise UpdateError(f"{mine.name} cannot be read as a notebook ({error}). Nothing was changed.") from None
    merged, both = merge(base, local, remote)
    old = _backup_path(mine)
    shutil.copyfile(mine, old)
    _write_atomically(nbformat.writes(merged).encode(), mine)
    keep_original(mine.parent, source)
    return old, both


def merge(base, local, remote) -> tuple[object, list[str]]:
    """Merge the changes to `base` by the student (`local`) and the course (`remote`) into one notebook; see `update`."""
    import nbformat

    _identify(local, base)
    was, mine, new = ({cell.id: cell for cell in notebook.cells} for notebook in (base, local, remote))
    merged, both = copy.deepcopy(remote), []
    merged.cells = [cell for cell in merged.cells if cell.id in mine or cell.id not in was or cell.source != was[cell.id].source]
    for cell in merged.cells:
        if cell.id in was and cell.id in mine:
            text = _merged_text(was[cell.id], mine[cell.id], cell)
            if not _added_lines(was[cell.id].source, cell.source) <= set(text.splitlines()):
                both.append(_first_line(text))
            cell.source = text
        if cell.cell_type == "code" and cell.id in mine and mine[cell.id].source == cell.source:
            cell.outputs, cell.execution_count = mine[cell.id].outputs, mine[cell.id].execution_count
    before = None
    for cell in local.cells:  # the student's own cells, and changed cells that the course removed, follow the same cell as before
        if cell.id not in new and (cell.id not in was or cell.source != was[cell.id].source):
            place = next((i + 1 for i, other in enumerate(merged.cells) if other.id == before), 0)
            merged.cells.insert(place, cell)
        before = cell.id if any(cell.id == other.id for other in merged.cells) else before
    nbformat.validate(merged)
    return merged, both


def _identify(local, base) -> None:
    """Restore missing cell ids, which some editors drop, by the grading name or the text."""
    known, there = {cell.id for cell in base.cells}, {cell.id for cell in local.cells}
    for cell in local.cells:
        grade = cell.metadata.get("nbgrader", {}).get("grade_id")
        for other in base.cells:
            same = (grade and grade == other.metadata.get("nbgrader", {}).get("grade_id")) or cell.source == other.source
            if cell.id not in known and other.id not in there and same:
                cell.id = other.id
                there.add(other.id)


def _merged_text(was, mine, new) -> str:
    """Merge both texts of a cell; where they conflict, the student's is kept."""
    if mine.source == was.source or mine.source == new.source:
        return new.source
    from nbdime.merging.notebooks import merge_notebooks
    from nbformat.v4 import new_code_cell, new_notebook

    one, two, three = (new_notebook(cells=[new_code_cell(cell.source, id="text")]) for cell in (was, mine, new))
    merged, _ = merge_notebooks(one, two, three, MERGE_OPTIONS)
    text = merged["cells"][0]["source"]
    return text if _added_lines(was.source, mine.source) <= set(text.splitlines()) else mine.source


def _added_lines(before: str, after: str) -> set[str]:
    """Lines of `after` that are not in `before`."""
    return set(after.splitlines()) - set(before.splitlines())


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip() and not line.startswith("%%")), "an empty cell")


def _original_path(mine: Path) -> Path:
    return mine.parent / ORIGINALS / mine.name


def _cells(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]


def _same_bytes(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def _backup_path(mine: Path) -> Path:
    """Return an unused name for the previous version."""
    names = (f"{mine.stem}.old{number}.ipynb" for number in ("", *range(2, 1000)))
    return next(path for name in names if not (path := mine.with_name(name)).exists())


def _write_atomically(data: bytes, path: Path) -> None:
    """Write a file atomically."""
    partial = path.with_suffix(".part")
    partial.write_bytes(data)
    os.replace(partial, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", help="such as 03_naive_forward; by default all that have changed")
    part = parser.parse_args().part
    root = Path(__file__).resolve().parents[2]
    notebooks, work = root / "notebooks", Path(os.environ.get("COURSE_WORK") or root / "my_work")  # on a hub, in the user's home
    sources = {path.stem: path for path in sorted(notebooks.glob("*/*.ipynb"))}
    if part and part not in sources:
        sys.exit(f"There is no part {part!r}; the parts are {', '.join(sources)}.")
    chosen = [part] if part else [path.stem for path in outdated(notebooks, work)]
    for name in chosen:
        mine = work / sources[name].name
        if not mine.exists():
            sys.exit(f"{mine.name} is not in {work.name}/ yet: make lab copies it there.")
        try:
            old, both = update(mine, sources[name])
        except UpdateError as error:
            sys.exit(f"{error}")
        if old is None:
            print(f"{mine.name} is up to date.")
            continue
        print(f"{mine.name} has the new text and your cells. The previous version: {work.name}/{old.name}.")
        print("  If it is open in JupyterLab: File, Reload Notebook from Disk.")
        for line in both:
            print(f'  You and the course have both changed the cell that begins with "{line}". Your text was kept.')
    if not chosen:
        print(f"All notebooks in {work.name}/ are up to date.")


if __name__ == "__main__":
    main()

"""`make release`: build notebooks/ from solutions/, without solutions, hidden tests and outputs."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat

from grading.authoring import badges, build
from grading.config import GradingConfigError, gradebook, gradebook_lock, load
from grading.paths import GRADING, NOTEBOOKS, ROOT, selected_parts


def release(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> Path:
    """Release one part, and register it in nbgrader's gradebook.

    Parameters
    ----------
    part : str
        Name of a folder of `solutions/`.
    home : Path
        nbgrader's folder: source/ and gradebook.db are written there.
    notebooks : Path
        Folder for the students' notebook.

    Returns
    -------
    Path
        The students' notebook.
    """
    notebooks.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=notebooks, prefix=".") as folder:  # the old one stays until the new one is complete
        made, path = _build_release(part, home, Path(folder)), notebooks / part / f"{part}.ipynb"
        path.parent.mkdir(exist_ok=True)
        os.replace(made, path)
    return path


def register(part: str, home: Path = GRADING) -> None:
    """Register a part for grading only: bring nbgrader's source and gradebook up to date with `solutions/`, and release nothing."""
    with tempfile.TemporaryDirectory(prefix="course-release-") as folder:
        _build_release(part, home, Path(folder))


def _build_release(part: str, home: Path, folder: Path) -> Path:
    """Write nbgrader's source, update the gradebook, and make the students' notebook in a folder."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory

    from grading.running.gradebook_writer import GradebookWriter

    source, config = build.build(part), load(home, folder)
    with gradebook(config) as book:
        GradebookWriter(book, config).sync_cells(part, source)
    path = home / "source" / part / f"{part}.ipynb"
    before = path.read_bytes() if path.exists() else None
    build.write(source, path)
    config.CourseDirectory.assignment_id = part
    config.GenerateAssignment.force = True
    config.GenerateAssignment.create_assignment = True
    try:
        GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()
    except BaseException:  # submissions are not graded against what was not released
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)
        raise
    made = folder / part / f"{part}.ipynb"
    notebook = nbformat.read(made, as_version=4)
    badges.add(notebook, part, badges.repository())
    build.write(notebook, made)
    made.chmod(0o644)
    return made


def in_table(text: str, part: str, points: float) -> str:
    """Return README's text with the points of a part updated in its table."""
    return re.sub(rf"^(\|.*\(notebooks/{part}/.*\| *)\d+( *\|)$", rf"\g<1>{points:g}\2", text, flags=re.MULTILINE)


def main() -> None:
    try:
        with gradebook_lock():
            _release_all(selected_parts(sys.argv[1:]))
    except (GradingConfigError, build.SourceError) as problem:
        sys.exit(str(problem))


def _release_all(parts: list[str]) -> None:
    readme = ROOT / "README.md"
    for part in parts:
        path = release(part)
        text = readme.read_text(encoding="utf-8")
        if (now := in_table(text, part, build.points(build.build(part)))) != text:
            build.write_atomically(now, readme)
        print(f"{path.relative_to(NOTEBOOKS.parent)}")


if __name__ == "__main__":
    main()

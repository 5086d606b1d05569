"""`make release`: build notebooks/ from solutions/, without solutions, hidden tests and outputs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat
from traitlets.config import Config

from grading import build
from grading.config import configure
from grading.paths import GRADING, NOTEBOOKS, chosen


def release(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> Path:
    """Release one part, and tell nbgrader's gradebook of it.

    Parameters
    ----------
    part : str
        Name of a folder of `solutions/`.
    home : Path
        nbgrader's folder: source/ and gradebook.db are written there.
    notebooks : Path
        Where the students' notebook is written.

    Returns
    -------
    Path
        The students' notebook.
    """
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory

    build.write(build.build(part), home / "source" / part / f"{part}.ipynb")
    config = configure(Config(), home, notebooks)
    config.CourseDirectory.assignment_id = part
    config.GenerateAssignment.force = True
    config.GenerateAssignment.create_assignment = True
    shutil.rmtree(notebooks / part, ignore_errors=True)
    GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()
    path = notebooks / part / f"{part}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    build.write(notebook, path)
    path.chmod(0o644)
    return path


def main() -> None:
    for part in chosen(sys.argv[1:]):
        path = release(part)
        print(f"{path.relative_to(NOTEBOOKS.parent)}")


if __name__ == "__main__":
    main()

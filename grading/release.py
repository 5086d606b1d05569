"""`make release`: build notebooks/ from solutions/, without solutions, hidden tests and outputs."""

from __future__ import annotations

import os
import sys
import tempfile
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
    notebooks.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=notebooks, prefix=".") as folder:  # the old one stays until the new one is whole
        config = configure(Config(), home, Path(folder))
        config.CourseDirectory.assignment_id = part
        config.GenerateAssignment.force = True
        config.GenerateAssignment.create_assignment = True
        GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()
        made, path = Path(folder) / part / f"{part}.ipynb", notebooks / part / f"{part}.ipynb"
        build.write(nbformat.read(made, as_version=4), made)
        made.chmod(0o644)
        path.parent.mkdir(exist_ok=True)
        os.replace(made, path)
    return path


def main() -> None:
    for part in chosen(sys.argv[1:]):
        path = release(part)
        print(f"{path.relative_to(NOTEBOOKS.parent)}")


if __name__ == "__main__":
    main()

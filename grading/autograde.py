"""`make autograde PART=...`: grade all that lies in grading/submitted/, and resume if interrupted."""

from __future__ import annotations

import glob
import importlib
import json
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

import nbformat
from traitlets.config import Config

from grading import build, flags, own_process, sandbox
from grading.build import write
from grading.config import configure, reason
from grading.paths import GRADING, NOTEBOOKS, one, parts
from grading.release import release
from grading.submission import NotReadable, assemble, fingerprint, is_plain, read

DEADLINE = 900  # seconds for a hand-in, beside the limits of its cells
MEMORY = 2 << 30  # bytes for the process that grades a hand-in, and as many for its kernel


def waiting(part: str, home: Path = GRADING) -> list[str]:
    """The students whose hand-in of this part is not graded yet, or was replaced since."""
    found = []
    for folder in sorted((home / "submitted").glob(f"*/{part}")):
        student, submitted = folder.parent.name, folder / f"{part}.ipynb"
        graded = home / "autograded" / student / part / f"{part}.ipynb"
        try:
            mark = json.loads(graded.read_text())["metadata"]["course"]["graded"]
        except (OSError, ValueError, KeyError):
            mark = None
        if not submitted.exists() or mark != fingerprint(submitted):
            found.append(student)
    return found


def grade(part: str, student: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> None:
    """Grade one hand-in, with nbgrader's autograde.

    Raises
    ------
    Exception
        Whatever made it impossible: no notebook of the right name, a file that is no notebook.
    """
    from nbgrader.converters import Autograde
    from nbgrader.coursedir import CourseDirectory

    config = configure(Config(), home, notebooks)
    config.CourseDirectory.assignment_id = part
    config.CourseDirectory.student_id = glob.escape(student)
    config.Autograde.force = True
    config.Autograde.create_student = True
    warnings.filterwarnings("ignore", module="nbgrader")
    # nbgrader sees the student's code cells and no other file: one called numpy.py, say, would be imported.
    with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:
        handed_in, copy = home / "submitted" / student / part, Path(folder) / student / part
        write(
            assemble(nbformat.read(home / "source" / part / f"{part}.ipynb", 4), read(handed_in / f"{part}.ipynb")), copy / f"{part}.ipynb"
        )
        if is_plain(handed_in / "timestamp.txt", 1024):
            shutil.copyfile(handed_in / "timestamp.txt", copy / "timestamp.txt")
        config.CourseDirectory.submitted_directory = folder
        Autograde(coursedir=CourseDirectory(config=config), config=config).start()


def autograde(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> list[str]:
    """Grade every hand-in of a part that waits; returns the students for whom it failed."""
    from tqdm import tqdm

    source = home / "source" / part / f"{part}.ipynb"
    if not (home / "gradebook.db").exists() or not source.exists():
        release(part, home, notebooks)
    elif part in parts() and source.read_text() != nbformat.writes(build.build(part), version=4):
        print(f"Note: solutions/{part} has changed since its release, and this grades by the release. To use it: make release PART={part}")
    todo = waiting(part, home)
    done = len(list((home / "submitted").glob(f"*/{part}"))) - len(todo)
    if not todo:
        print(
            f"{part}: nothing to grade; {done} hand-ins are graded." if done else f"{part}: no hand-ins in {home / 'submitted'}/*/{part}/."
        )
        return []
    print(f"{part}: {len(todo)} to grade, {done} graded before. {sandbox.notice()}")
    failed = []
    importlib.import_module("nbgrader.converters")  # once, and not in each hand-in's process
    with tqdm(total=len(todo), unit="hand-in") as bar:
        for i, student in enumerate(todo):
            began = time.monotonic()
            problem = alone(part, student, home, notebooks)
            if problem:
                failed.append(student)
            lines = 0 if problem else len(flags.of(student, part, home))
            look = f", {lines} line{'s' * (lines > 1)} to look at" if lines else ""
            said = f"NOT graded: {problem}" if problem else f"graded{look}"
            bar.write(f"{student}: {said}, {time.monotonic() - began:.1f} s, {len(todo) - i - 1} left")
            bar.update()
    if table := flags.write(home):
        print(f"Lines that a person may want to look at, of all parts: {table}")
    return failed


def alone(part: str, student: str, home: Path, notebooks: Path) -> str | None:
    """Grade one hand-in in a process of its own; why it could not be graded, or None."""
    if "[" in student or not student.isprintable():
        return "nbgrader cannot have [ or what is no letter in a folder's name, which is the student's; rename the folder"
    return own_process.told(_grade_and_tell, (part, student, home, notebooks), DEADLINE, MEMORY)


def _grade_and_tell(part: str, student: str, home: Path, notebooks: Path) -> str | None:
    try:
        grade(part, student, home, notebooks)
    except NotReadable as problem:
        return str(problem)
    except (Exception, SystemExit):
        return _why(part, student, home)
    return None


def _why(part: str, student: str, home: Path) -> str:
    folder = home / "submitted" / student / part
    if not (folder / f"{part}.ipynb").exists():
        return f"expected {part}.ipynb in {folder}; there is {', '.join(sorted(p.name for p in folder.iterdir())) or 'nothing'}"
    return reason(home)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # whatever a folder is called
    part = one(sys.argv[1:], "make autograde PART=01_data_split")
    try:
        failed = autograde(part)
    except sandbox.NoSandbox as problem:
        sys.exit(str(problem))
    except KeyboardInterrupt:
        sys.exit(f"\nInterrupted. Every grade so far is kept; `make autograde PART={part}` goes on from here.")
    if failed:
        sys.exit(f"Not graded: {', '.join(failed)}. The log is grading/.nbgrader.log; they are tried again next time.")


if __name__ == "__main__":
    main()

"""`make autograde PART=...`: grade all that lies in grading/submitted/, and resume if interrupted."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path

import nbformat
from traitlets.config import Config

from course_lib.cluster import launch, startup
from grading import build, sandbox
from grading.config import configure, reason
from grading.execute import fingerprint
from grading.paths import GRADING, NOTEBOOKS, one, parts
from grading.release import release


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
    config.CourseDirectory.student_id = student
    config.Autograde.force = True
    config.Autograde.create_student = True
    warnings.filterwarnings("ignore", module="nbgrader")
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
    count = json.loads(source.read_text())["metadata"]["course"]["ranks"]
    settings = sandbox.settings()
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    failed, ready = [], launch.launch(count)
    try:
        with tqdm(total=len(todo), unit="hand-in") as bar:
            for i, student in enumerate(todo):
                began = time.monotonic()
                # Every hand-in has ranks of its own; the next ones come up meanwhile.
                current, ready = ready, launch.launch(count) if i + 1 < len(todo) else None
                os.environ[startup.PRESTARTED] = str(current.folder)
                try:
                    grade(part, student, home, notebooks)
                    said = "graded"
                except (Exception, SystemExit):
                    failed.append(student)
                    said = f"NOT graded: {_why(part, student, home)}"
                finally:
                    current.stop()
                bar.write(f"{student}: {said}, {time.monotonic() - began:.1f} s, {len(todo) - i - 1} left")
                bar.update()
    finally:
        os.environ.pop(startup.PRESTARTED, None)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        if ready:
            ready.stop()
    return failed


def _why(part: str, student: str, home: Path) -> str:
    folder = home / "submitted" / student / part
    if not (folder / f"{part}.ipynb").exists():
        return f"expected {part}.ipynb in {folder}; there is {', '.join(sorted(p.name for p in folder.iterdir())) or 'nothing'}"
    return reason(home)


def main() -> None:
    part = one(sys.argv[1:], "make autograde PART=01_data_split")
    try:
        failed = autograde(part)
    except KeyboardInterrupt:
        sys.exit(f"\nInterrupted. Every grade so far is kept; `make autograde PART={part}` goes on from here.")
    if failed:
        sys.exit(f"Not graded: {', '.join(failed)}. The log is grading/.nbgrader.log; they are tried again next time.")


if __name__ == "__main__":
    main()

"""`make feedback PART=...`: HTML for each student, without a hidden test's source or an expected value."""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
from pathlib import Path

from grading import own_process
from grading.config import load, reason
from grading.paths import GRADING, NOTEBOOKS, one

DEADLINE, MEMORY = 60, 2 << 30  # seconds and bytes for the page of one student


def feedback(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS) -> dict[str, str]:
    """Write feedback/STUDENT/PART/PART.html for all that is graded.

    Returns
    -------
    dict of str to str
        Whose page could not be written, and why, in a sentence.
    """
    importlib.import_module("nbgrader.converters")  # once, and not in each process
    students = sorted(folder.parent.name for folder in (home / "autograded").glob(f"*/{part}"))
    told = {student: own_process.told(_page, (part, home, notebooks, student), DEADLINE, MEMORY) for student in students}
    return {student: problem for student, problem in told.items() if problem}


def _page(part: str, home: Path, notebooks: Path, student: str) -> str | None:
    from nbgrader.converters import GenerateFeedback
    from nbgrader.coursedir import CourseDirectory

    config = load(home, notebooks)
    config.CourseDirectory.assignment_id = part
    config.GenerateFeedback.force = True
    with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:  # nbgrader sees nobody else's: a student's name may be a pattern
        shutil.copytree(home / "autograded" / student / part, Path(folder) / student / part)
        config.CourseDirectory.autograded_directory = folder
        try:
            GenerateFeedback(coursedir=CourseDirectory(config=config), config=config).start()
        except (Exception, SystemExit):
            return reason(home)
    return None


def main() -> None:
    part = one(sys.argv[1:], "make feedback PART=01_data_split")
    if not list((GRADING / "autograded").glob(f"*/{part}")):
        sys.exit(f"{part}: nothing is graded yet. First: make autograde PART={part}.")
    problems = feedback(part)
    print(f"{len(list((GRADING / 'feedback').glob(f'*/{part}/*.html')))} pages in grading/feedback/*/{part}/")
    if problems:
        sys.exit("\n".join(f"{student}: no page, {problem}" for student, problem in problems.items()))


if __name__ == "__main__":
    main()

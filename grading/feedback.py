"""`make feedback PART=...`: HTML for each student, without a hidden test's source or an expected value."""

from __future__ import annotations

import sys
from pathlib import Path

from traitlets.config import Config

from grading.config import configure
from grading.paths import GRADING, NOTEBOOKS, one


def feedback(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS, students: str = "*") -> None:
    """Write feedback/STUDENT/PART/PART.html for all that is graded."""
    from nbgrader.converters import GenerateFeedback
    from nbgrader.coursedir import CourseDirectory

    config = configure(Config(), home, notebooks)
    config.CourseDirectory.assignment_id = part
    config.CourseDirectory.student_id = students
    config.GenerateFeedback.force = True
    GenerateFeedback(coursedir=CourseDirectory(config=config), config=config).start()


def main() -> None:
    part = one(sys.argv[1:], "make feedback PART=01_data_split")
    if not list((GRADING / "autograded").glob(f"*/{part}")):
        sys.exit(f"{part}: nothing is graded yet. First: make autograde PART={part}.")
    feedback(part)
    print(f"{len(list((GRADING / 'feedback').glob(f'*/{part}/*.html')))} pages in grading/feedback/*/{part}/")


if __name__ == "__main__":
    main()

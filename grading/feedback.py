"""`make feedback PART=...`: HTML for each student, without a hidden test's source or an expected value."""

from __future__ import annotations

import sys
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets.config import Config

from grading.build import kind_of
from grading.paths import GRADING, NOTEBOOKS, one

# Errors whose text is written for students: see course_lib.check and course_lib.px.
TOLD = ("CheckFailed", "RanksError", "RanksGone", "NotGraded")


class HideTests(NbGraderPreprocessor):
    """Put what a hidden test found in the place of its source."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if kind_of(cell) != "test":
            return cell, resources
        cell.source = "# A hidden test: " + cell.metadata.nbgrader.grade_id.removeprefix("test-").replace("-", " ")
        errors = [o for o in cell.outputs if o.output_type == "error"]
        cell.outputs = []
        for error in errors:
            told = error.ename in TOLD
            text = error.evalue if told else f"The test ended with {error.ename}. Please tell your instructor."
            lines = error.traceback if told else [text]
            cell.outputs.append(NotebookNode(output_type="error", ename=error.ename, evalue=text, traceback=lines))
        return cell, resources


def feedback(part: str, home: Path = GRADING, notebooks: Path = NOTEBOOKS, students: str = "*") -> None:
    """Write feedback/STUDENT/PART/PART.html for all that is graded."""
    from nbgrader.converters import GenerateFeedback
    from nbgrader.coursedir import CourseDirectory

    from grading.config import configure

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

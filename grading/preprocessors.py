"""What takes the place of nbgrader's own steps: they are called in the order of `config`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import Execute, NbGraderPreprocessor

from course_lib.cluster import unattended
from grading import sandbox
from grading.build import kind_of
from grading.execute import fingerprint, on_ranks, settle
from grading.submission import assemble

CELL_SECONDS = 60  # what a cell of a submission may take

# Errors whose text is written for students: see course_lib.check and course_lib.cluster.replies.
TOLD = ("CheckFailed", "RanksError", "RanksGone", "NotGraded")


class TakeStudentCells(NbGraderPreprocessor):
    """The first step of autograding; see `assemble`."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        names = resources["nbgrader"]
        folder = Path(self.config.CourseDirectory.source_directory) / names["assignment"]
        source = nbformat.read(folder / f"{names['notebook']}.ipynb", as_version=4)
        return assemble(source, nb), resources


class ExecuteOnRanks(Execute):
    """nbgrader's Execute, with the student's cells on the ranks."""

    def preprocess(self, nb: NotebookNode, resources: dict, *args, **kwargs) -> tuple[NotebookNode, dict]:
        # Not the submission's folder: a file there, numpy.py say, would be imported by the checker.
        with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:
            resources.setdefault("metadata", {})["path"] = folder
            settings = {unattended.UNATTENDED: os.environ.get(unattended.UNATTENDED, str(CELL_SECONDS)), **sandbox.settings()}
            before = {name: os.environ.get(name) for name in settings}
            os.environ.update(settings)
            try:
                nb, resources = super().preprocess(nb, resources, *args, **kwargs)
            finally:
                for name, value in before.items():
                    os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        for cell in nb.cells:
            if kind_of(cell) == "test":
                settle(cell)
        return nb, resources

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        kind = kind_of(cell)
        if kind == "text" or not cell.source.strip():
            return cell, resources
        source = cell.source
        tags, cell.metadata.tags = cell.metadata.get("tags", []), []
        try:
            if kind in ("exercise", "example"):
                cell.source = on_ranks(source)
            return super().preprocess_cell(cell, resources, index)
        finally:
            cell.source, cell.metadata.tags = source, tags


class MarkGraded(NbGraderPreprocessor):
    """The last step of autograding: note which hand-in it was, so that a run can be resumed."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        names = resources["nbgrader"]
        folder = Path(self.config.CourseDirectory.root) / "submitted" / names["student"] / names["assignment"]
        nb.metadata.setdefault("course", {})["graded"] = fingerprint(folder / f"{names['notebook']}.ipynb")
        return nb, resources


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

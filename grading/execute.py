"""Run a submission: the student's cells on the ranks only, the instructor's in the kernel.

So the checker never shares a process with the student's code: that code never runs in the
kernel, and what a rank sends to the kernel is never unpickled (see `course_lib.client`).
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.preprocessors import Execute, NbGraderPreprocessor

from course_lib import ranks
from grading import sandbox
from grading.build import kind_of


def on_ranks(source: str) -> str:
    """Kernel code that runs a student's cell on the ranks, whatever the cell contains.

    >>> on_ranks("%%px --targets 1\\nx = 1")
    "get_ipython().run_cell_magic('px', '--targets 1', 'x = 1')"
    """
    first, _, rest = source.lstrip().partition("\n")
    if not first.startswith("%%px"):
        return f"get_ipython().run_cell_magic('px', '', {source!r})"
    targets = re.search(r"(?:--targets|-t)[ =]([\d,:]+)", first)
    return f"get_ipython().run_cell_magic('px', {'--targets ' + targets[1] if targets else ''!r}, {rest!r})"


class ExecuteOnRanks(Execute):
    """nbgrader's Execute, with the student's cells on the ranks."""

    def preprocess(self, nb: NotebookNode, resources: dict, *args, **kwargs) -> tuple[NotebookNode, dict]:
        from grading.config import CELL_SECONDS

        # Not the submission's folder: a file there, numpy.py say, would be imported by the checker.
        with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:
            resources.setdefault("metadata", {})["path"] = folder
            settings = {ranks.UNATTENDED: os.environ.get(ranks.UNATTENDED, str(CELL_SECONDS)), **sandbox.settings()}
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


def settle(cell: NotebookNode) -> None:
    """Leave in a test's outputs nothing but its verdict: no output for a pass, or one error.

    nbgrader gives full marks for an output that it does not understand, and none for a warning;
    here a test passes when it ran to its end, showing at most one number as its score.
    """
    errors = [o for o in cell.outputs if o.output_type == "error"]
    results = [o for o in cell.outputs if o.output_type == "execute_result"]
    if errors:
        cell.outputs = errors[:1]
    elif cell.execution_count is None:
        cell.outputs = [_error("the test did not run")]
    elif len(results) > 1 or any(not _is_score(r, cell) for r in results):
        cell.outputs = [_error("the test showed something that is no score from 0 to its points")]
    else:
        cell.outputs = results


def _is_score(output: NotebookNode, cell: NotebookNode) -> bool:
    try:
        return 0 <= float(output.data["text/plain"]) <= cell.metadata.nbgrader["points"]
    except (KeyError, ValueError):
        return False


def _error(message: str) -> NotebookNode:
    return NotebookNode(output_type="error", ename="NotGraded", evalue=message, traceback=[f"NotGraded: {message}"])


def fingerprint(path: Path) -> str:
    """What tells one hand-in from the next."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class MarkGraded(NbGraderPreprocessor):
    """The last step of autograding: note which hand-in it was, so that a run can be resumed."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        names = resources["nbgrader"]
        folder = Path(self.config.CourseDirectory.root) / "submitted" / names["student"] / names["assignment"]
        nb.metadata.setdefault("course", {})["graded"] = fingerprint(folder / f"{names['notebook']}.ipynb")
        return nb, resources

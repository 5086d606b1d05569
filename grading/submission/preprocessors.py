"""Replacements for nbgrader's own preprocessors, called in the order of `config`."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets.config import Config

from course_lib.cluster import image_limits, time_limits
from course_lib.cluster.source import cell as cells
from grading.authoring.build import EXPERIMENT_TAG, FOLDED_TAG, WRITTEN_ANSWER, kind_of, only_shows
from grading.formatting import display_name
from grading.submission import flags, notes, sandbox
from grading.submission.assembly import ADDED_CELL_TAG, assemble, fingerprint, read_cells
from grading.submission.execute import environment_variables, ipc_kernel_config, is_for_ranks, on_ranks, reduce_to_verdict
from grading.submission.regrade_key import regrade_key

SUBMISSION_CELL_SECONDS = 30  # seconds for a cell of a submission
ADDED_CELLS_TIME_FACTOR = 1.5  # time for all cells that a student added, as a multiple of the above
MAX_OUTPUT_CHARS = 5_000_000  # characters of the outputs of all cells together
MAX_STUDENT_ERROR_CHARS = (
    300  # of what the student's code raised in a hidden test, and of each line that led to it: they may reveal the test
)
MAX_STUDENT_ERROR_LINES = 20

# Errors whose text is written for students: see course_lib.check and course_lib.cluster.replies.
ERRORS_FOR_STUDENTS = ("CheckFailed", "RanksError", "RanksGone", "NotGraded")

IN_AN_EXPERIMENT = (
    "grading does not run experiments; a function that an exercise needs belongs in the exercise's cell, or in one of your own."
)
DEFINED_NAME = re.compile(r"^(?:async def|def|class) +(\w+)", re.MULTILINE)


class StartFailed(Exception):
    """Ranks or kernel could not be started, which is not the student's fault: the tests' results are not a verdict."""


class TakeStudentCells(NbGraderPreprocessor):
    """First step of autograding: see `assemble`."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        return assemble(_source(self.config, resources), read_cells(nbformat.writes(nb).encode())), resources


class ExecuteOnRanks(Execute):
    """nbgrader's Execute, with the student's cells on the ranks."""

    tell: Callable[[NotebookNode], None] | None = None  # called with each hidden test after it has run
    _broken: dict[str, str]  # functions and classes whose cell raised, and the error
    _added = 0.0  # seconds that the added cells have taken
    _shown = 0  # characters of all outputs so far

    def preprocess(self, nb: NotebookNode, resources: dict, *args, **kwargs) -> tuple[NotebookNode, dict]:
        self._broken = {}
        # Not the submission's folder: a file there, such as numpy.py, would be imported by the checker.
        with tempfile.TemporaryDirectory(prefix="course-grade-") as folder:
            resources.setdefault("metadata", {})["path"] = folder
            self.update_config(ipc_kernel_config(folder))
            settings = {
                time_limits.UNATTENDED: os.environ.get(time_limits.UNATTENDED, str(SUBMISSION_CELL_SECONDS)),
                **sandbox.sandbox_variables(),
            }
            with environment_variables(settings):
                try:
                    nb, resources = super().preprocess(nb, resources, *args, **kwargs)
                except RuntimeError as error:
                    if str(error).startswith("Kernel "):  # as jupyter_client and nbclient word it
                        raise StartFailed(f"the notebook's kernel did not start, or ended: {error}") from error
                    raise
        for cell in nb.cells:
            if kind_of(cell) == "test":
                reduce_to_verdict(cell)  # again, for those that did not get to run
        return nb, resources

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        kind = kind_of(cell)
        if kind in ("text", WRITTEN_ANSWER) or not cell.source.strip():
            return cell, resources
        if kind == "example" and not is_for_ranks(cell.source):
            # It ran in the student's kernel; on the ranks, it would change their variables.
            why = "without %%px at the top, this cell is not for the ranks"
            return _not_run(cell, cells.read(cell.source).problem or why), resources
        if notes.NOT_RUN_TAG in cell.metadata.get("tags", []):
            return _not_run(cell, notes.BELOW_TESTS), resources
        experiment = kind == "example" and not {EXPERIMENT_TAG, FOLDED_TAG}.isdisjoint(cell.metadata.get("tags", []))
        if only_shows(cell) or experiment:
            _not_run(cell, "it shows, tries out or saves something, and no grade depends on it")
            self._broken |= dict.fromkeys(DEFINED_NAME.findall(cell.source) if experiment else [], IN_AN_EXPERIMENT)
            return cell, resources
        added = ADDED_CELL_TAG in cell.metadata.get("tags", [])
        if added and self._added > (most := ADDED_CELLS_TIME_FACTOR * (time_limits.limit() or SUBMISSION_CELL_SECONDS)):
            limit = f"the limit for all of them is {most:.0f} s"
            why = f"the added cells took {self._added:.0f} s, and {limit}"
            notes.add(cell, f"did not run: {why}", cell.source)
            return _not_run(cell, why), resources
        source, began = cell.source, time.monotonic()
        tags, cell.metadata.tags = cell.metadata.get("tags", []), []
        try:
            if kind in ("exercise", "example"):
                title = "" if added else _title(cell)
                cell.source = on_ranks(source, title, whole=kind == "exercise")
                self._broken |= notes.not_code(cell)
            cell, resources = super().preprocess_cell(cell, resources, index)
            self._explain(kind, source, cell)
            if dead := next((o for o in cell.outputs if o.get("ename") == "StartError"), None):
                raise StartFailed(f"the ranks did not start: {dead.evalue}")
            if kind != "test":
                self._shown += len(json.dumps(cell.outputs))
                if self._shown > MAX_OUTPUT_CHARS:
                    text = f"left out: the outputs of this notebook exceed {MAX_OUTPUT_CHARS / 1e6:.0f} MB"
                    cell.outputs = [new_output("stream", text=text)]
            elif self.tell:
                reduce_to_verdict(cell)
                self.tell(cell)
            return cell, resources
        finally:
            cell.source, cell.metadata.tags = source, tags
            self._added += (time.monotonic() - began) * added

    def _explain(self, kind: str, source: str, cell: NotebookNode) -> None:
        """If a test misses a function, add what the function's cell raised."""
        for error in [output for output in cell.outputs if output.output_type == "error"]:
            if kind == "exercise":
                self._broken |= dict.fromkeys(DEFINED_NAME.findall(source), error.evalue.partition("\n")[0][:MAX_STUDENT_ERROR_CHARS])
            missed = re.search(r"name '(\w+)' is not defined", error.evalue) if kind == "test" else None
            if missed and missed[1] in self._broken:
                why = f" Its cell did not run: {self._broken[missed[1]]}"
                error.evalue += why
                error.traceback = [*error.traceback, why.strip()]


def _not_run(cell: NotebookNode, why: str) -> NotebookNode:
    """Say in a cell's output why it was not run."""
    cell.outputs = [new_output("stream", text=f"not run when grading: {why}")]
    return cell


def _title(cell: NotebookNode) -> str:
    """Return the name of the exercise, or the cell's title."""
    names = (name for name in DEFINED_NAME.findall(cell.source) if cell.id == f"exercise-{name.lower().replace('_', '-')}")
    return next(names, display_name(cell.id))


class MarkGraded(NbGraderPreprocessor):
    """Last step of autograding: record which submission it was, so that a run can be resumed, and which lines to look at."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        names = resources["nbgrader"]
        folder = Path(self.config.CourseDirectory.root) / "submitted" / names["student"] / names["assignment"]
        course = nb.metadata.setdefault("course", {})
        source = _source(self.config, resources)
        course["graded"] = fingerprint((folder / f"{names['notebook']}.ipynb").read_bytes())
        course["key"] = regrade_key(source)
        course["flags"] = flags.find_flags(nb, source)
        return nb, resources


def _source(config: Config, resources: dict) -> NotebookNode:
    """Return the released part."""
    names = resources["nbgrader"]
    return nbformat.read(Path(config.CourseDirectory.source_directory) / names["assignment"] / f"{names['notebook']}.ipynb", as_version=4)


def _start(text: str) -> str:
    return text if len(text) <= MAX_STUDENT_ERROR_CHARS else f"{text[:MAX_STUDENT_ERROR_CHARS]} (truncated)"


class LimitPictures(NbGraderPreprocessor):
    """Replace pictures that are too large, or too many of a notebook's pictures together, by a message."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        room = image_limits.MAX_NOTEBOOK_PIXELS
        for output in (output for cell in nb.cells if cell.cell_type == "code" for output in cell.outputs):
            if "data" in output:
                kept, used = image_limits.allowed_images(output.data, room)
                output.data, room = NotebookNode(kept), room - used
        return nb, resources


class HideTests(NbGraderPreprocessor):
    """Replace the source of a hidden test by its result."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if kind_of(cell) != "test":
            return cell, resources
        cell.source = f"# A hidden test: {display_name(cell.metadata.nbgrader.grade_id)}"
        errors = [o for o in cell.outputs if o.output_type == "error"]
        cell.outputs = []
        for error in errors:
            is_shown = error.ename in ERRORS_FOR_STUDENTS
            text = error.evalue if is_shown else f"The test ended with {error.ename}. Please tell your instructor."
            lines = error.traceback if is_shown else [text]
            if error.ename == "RanksError":
                text, lines = _start(text), [_start(line) for line in "\n".join(lines).splitlines()]
                lines = (
                    lines
                    if len(lines) <= MAX_STUDENT_ERROR_LINES
                    else [*lines[: MAX_STUDENT_ERROR_LINES // 2], "...", *lines[-MAX_STUDENT_ERROR_LINES // 2 :]]
                )
            cell.outputs.append(NotebookNode(output_type="error", ename=error.ename, evalue=text, traceback=lines))
        return cell, resources

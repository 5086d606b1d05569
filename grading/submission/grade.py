"""Grade one submission, as a function of the released source and the submitted file only.

So it runs in any process, on any machine: `worker` calls it for `make autograde`, `autograders.runner`
on platforms that grade one submission at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode
from nbgrader.preprocessors import LimitOutput
from nbgrader.utils import determine_grade
from traitlets.config import Config

from grading.authoring.build import WRITTEN_ANSWER, YOUR_ANSWER, kind_of
from grading.submission import flags
from grading.submission.assembly import UnreadableSubmission, assemble, read_cells
from grading.submission.execute import environment_variables
from grading.submission.preprocessors import ExecuteOnRanks, LimitPictures, StartFailed

FORWARDED_OPTIONS = ("ExecuteOnRanks", "LimitOutput")  # nbgrader options that decide how a notebook is run


@dataclass(frozen=True)
class Task:
    """A submission to grade.

    Attributes
    ----------
    source : str
        The released part, with its hidden tests: a notebook as JSON.
    handed_in : bytes
        The submitted file.
    options : dict
        The nbgrader options in `FORWARDED_OPTIONS`.
    variables : dict of str to str
        Environment variables while grading: limits, and whether there is a sandbox.
    """

    source: str
    handed_in: bytes
    options: dict = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Graded:
    """The result of grading.

    Attributes
    ----------
    problem : str or None
        Why it could not be graded, in a sentence; then everything else is empty.
    notebook : str
        The executed notebook, as JSON.
    points : dict of str to float
        By the hidden test's grade id.
    flags : int
        Number of lines that a person may want to look at.
    seconds : float
    by_hand : float
        Maximum of the points that a person may give for written answers.
    lost : bool
        Whether another try may work: a process of the grader was killed.
    """

    problem: str | None = None
    notebook: str = ""
    points: dict[str, float] = field(default_factory=dict)
    flags: int = 0
    seconds: float = 0.0
    by_hand: float = 0.0
    lost: bool = False


def grade(task: Task, tell: Callable[[NotebookNode], None] | None = None) -> Graded:
    """Grade a submission, in this process.

    Parameters
    ----------
    task : Task
    tell : callable, optional
        Called with each hidden test's cell after it has run.
    """
    began = time.monotonic()
    source = nbformat.reads(task.source, as_version=4)
    try:
        notebook = assemble(source, read_cells(task.handed_in))
    except UnreadableSubmission as problem:
        return Graded(str(problem))
    config = Config(task.options)
    resources: dict = {"nbgrader": {}}
    execute = ExecuteOnRanks(config=config)
    execute.tell = tell
    with environment_variables(task.variables):
        try:
            notebook, resources = execute.preprocess(notebook, resources)
        except StartFailed as problem:
            return Graded(str(problem), lost=True)
        notebook, _ = LimitOutput(config=config).preprocess(notebook, resources)
        notebook, _ = LimitPictures(config=config).preprocess(notebook, resources)
    found = flags.find_flags(notebook, source)
    notebook.metadata.setdefault("course", {})["flags"] = found
    points = {cell.metadata.nbgrader.grade_id: score(cell) for cell in notebook.cells if kind_of(cell) == "test"}
    written = [cell for cell in notebook.cells if kind_of(cell) == WRITTEN_ANSWER and cell.source != YOUR_ANSWER]
    by_hand = sum(cell.metadata.nbgrader.points for cell in written)
    return Graded(None, nbformat.writes(notebook, version=4), points, len(found), time.monotonic() - began, by_hand)


def score(cell: NotebookNode) -> float:
    """Return the points of a hidden test, after `execute.reduce_to_verdict`."""
    return float(determine_grade(cell)[0])

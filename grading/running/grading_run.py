"""A grading run: submissions go to a backend, and the results are recorded by this process alone."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import nbformat
from nbgrader.utils import parse_utc
from traitlets.config import Config

from course_lib.cluster import time_limits
from grading.authoring import build
from grading.formatting import one_line, printable
from grading.people import ids
from grading.running import backends, worker
from grading.running.gradebook_writer import GradebookWriter
from grading.running.pending import NOT_GRADED
from grading.submission import sandbox
from grading.submission.assembly import UnreadableSubmission, fingerprint, is_regular_file, read_submission
from grading.submission.grade import FORWARDED_OPTIONS, Graded, Task
from grading.submission.regrade_key import regrade_key

MAX_WORKERS_TRIED = 3  # for one submission, if the worker that had it is lost
WORKER_CHECK_SECONDS = 60  # seconds without a result before checking whether there are workers left


@dataclass
class GradingOutcome:
    """Outcome for each submission.

    Attributes
    ----------
    graded : dict of str to Graded
        By student, without the notebooks.
    failed : dict of str to str
        Why a submission could not be graded.
    seconds : float
        Duration of the run.
    """

    graded: dict[str, Graded] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class GradingRun:
    """One run: submissions go to a backend, and the results are recorded by this process alone.

    Parameters
    ----------
    part : str
    home : Path
    source : NotebookNode
        The released part.
    settings : traitlets.config.Config
    book : GradebookWriter
    """

    def __init__(self, part: str, home: Path, source: nbformat.NotebookNode, settings: Config, book: GradebookWriter):
        self.part, self.home, self.book = part, home, book
        self.source, self.key = nbformat.writes(source, version=4), regrade_key(source)
        self.most = sum(cell.metadata.nbgrader.points for cell in source.cells if build.kind_of(cell) == "test")
        self.options = {name: dict(settings[name]) for name in FORWARDED_OPTIONS}
        names = (time_limits.UNATTENDED, sandbox.SANDBOX_VARIABLE)
        self.variables = {name: os.environ[name] for name in names if name in os.environ}

    def grade_all(self, students: list[str], engine: backends.Backend) -> GradingOutcome:
        """Grade these students' submissions."""
        from tqdm import tqdm

        run, began = GradingOutcome(), time.monotonic()
        with tqdm(total=len(students), unit="hand-in", smoothing=0.1, disable=None) as bar:  # no bar in a log
            for student, graded in self._results(students, engine):
                if graded.problem:
                    graded = Graded(one_line(graded.problem))
                    run.failed[student] = graded.problem
                else:
                    run.graded[student] = graded
                self._say_why(student, graded)
                left = len(students) - len(run.graded) - len(run.failed)
                bar.write(printable(self._line(student, graded, left)))
                bar.update()
        run.seconds = time.monotonic() - began
        return run

    def _say_why(self, student: str, graded: Graded) -> None:
        """Leave the reason beside a submission that could not be graded."""
        why = self.home / "submitted" / student / self.part / NOT_GRADED
        with contextlib.suppress(OSError):  # such as a folder that is read only
            if graded.problem:
                build.write_atomically(graded.problem, why)
            else:
                why.unlink(missing_ok=True)

    def _results(self, students: list[str], engine: backends.Backend) -> Iterator[tuple[str, Graded]]:
        """Yield results as they come; at most twice as many submissions are sent as are graded at a time, so that memory stays flat."""
        left, tries = deque(students), dict.fromkeys(students, 0)
        going: dict[Future, tuple[str, str, datetime | None]] = {}
        while left or going:
            while left and len(going) < 2 * engine.workers:
                student = left.popleft()
                try:
                    task, time = self._task(student), self._submitted_at(student)
                except UnreadableSubmission as problem:
                    yield student, Graded(str(problem))
                    continue
                except (OSError, ValueError) as error:
                    yield student, Graded(f"it cannot be read: {error}")
                    continue
                tries[student] += 1
                going[engine.executor.submit(worker.grade, task)] = student, fingerprint(task.handed_in), time
                del task
            done, _ = wait(going, WORKER_CHECK_SECONDS, FIRST_COMPLETED) if going else ((), ())
            if going and not done and not engine.count():
                raise backends.BackendError("No worker is left: the cluster has ended. All grades so far are kept.")
            for future in done:
                student, *which = going.pop(future)
                graded = _result(future)
                if graded.lost and tries[student] < MAX_WORKERS_TRIED:
                    left.append(student)  # its worker is gone: another one gets it
                elif graded.lost:
                    yield (
                        student,
                        Graded(f"each of the {MAX_WORKERS_TRIED} workers that tried it was lost, the last with: {graded.problem}"),
                    )
                else:
                    yield student, self._written(student, *which, graded)

    def _task(self, student: str) -> Task:
        """Build the task for a worker.

        Raises
        ------
        OSError, ValueError
            The submission cannot be read; the message says why.
        """
        if why := ids.folder_problem(student):
            raise UnreadableSubmission(why)
        folder = self.home / "submitted" / student / self.part
        path = folder / f"{self.part}.ipynb"
        if not os.path.lexists(path):
            there = ", ".join(sorted(p.name for p in folder.iterdir() if p.name != NOT_GRADED)) or "nothing"
            raise UnreadableSubmission(f"expected {path.name} in {folder}; there is {there}")
        return Task(self.source, read_submission(path), self.options, self.variables)

    def _submitted_at(self, student: str) -> datetime | None:
        return read_timestamp(self.home / "submitted" / student / self.part)

    def _written(self, student: str, which: str, time: datetime | None, graded: Graded) -> Graded:
        """Record a result: first in the gradebook, then as a notebook, which marks it as done."""
        if graded.problem:
            return graded
        notebook = nbformat.reads(graded.notebook, as_version=4)
        notebook.metadata.course |= {"graded": which, "key": self.key}
        folder = self.home / "autograded" / student / self.part
        self.book.record(self.part, student, graded, notebook, time, _written_before(notebook, folder / f"{self.part}.ipynb"))
        try:
            build.write(notebook, folder / f"{self.part}.ipynb")
            if time:
                build.write_atomically(f"{time:%Y-%m-%d %H:%M:%S} UTC\n", folder / "timestamp.txt")
        except OSError as error:
            return Graded(f"the graded notebook cannot be written: {error}")
        return Graded(None, "", graded.points, graded.flags, graded.seconds, graded.by_hand)

    def _line(self, student: str, graded: Graded, left: int) -> str:
        if graded.problem:
            return f"{student}: NOT graded: {graded.problem}, {left} left"
        look = f", {graded.flags} line{'s' * (graded.flags > 1)} to look at" if graded.flags else ""
        hand = f" and up to {graded.by_hand:g} by hand" if graded.by_hand else ""
        return f"{student}: {sum(graded.points.values()):g} of {self.most:g}{hand}{look}, {graded.seconds:.1f} s, {left} left"


def _written_before(notebook: nbformat.NotebookNode, path: Path) -> set[str]:
    """Return the written answers that are the same as in an earlier graded notebook."""
    written = [cell for cell in notebook.cells if build.kind_of(cell) == build.WRITTEN_ANSWER]
    if not written or not path.exists():
        return set()
    before = {cell.id: cell.source for cell in nbformat.read(path, as_version=4).cells}
    return {cell.metadata.nbgrader.grade_id for cell in written if before.get(cell.id) == cell.source}


def _result(future: Future) -> Graded:
    """Return a worker's result, or that it is gone."""
    try:
        return future.result()
    except (Exception, CancelledError) as gone:  # a scheduler that restarts cancels what it had
        return Graded(f"{type(gone).__name__}: {gone}", lost=True)


def read_timestamp(folder: Path) -> datetime | None:
    """Return when a submission arrived, in UTC, without a time zone; None if unknown.

    Raises
    ------
    UnreadableSubmission
        timestamp.txt holds no valid time.
    """
    stamp = folder / "timestamp.txt"
    if not is_regular_file(stamp, 1024):
        return None
    try:
        return parse_utc(stamp.read_text().strip())
    except (OSError, ValueError) as error:
        raise UnreadableSubmission(f"timestamp.txt cannot be read as a time: {error}") from error

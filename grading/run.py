"""One run of grading: hand-ins go out to an engine, and what comes back is written down, by this process alone."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbgrader.utils import parse_utc
from traitlets.config import Config

from course_lib.cluster import unattended
from grading import build, engines, sandbox, worker
from grading.book import Book
from grading.grade import PASSED, Graded, Task
from grading.submission import NotReadable, fingerprint, is_plain, taken
from grading.waiting import key

TRIES = 3  # for one hand-in, where the worker that had it is gone
NOT_GRADED = "not_graded.txt"  # beside a hand-in: why it could not be graded
LONGEST = 300  # characters of an error in a sentence


@dataclass
class Run:
    """What became of each hand-in.

    Attributes
    ----------
    graded : dict of str to Graded
        By student, without the notebooks.
    failed : dict of str to str
        Why a hand-in could not be graded.
    seconds : float
        Of the whole run.
    """

    graded: dict[str, Graded] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class Grading:
    """One run: hand-ins go out to an engine, and what comes back is written down, by this process alone.

    Parameters
    ----------
    part : str
    home : Path
    source : NotebookNode
        The part as it was released.
    settings : traitlets.config.Config
    book : Book
    """

    def __init__(self, part: str, home: Path, source: nbformat.NotebookNode, settings: Config, book: Book):
        self.part, self.home, self.book = part, home, book
        self.source, self.key = nbformat.writes(source, version=4), key(source)
        self.most = build.points(source)
        self.options = {name: dict(settings[name]) for name in PASSED}
        names = (unattended.UNATTENDED, sandbox.WORD)
        self.variables = {name: os.environ[name] for name in names if name in os.environ}

    def of(self, students: list[str], engine: engines.Engine) -> Run:
        """Grade these students' hand-ins."""
        from tqdm import tqdm

        run, began = Run(), time.monotonic()
        with tqdm(total=len(students), unit="hand-in", smoothing=0.1) as bar:
            for student, graded in self._results(students, engine):
                why = self.home / "submitted" / student / self.part / NOT_GRADED
                if graded.problem:
                    run.failed[student] = graded.problem
                    build.put(graded.problem, why)
                else:
                    run.graded[student] = graded
                    why.unlink(missing_ok=True)
                bar.write(self._line(student, graded, len(students) - bar.n - 1))
                bar.update()
        run.seconds = time.monotonic() - began
        return run

    def _results(self, students: list[str], engine: engines.Engine) -> Iterator[tuple[str, Graded]]:
        """What becomes of each, as it comes; twice as many as are graded at a time are on their way, so that memory stays flat."""
        left, tries = deque(students), dict.fromkeys(students, 0)
        going: dict[Future, tuple[str, str]] = {}
        while left or going:
            while left and len(going) < 2 * engine.workers:
                student = left.popleft()
                task = self._task(student)
                if isinstance(task, Graded):
                    yield student, task
                else:
                    tries[student] += 1
                    going[engine.executor.submit(worker.grade, task)] = student, fingerprint(task.handed_in)
                del task
            done, _ = wait(going, return_when=FIRST_COMPLETED) if going else ((), ())
            for future in done:
                student, which = going.pop(future)
                graded = _result(future)
                if graded.lost and tries[student] < TRIES:
                    left.append(student)  # who had it is gone: another one gets it
                elif graded.lost:
                    yield student, Graded(f"each of the {TRIES} workers that it went to was lost, the last so: {graded.problem}")
                else:
                    yield student, self._written(student, which, graded)

    def _task(self, student: str) -> Task | Graded:
        if "[" in student or not student.isprintable():
            return Graded("nbgrader cannot have [ or what is no letter in a folder's name, which is the student's; rename the folder")
        folder = self.home / "submitted" / student / self.part
        path = folder / f"{self.part}.ipynb"
        try:
            return Task(self.source, taken(path), self.options, self.variables)
        except NotReadable as problem:
            return Graded(str(problem))
        except OSError as error:
            if path.exists():
                return Graded(f"{path.name} cannot be read: {error.strerror}")
            there = ", ".join(sorted(p.name for p in folder.iterdir())) or "nothing"
            return Graded(f"expected {path.name} in {folder}; there is {there}")

    def _written(self, student: str, which: str, graded: Graded) -> Graded:
        """Write down what came back: first in the gradebook, then, with the mark that it is done, as a notebook."""
        if graded.problem:
            return graded
        notebook = nbformat.reads(graded.notebook, as_version=4)
        submitted = self.home / "submitted" / student / self.part
        notebook.metadata.course |= {"graded": which, "key": self.key}
        stamp = submitted / "timestamp.txt"
        try:
            came = parse_utc(stamp.read_text().strip()) if is_plain(stamp, 1024) else None
        except (OSError, ValueError) as error:
            return Graded(f"timestamp.txt cannot be read as a time: {str(error)[:LONGEST]}")
        self.book.record(self.part, student, graded, notebook, came)
        folder = self.home / "autograded" / student / self.part
        build.write(notebook, folder / f"{self.part}.ipynb")
        if came:
            shutil.copyfile(stamp, folder / "timestamp.txt")
        return Graded(None, "", graded.points, graded.flags, graded.seconds)

    def _line(self, student: str, graded: Graded, left: int) -> str:
        if graded.problem:
            return f"{student}: NOT graded: {graded.problem}, {left} left"
        look = f", {graded.flags} line{'s' * (graded.flags > 1)} to look at" if graded.flags else ""
        return f"{student}: {sum(graded.points.values()):g} of {self.most:g}{look}, {graded.seconds:.1f} s, {left} left"


def _result(future: Future) -> Graded:
    """What a worker has sent, or that it is gone."""
    gone = future.exception()
    return Graded(f"{type(gone).__name__}: {gone}"[:LONGEST], lost=True) if gone else future.result()

"""One hand-in, graded alone: in a process of its own, with a deadline; each test's points are known as soon as it has run.

What the student wrote runs on the ranks, isolated as `make autograde` does it; `container` decides how.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from grading.elsewhere import container
from grading.handin.sandbox import WORD, NoSandbox
from grading.plain import readable
from grading.running import own_process

MEMORY = 2 << 30  # bytes of the process that grades; a container has less
TRIES = 2  # where the ranks did not come up
CELL_SECONDS = "60"  # twice as many as elsewhere: a container may have half a core
TOLD = 4000  # characters of what a test says
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Part:
    """What is known of a part before anything heavy is imported: the file `part.json` of an archive."""

    name: str
    tests: dict[str, float]  # points by the hidden test's grade id, in order
    options: dict
    deadline: int  # seconds
    source: Path = Path()

    @classmethod
    def read(cls, folder: Path) -> Part:
        """The part in an archive that is unpacked there."""
        return cls(**json.loads((folder / "part.json").read_text(encoding="utf-8")), source=folder / "source.ipynb")


@dataclass
class Outcome:
    """A hidden test: its name, its points, and what it said."""

    name: str
    most: float
    points: float = 0.0
    said: str = "not run: the tests before it have not ended yet"
    ran: bool = False


@dataclass
class Results:
    """What is known so far."""

    part: str
    tests: dict[str, Outcome]
    said: list[str] = field(default_factory=list)  # about the hand-in as a whole, for the student
    how: str = ""  # the ranks were isolated, for the instructor
    entry: dict | None = None  # of part 20's leaderboard
    seconds: float = 0.0


class Ended(BaseException):
    """The platform ends this run."""


def run(part: Part, folder: Path, write: Callable[[Results], None]) -> Results:
    """Grade what was handed in.

    Parameters
    ----------
    part : Part
    folder : Path
        Where it lies.
    write : callable
        Called at once, after each test and in the end, whatever happens.
    """
    results = Results(part.name, {name: Outcome(readable(name), most) for name, most in part.tests.items()})
    began, killed = time.monotonic(), container.kills()

    def now() -> None:
        results.seconds = time.monotonic() - began
        write(results)

    container.adopt()
    try:
        signal.signal(signal.SIGTERM, _end)
        now()
        word, results.how = container.isolation()
        _watch(part, folder, word, results, now)
    except NoSandbox as problem:
        _stopped(results, str(problem))
    except Ended:
        _stopped(results, "the platform ended the run before this test had run")
    except Exception as error:  # a mistake of ours; the student must still see a sentence
        _stopped(results, f"the autograder failed ({type(error).__name__}: {str(error)[:200]}). Please tell your instructor")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        container.end_all()
        if container.kills() > killed:
            results.said.append(
                "Memory ran out meanwhile. If your answer needs little of it, tell your instructor: the container may be too small."
            )
        now()
    return results


def _watch(part: Part, folder: Path, word: str, results: Results, now: Callable[[], None]) -> None:
    """Have it graded beside this process, and write down what that tells."""
    ours, theirs = Pipe(duplex=False)
    stop, told_to_stop = Pipe()
    problem: list[str] = []

    def beside() -> None:
        try:
            why = own_process.done(_grade, (part, folder, word, theirs), part.deadline, MEMORY, told_to_stop)
        except own_process.Failed as failed:
            why = str(failed)
        if why:
            problem.append(why)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        while thread.is_alive() or ours.poll():
            if ours.poll(0.2):
                _take(ours.recv(), results)
                now()
    except Ended:
        stop.send_bytes(b"end")
        raise
    finally:
        thread.join()
    if problem:
        _stopped(results, problem[0])
    else:
        _stopped(results, "the tests before it did not come to their end")


def _take(told: dict, results: Results) -> None:
    if "entry" in told:
        results.entry = told["entry"]
    else:
        test = results.tests[told["name"]]
        test.points, test.said, test.ran = told["points"], told["said"], True


def _stopped(results: Results, why: str) -> None:
    """Write into the tests that have not run why they have not."""
    why = " ".join(plain(why).split())  # it may quote the hand-in
    left = [test for test in results.tests.values() if not test.ran]
    for test in left:
        test.said = f"not run: {why}."
    if left:
        results.said.append(f"{len(left)} of {len(results.tests)} tests have not run: {why}.")


def _grade(part: Part, folder: Path, word: str, line: Connection) -> str | None:
    """Grade, in the process beside; returns why it could not be done, or None."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(silence, stream)  # a kernel writes there, too
    try:
        return _graded(part, folder, word, line)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {plain(str(error)[:300])}"


def _graded(part: Part, folder: Path, word: str, line: Connection) -> str | None:
    without_pages()
    import nbformat

    from course_lib.cluster.time_limits import UNATTENDED
    from grading.elsewhere.find import find
    from grading.handin.grade import Task, grade
    from grading.handin.submission import NotReadable
    from grading.results.leaderboard import entry

    text = part.source.read_text(encoding="utf-8")
    try:
        data = find(folder, part.name, nbformat.reads(text, as_version=4))
    except NotReadable as problem:
        return str(problem)
    variables = {WORD: word, UNATTENDED: os.environ.get(UNATTENDED, CELL_SECONDS)}
    for _ in range(TRIES):
        graded = grade(Task(text, data, part.options, variables), lambda cell: line.send(verdict(cell)))
        if not graded.lost:
            break
    if graded.problem:
        return graded.problem
    if found := entry(nbformat.reads(graded.notebook, as_version=4)):
        line.send({"entry": found})
    return None


def without_pages() -> None:
    """Have nbgrader without its pages in JupyterLab: importing those takes seconds, and twice as many packages."""
    for name in ("assignment_list", "course_list", "formgrader", "validate_assignment"):
        page = types.ModuleType(f"nbgrader.server_extensions.{name}")
        page.load_jupyter_server_extension = None
        sys.modules.setdefault(page.__name__, page)


def verdict(cell) -> dict:
    """What a hidden test's cell says once it has run, without its source."""
    from grading.handin.grade import score
    from grading.handin.preprocessors import HideTests

    shown, _ = HideTests().preprocess_cell(copy.deepcopy(cell), {}, 0)
    lines = [line for output in shown.outputs for line in output.traceback]
    said = plain("\n".join(lines))[:TOLD] or "passed"
    return {"name": cell.metadata.nbgrader.grade_id, "points": score(cell), "said": said}


def plain(text: str) -> str:
    """A stranger's text without colours, and without what moves a terminal's cursor."""
    text = _COLOURS.sub("", text).encode(errors="replace").decode()
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _end(*_) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise Ended

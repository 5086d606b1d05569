"""Grade one submission in a process of its own, with a deadline; each test's points are known as soon as it has run.

The student's code runs on the ranks, isolated as in `make autograde`; `container` chooses how.
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

from grading.autograders import container
from grading.formatting import display_name
from grading.running import limited_process
from grading.submission.sandbox import SANDBOX_VARIABLE, NoSandbox

AUTOGRADER_MEMORY_BYTES = 2 << 30  # bytes for the process that grades; a container has less
MAX_RANK_STARTS = 2  # attempts, if the ranks do not come up
PLATFORM_CELL_SECONDS = "60"  # twice as many as elsewhere: a container may have half a core
MAX_TEST_OUTPUT_CHARS = 4000  # characters of a test's output
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class PartManifest:
    """Description of a part, readable before anything heavy is imported: the file `part.json` of an archive."""

    name: str
    tests: dict[str, float]  # points by the hidden test's grade id, in order
    options: dict
    deadline: int  # seconds
    source: Path = Path()

    @classmethod
    def read(cls, folder: Path) -> PartManifest:
        """Read the manifest of an archive unpacked in `folder`."""
        return cls(**json.loads((folder / "part.json").read_text(encoding="utf-8")), source=folder / "source.ipynb")


@dataclass
class TestOutcome:
    """A hidden test: its name, its points, and its output."""

    name: str
    most: float
    points: float = 0.0
    output: str = "not run: the tests before it have not finished yet"
    ran: bool = False


@dataclass
class AutograderResults:
    """The results so far."""

    part: str
    tests: dict[str, TestOutcome]
    messages: list[str] = field(default_factory=list)  # about the submission as a whole, for the student
    isolation: str = ""  # how the ranks were isolated, for the instructor
    entry: dict | None = None  # for part 20's leaderboard
    seconds: float = 0.0


class PlatformTerminated(BaseException):
    """Raised when the platform ends this run."""


def run_autograder(part: PartManifest, folder: Path, write: Callable[[AutograderResults], None]) -> AutograderResults:
    """Grade the submitted files.

    Parameters
    ----------
    part : PartManifest
    folder : Path
        Where they are.
    write : callable
        Called at the start, after each test, and at the end, whatever happens.
    """
    results = AutograderResults(part.name, {name: TestOutcome(display_name(name), most) for name, most in part.tests.items()})
    began, killed = time.monotonic(), container.oom_kills()

    def now() -> None:
        results.seconds = time.monotonic() - began
        write(results)

    container.become_subreaper()
    try:
        signal.signal(signal.SIGTERM, _end)
        now()
        word, results.isolation = container.isolation()
        _watch(part, folder, word, results, now)
    except NoSandbox as problem:
        _stopped(results, str(problem))
    except PlatformTerminated:
        _stopped(results, "the platform ended the run before this test had run")
    except Exception as error:  # our own error; the student must still get a message
        _stopped(results, f"the autograder failed ({type(error).__name__}: {str(error)[:200]}). Please tell your instructor")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        container.kill_descendants()
        if container.oom_kills() > killed:
            results.messages.append(
                "The run ran out of memory. If your answer needs little memory, tell your instructor: the container may be too small."
            )
        now()
    return results


def _watch(part: PartManifest, folder: Path, word: str, results: AutograderResults, now: Callable[[], None]) -> None:
    """Run the grading in another process, and record what it reports."""
    ours, theirs = Pipe(duplex=False)
    stop, told_to_stop = Pipe()
    problem: list[str] = []

    def beside() -> None:
        try:
            why = limited_process.run_limited(_grade, (part, folder, word, theirs), part.deadline, AUTOGRADER_MEMORY_BYTES, told_to_stop)
        except limited_process.StepFailed as failed:
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
    except PlatformTerminated:
        stop.send_bytes(b"end")
        raise
    finally:
        thread.join()
    if problem:
        _stopped(results, problem[0])
    else:
        _stopped(results, "the tests before it did not finish")


def _take(told: dict, results: AutograderResults) -> None:
    if "entry" in told:
        results.entry = told["entry"]
    else:
        test = results.tests[told["name"]]
        test.points, test.output, test.ran = told["points"], told["said"], True


def _stopped(results: AutograderResults, why: str) -> None:
    """Write into the tests that have not run why they have not."""
    why = " ".join(plain_text(why).split())  # it may quote the submission
    left = [test for test in results.tests.values() if not test.ran]
    for test in left:
        test.output = f"not run: {why}."
    if left:
        results.messages.append(f"{len(left)} of {len(results.tests)} tests have not run: {why}.")


def _grade(part: PartManifest, folder: Path, word: str, line: Connection) -> str | None:
    """Grade in the child process; return why it could not be done, or None."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(silence, stream)  # the kernel writes there, too
    try:
        return _graded(part, folder, word, line)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {plain_text(str(error)[:300])}"


def _graded(part: PartManifest, folder: Path, word: str, line: Connection) -> str | None:
    stub_nbgrader_pages()
    import nbformat

    from course_lib.cluster.time_limits import UNATTENDED
    from grading.autograders.find_notebook import find_notebook
    from grading.results.leaderboard import entry
    from grading.submission.assembly import UnreadableSubmission
    from grading.submission.grade import Task, grade

    text = part.source.read_text(encoding="utf-8")
    try:
        data = find_notebook(folder, part.name, nbformat.reads(text, as_version=4))
    except UnreadableSubmission as problem:
        return str(problem)
    variables = {SANDBOX_VARIABLE: word, UNATTENDED: os.environ.get(UNATTENDED, PLATFORM_CELL_SECONDS)}
    for _ in range(MAX_RANK_STARTS):
        graded = grade(Task(text, data, part.options, variables), lambda cell: line.send(test_verdict(cell)))
        if not graded.lost:
            break
    if graded.problem:
        return graded.problem
    if found := entry(nbformat.reads(graded.notebook, as_version=4)):
        line.send({"entry": found})
    return None


def stub_nbgrader_pages() -> None:
    """Replace nbgrader's JupyterLab pages by stubs: importing them takes seconds, and twice as many packages."""
    for name in ("assignment_list", "course_list", "formgrader", "validate_assignment"):
        page = types.ModuleType(f"nbgrader.server_extensions.{name}")
        page.load_jupyter_server_extension = None
        sys.modules.setdefault(page.__name__, page)


def test_verdict(cell) -> dict:
    """Return the result of a hidden test's cell that has run, without its source."""
    from grading.submission.grade import score
    from grading.submission.preprocessors import HideTests

    shown, _ = HideTests().preprocess_cell(copy.deepcopy(cell), {}, 0)
    lines = [line for output in shown.outputs for line in output.traceback]
    said = plain_text("\n".join(lines))[:MAX_TEST_OUTPUT_CHARS] or "passed"
    return {"name": cell.metadata.nbgrader.grade_id, "points": score(cell), "said": said}


def plain_text(text: str) -> str:
    """Return an untrusted text without colours and cursor movements."""
    text = _COLOURS.sub("", text).encode(errors="replace").decode()
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _end(*_) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    raise PlatformTerminated

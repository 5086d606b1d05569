"""A grading worker: a helper process that forks one process per submission, with a deadline and a memory limit.

`grade` may be called on any thread, also in a Dask worker or an ipyparallel engine: each thread has a helper process of its own, which
ends with it.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from multiprocessing.connection import Connection

from grading.formatting import MAX_SENTENCE_CHARS
from grading.paths import ROOT
from grading.running import limited_process
from grading.submission.grade import Graded, Task
from grading.submission.grade import grade as grade_here
from grading.submission.sandbox import NoSandbox

SUBMISSION_DEADLINE_SECONDS = 900  # seconds for a submission, in addition to the limits of its cells
GRADER_MEMORY_BYTES = 2 << 30  # bytes for the process that grades a submission, and as many for its kernel

_mine = threading.local()
_all: weakref.WeakSet[GraderProcess] = weakref.WeakSet()
_lock, _over = threading.Lock(), threading.Event()


class GraderProcess:
    """The helper process, and the connection to it."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        with theirs, _lock:
            if _over.is_set():
                raise OSError("the run has ended")
            words = [sys.executable, "-m", "grading.running.worker", str(theirs.fileno())]
            # Ctrl-C is for the run, which then ends this process.
            how = dict(stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=ROOT, start_new_session=True)
            self.process = subprocess.Popen(words, **how)
            self.line = Connection(ours.detach())
            _all.add(self)

    def grade(self, task: Task) -> Graded:
        """Grade one submission there."""
        self.line.send(task)
        return self.line.recv()

    def end(self) -> None:
        """End it, and the grading that it is doing."""
        with contextlib.suppress(OSError):
            self.line.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def grade(task: Task) -> Graded:
    """Grade one submission in a process of its own; if that process ends, the result has a message.

    Raises
    ------
    OSError
        The helper process ended, or could not be started: another try may work.
    """
    beside = _mine.beside = getattr(_mine, "beside", None) or GraderProcess()
    try:
        return beside.grade(task)
    except (EOFError, OSError) as error:
        _mine.beside = None
        beside.end()
        raise OSError(f"the grader's process ended with code {beside.process.returncode}") from error


def begin() -> None:
    """Allow new processes again, after `end_all`."""
    _over.clear()


def end_all() -> None:
    """End all helper processes, whatever they are doing, and start no more."""
    with _lock:
        _over.set()
        for beside in list(_all):
            beside.process.kill()
            beside.process.wait()


def serve(line: Connection) -> None:
    """Grade the tasks from a connection, until it is closed."""
    limited_process.remove_leftovers()
    while True:
        try:
            task = line.recv()
        except (EOFError, OSError):
            return
        try:
            found = limited_process.run_limited(_grade, (task,), SUBMISSION_DEADLINE_SECONDS, GRADER_MEMORY_BYTES, line)
        except limited_process.StepFailed as problem:
            found = Graded(str(problem), lost=isinstance(problem, limited_process.StepKilled))
        with contextlib.suppress(OSError):  # nobody is waiting for it any more; the next turn notices that
            line.send(found)


def _grade(task: Task) -> Graded:
    try:
        return grade_here(task)
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, NoSandbox) else f"{type(error).__name__}: {error}"
        return Graded(told[:MAX_SENTENCE_CHARS].strip())


def main() -> None:
    warnings.filterwarnings("ignore", module="nbgrader")
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()

"""Run a step of grading one submission in a process of its own: whatever happens to that process, the run continues."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil

from course_lib.cluster.isolated.launcher import remove_tree
from course_lib.engine.isolated_rank import die_with_parent
from course_lib.engine.processes.mpiexec import THREAD_VARIABLES
from course_lib.sandbox import cgroup

STALE_SECONDS = 3600  # seconds after which leftovers belong to nobody
FOLDER_PREFIX = CGROUP_PREFIX = "course-grade-"  # prefix of folders and control groups; the number of the process that made them follows


class StepFailed(Exception):
    """The step did not finish; the message says why."""


class StepKilled(StepFailed):
    """Its process was killed, by somebody or for lack of memory: another try may work."""


def run_or_explain(step: Callable[..., str | None], arguments: tuple, deadline: float, memory: int) -> str | None:
    """Run a step that returns an error message or None; return a failure of its process as a message, too. See `run_limited`."""
    try:
        return run_limited(step, arguments, deadline, memory)
    except StepFailed as problem:
        return str(problem)


def run_limited(step: Callable, arguments: tuple, deadline: float, memory: int, line: Connection | None = None) -> object:
    """Run a step with a deadline and a memory limit.

    Parameters
    ----------
    step : callable
        The function to call.
    arguments : tuple
        Its arguments.
    deadline : float
        Seconds after which it is ended.
    memory : int
        Bytes for its own data.
    line : Connection, optional
        Connection to whoever asked for it: once the other end is closed, the step is ended, too.

    Returns
    -------
    object
        The step's result.

    Raises
    ------
    StepFailed
        It took too long, or its process ended.
    """
    place = tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-")
    os.chmod(place, 0o711)  # a rank that runs as another user has its folder inside
    try:
        with cgroup.limited(f"{CGROUP_PREFIX}{os.getpid()}-{time.monotonic_ns()}") as groups:
            return _waited_for(step, arguments, deadline, memory, groups, place, line)
    finally:
        remove_tree(Path(place))


def _waited_for(
    step: Callable, arguments: tuple, deadline: float, memory: int, groups: list[Path], place: str, line: Connection | None
) -> object:
    forks = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    ours, theirs = forks.Pipe(duplex=False)
    process = forks.Process(target=_do_and_tell, args=(step, arguments, memory, groups, place, theirs))
    process.start()
    theirs.close()
    try:
        ready = wait([ours, *([line] if line else [])], deadline)
        if ours in ready:
            return ours.recv()
        raise StepFailed("nobody is waiting for it any more" if ready else f"it took more than {deadline} s and was ended")
    except EOFError:
        process.join(5)
        kind = StepKilled if process.exitcode == -signal.SIGKILL else StepFailed
        raise kind(f"its process ended with code {process.exitcode}; the usual cause is too little memory") from None
    finally:
        _end(process)


def _end(process: multiprocessing.Process) -> None:
    """End it, and all that it has started."""
    process.join(2)
    with contextlib.suppress(psutil.Error):
        this = psutil.Process(process.pid)
        for other in (*this.children(recursive=True), this):
            with contextlib.suppress(psutil.Error):
                other.kill()
    process.join()


def _do_and_tell(step: Callable, arguments: tuple, memory: int, groups: list[Path], place: str, pipe: Connection) -> None:
    cgroup.join(groups, os.getpid())
    die_with_parent(os.getppid())
    os.environ.update(THREAD_VARIABLES)  # with a thread per processor, NumPy takes more memory than there is
    os.environ["TMPDIR"] = tempfile.tempdir = place  # removed with this submission, however it ends
    signal.signal(signal.SIGINT, lambda *_: None)  # the run handles it, and ends this process
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    pipe.send(step(*arguments))
    pipe.close()


def remove_leftovers() -> None:
    """Remove the folders and control groups of graders that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        if _is_left(folder):
            remove_tree(folder)
    cgroup.remove_stale(CGROUP_PREFIX, _is_left)


def _is_left(folder: Path) -> bool:
    """Return whether a folder has outlived its process; false if it is new, or somebody else's: process numbers may differ there."""
    number = re.fullmatch(rf"{FOLDER_PREFIX}(\d+)-\w+", folder.name)
    try:
        found = folder.lstat()
    except OSError:
        return False
    old = time.time() - found.st_mtime > STALE_SECONDS and found.st_uid == os.getuid()
    return bool(number and old and not psutil.pid_exists(int(number[1])))

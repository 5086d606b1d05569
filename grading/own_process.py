"""A step of grading for one hand-in, in a process of its own: whatever becomes of that process, the run goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from course_lib.cluster.place import remove
from course_lib.engine.alone import end_with
from course_lib.engine.mpiexec import THREADS
from grading import cgroup


def told(step: Callable[..., str | None], arguments: tuple, deadline: float, memory: int) -> str | None:
    """Do a step, with a deadline and a limit of its memory.

    Parameters
    ----------
    step : callable
        What to do; says what went wrong, or None.
    arguments : tuple
        What it is called with.
    deadline : float
        Seconds, after which it is ended.
    memory : int
        Bytes of its own data.

    Returns
    -------
    str or None
        What went wrong, in a sentence.
    """
    place = tempfile.mkdtemp(prefix="course-grade-")
    try:
        with cgroup.limited(f"course-{os.getpid()}-{time.monotonic_ns()}") as groups:
            return _waited_for(step, arguments, deadline, memory, groups, place)
    finally:
        remove(Path(place))


def _waited_for(step: Callable, arguments: tuple, deadline: float, memory: int, groups: list[Path], place: str) -> str | None:
    forks = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    ours, theirs = forks.Pipe(duplex=False)
    process = forks.Process(target=_do_and_tell, args=(step, arguments, memory, groups, place, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(deadline) else f"it took more than {deadline} s, and was ended"
    except EOFError:
        process.join(5)
        return f"the process that did it ended with code {process.exitcode}; usually, memory ran out"
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
    end_with(os.getppid())
    os.environ.update(THREADS)  # with a thread a processor, NumPy takes more memory than there is
    os.environ["TMPDIR"] = tempfile.tempdir = place  # gone with this hand-in, whatever ends it
    signal.signal(signal.SIGINT, lambda *_: None)  # the run is told, and ends this process
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    pipe.send(step(*arguments))
    pipe.close()

"""Monitor for ranks that stall in a plain MPI call, which only MPI can end.

The course's `Communicator` knows who waits for whom. A call that bypasses it (``MPI.COMM_WORLD.Recv``) is
a single C call, which Python can neither inspect nor interrupt; all that can be observed is that the rank stays in it.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
import threading
import time
from types import FrameType

from course_lib.collectives.diagnostics import CELL_FILE_PREFIXES, frame_locals

STALL_SECONDS = 1.0  # seconds that a rank must stay in the same call
OBSERVER = "course_lib.collectives.instrumentation.wrong_group_hint"  # not imported, as that starts MPI


class StallMonitor:
    """Watches for an MPI call in which the main thread stays; another thread must call `stalled_call` from time to time."""

    def __init__(self):
        self._seen: object = None
        self._since = 0.0
        self._reported = False

    def stalled_call(self) -> str | None:
        """Return a stalled call and its place, such as "MPI.COMM_WORLD.Recv (cell [5], line 3)"; None if there is none, or it is known."""
        frame = sys._current_frames().get(threading.main_thread().ident)
        if frame and frame.f_globals.get("__name__") == OBSERVER and frame.f_back:  # a check's, around the calls of `MPI.COMM_WORLD`
            frame = frame.f_back
        if frame is None or not frame.f_code.co_filename.startswith(CELL_FILE_PREFIXES):
            self._seen = None
            return None
        # A running loop changes its variables. Plain values are compared themselves, as a new object may reuse the id of an old one.
        values = [value if type(value) in (int, float, str, bytes) else id(value) for value in frame_locals(frame).values()]
        now = id(frame), frame.f_lasti, values
        if now != self._seen:
            self._seen, self._since, self._reported = now, time.monotonic(), False
        elif not self._reported and time.monotonic() - self._since >= STALL_SECONDS:
            self._reported = True
            if call := _call(frame):
                return f"{call} ({frame.f_code.co_filename}, line {frame.f_lineno})"
        return None


def _call(frame: FrameType) -> str | None:
    """Return the source text of the mpi4py call that a frame is in; None if it is not in one."""
    first, last, left, right = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    lines = [linecache.getline(frame.f_code.co_filename, n).encode() for n in range(first or 0, (last or 0) + 1)]
    if not lines or None in (left, right):
        return None
    lines[-1] = lines[-1][:right]
    lines[0] = lines[0][left:]
    try:
        called = ast.parse(textwrap.dedent(b"".join(lines).decode()), mode="eval").body.func
        found, names = called, []
        while isinstance(found, ast.Attribute):
            names, found = [found.attr, *names], found.value
        owner = {**frame.f_globals, **frame_locals(frame)}[found.id]
        for name in names[:-1]:
            owner = inspect.getattr_static(owner, name)  # runs none of the student's code
    except (SyntaxError, AttributeError, KeyError):
        return None
    MPI = sys.modules.get("mpi4py.MPI")
    kinds = (MPI.Comm, MPI.Request, MPI.Message, MPI.Win, MPI.File) if MPI else ()
    of_mpi = names and (isinstance(owner, kinds) or (isinstance(owner, type) and issubclass(owner, kinds)))
    return ast.unparse(called) if of_mpi else None

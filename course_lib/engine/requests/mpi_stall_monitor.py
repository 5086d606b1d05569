"""Monitor for ranks that stall in a call of bare MPI, which nobody but MPI can end.

The course's `Communicator` sees who waits for whom. A call beside it (``MPI.COMM_WORLD.Recv``) is
one step of C, which Python cannot look into or interrupt; what can be seen is that a rank stays in it.
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


class StallMonitor:
    """Looks now and then at what the main thread does; `stalled_call` says in which call of MPI it has stayed, and where that stands."""

    def __init__(self):
        self._seen: object = None
        self._since = 0.0
        self._reported = False

    def stalled_call(self) -> str | None:
        """The call and its place, such as "MPI.COMM_WORLD.Recv (cell [5], line 3)", once; None while there is nothing to say."""
        frame = sys._current_frames().get(threading.main_thread().ident)
        if frame is None or not frame.f_code.co_filename.startswith(CELL_FILE_PREFIXES):
            self._seen = None
            return None
        # A loop that goes on changes its names: plain values are compared, as new ones may lie where old ones were.
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
    """The call of mpi4py that a frame is in, in the student's words."""
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

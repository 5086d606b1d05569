"""What a cell prints, sent while it still runs: so a cell that takes long shows that it goes on.

At its end the reply has all of it, in groups; see `capture`. One thread looks at all cells of this process: starting one for each
call would take longer than most calls.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from course_lib.engine.blocked import Watch
from course_lib.engine.capture import Outputs

WAITS = "waits"  # the stream that says in which call of MPI the rank stays
FIRST, AGAIN = 1.0, 0.5  # seconds until a cell takes long, and from one look to the next
TICK, QUIET = 0.25, 2.0  # seconds: how often the thread wakes up, and how long it goes on doing so without a cell
_running: Cell | None = None
_roused = threading.Event()
_threads: list[threading.Thread] = []


class Cell:
    """What the kernel runs now: a cell, or a call."""

    def __init__(self, kernel, outputs: Outputs):
        self._kernel, self._outputs, self._parent = kernel, outputs, kernel.get_parent("shell")
        self._printed, self._watch, self._next = sys.stdout, Watch(), time.monotonic() + FIRST

    def look(self) -> None:
        """Send what is new, if it is time for that."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + AGAIN
            with contextlib.suppress(Exception):  # this must not disturb the cell
                self._printed.flush()
                self._say("stdout", self._outputs.fresh())
                self._say(WAITS, self._watch.place())

    def _say(self, stream: str, text: str | None) -> None:
        if text:
            self._kernel.session.send(self._kernel.iopub_socket, "stream", {"name": stream, "text": text}, parent=self._parent)


@contextlib.contextmanager
def sent(kernel, outputs: Outputs) -> Iterator[None]:
    """Send what is captured in `outputs` meanwhile, as messages of the cell that the kernel runs."""
    global _running
    if kernel is None:  # where ranks are kept apart, nobody watches
        yield
        return
    try:
        _running = Cell(kernel, outputs)
        if not _roused.is_set():
            _roused.set()
        if not _threads:
            thread = threading.Thread(target=_look, daemon=True)
            thread.start()
            _threads.append(thread)
        yield
    finally:
        _running = None


def _look() -> None:
    """Look at what runs, as long as something does; then rest."""
    while _roused.wait():
        idle = 0.0
        while idle < QUIET:
            time.sleep(TICK)
            if cell := _running:
                cell.look()
            idle = 0.0 if cell else idle + TICK
        _roused.clear()
        if _running:  # a cell began just before that, and did not rouse this thread
            _roused.set()

"""What a cell prints, sent while it still runs: so a cell that takes long shows that it goes on.

At its end the reply has all of it, in groups; see `capture`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from course_lib.engine.blocked import Watch
from course_lib.engine.capture import Outputs

WAITS = "waits"  # the stream that says in which call of MPI the rank stays
FIRST, AGAIN = 1.0, 0.5  # seconds until a cell takes long, and from one look to the next


@contextlib.contextmanager
def sent(kernel, outputs: Outputs) -> Iterator[None]:
    """Send what is captured in `outputs` meanwhile, as messages of the cell that the kernel runs."""
    if kernel is None:  # where ranks are kept apart, nobody watches
        yield
        return
    printed, parent, over = sys.stdout, kernel.get_parent("shell"), threading.Event()

    def say(stream: str, text: str | None) -> None:
        if text:
            kernel.session.send(kernel.iopub_socket, "stream", {"name": stream, "text": text}, parent=parent)

    def look() -> None:
        pause, watch = FIRST, Watch()
        while not over.wait(pause):
            pause = AGAIN
            with contextlib.suppress(Exception):  # this must not disturb the cell
                printed.flush()
                say("stdout", outputs.fresh())
                say(WAITS, watch.place())

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()

"""Capture a cell's output on a rank, in order, for the reply; of a flood, only the beginning and the end are kept.

During a long cell, new output is also sent at once, to show its progress, and its last line is shown on the status board. One thread serves
all cells of this process, as starting one for each call would take longer than most calls.
"""

from __future__ import annotations

import base64
import codecs
import contextlib
import functools
import io
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

from course_lib import traffic
from course_lib.engine.requests.mpi_stall_monitor import StallMonitor

OUTPUT_LIMIT = 48_000  # bytes of printed output kept per cell and rank: half from the beginning, half from the end
MAX_FRESH_CHARACTERS = 4_000  # per message sent while the cell runs
DISPLAY_LIMIT = 4 << 20  # characters of displayed output per cell and rank
STALL_STREAM = "waits"  # name of the stream that reports a stalled MPI call
FIRST_SEND_SECONDS, SEND_INTERVAL_SECONDS = 1.0, 0.5  # until the first message of a cell, and between messages
MAX_LINE_CHARACTERS = 2_000  # from the end of the output, in which its last line is looked for
BOARD_MODULE = "course_lib.collectives.deadlock.board"  # imported only when needed, as that starts MPI
OUTPUT_POLL_SECONDS, MAX_IDLE_SECONDS = 0.25, 2.0  # the thread's polling interval; without a cell, the time until it sleeps


class Outputs(list):
    """Output of a cell, in order: dicts with "stream" and "text", or with "data" (by MIME type) and "metadata"."""

    def __init__(self):
        super().__init__()
        self._room = OUTPUT_LIMIT // 2
        self._end: deque[tuple[str, str]] = deque()  # stream and text of output since the first half of the limit was full
        self._fresh = self._tail = ""
        self._size, self._lines, self._lost = 0, 0, 0  # bytes in `_end`; lines and bytes that were dropped

    def write(self, stream: str, text: str) -> None:
        """Add text written to a stream."""
        self._fresh = (self._fresh + text)[-MAX_FRESH_CHARACTERS:]
        self._tail = (self._tail + text)[-MAX_LINE_CHARACTERS:]
        if self._room > 0 and text:
            first = _first(text, self._room)
            self._room = self._room - _bytes(first) if len(first) == len(text) else 0
            self._add(stream, first)
            text = text[len(first) :]
        if text:
            self._end.append((stream, text))
            self._size += _bytes(text)
            while self._size > OUTPUT_LIMIT // 2:
                self._forget()

    def show(self, item: dict) -> None:
        """Add an output displayed by IPython."""
        data = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in item["data"].items()}
        room = DISPLAY_LIMIT - sum(_characters(o["data"]) for o in self if "data" in o)
        if _characters(data) > room:
            data = {"text/plain": f"(not shown: it has {_characters(data):,} characters, more than a cell may display on a rank)"}
        self.append({"data": data, "metadata": item.get("metadata") or {}})

    def fresh(self) -> str:
        """Return the end of the text that has arrived since the last call."""
        text, self._fresh = self._fresh, ""
        return text

    def last_line(self) -> str:
        """Return the last line that was printed and is not blank; of one that was overwritten, the last version."""
        for line in reversed(self._tail.split("\n")):
            for version in reversed(line.split("\r")):
                if version.strip():
                    return version.strip()
        return ""

    def finish(self) -> None:
        """Complete the output: append the end of a flood to its beginning, and keep only the last version of overwritten lines."""
        if self._lost:
            what = f"{self._lines:,} lines" if self._lines else f"{self._lost:,} bytes"
            self._add(self._end[0][0] if self._end else "stdout", f"\n... {what} are left out here ...\n\n")
        while self._end:
            self._add(*self._end.popleft())
        shown = _last_lines(list(self))
        self.clear()
        for output in shown:
            self._add(output["stream"], output["text"]) if "stream" in output else self.append(output)

    def _add(self, stream: str, text: str) -> None:
        """Add a text, to the output before it if that is of the same stream."""
        if self and self[-1].get("stream") == stream:
            self[-1]["text"] += text
        elif text:
            self.append({"stream": stream, "text": text})

    def _forget(self) -> None:
        """Drop the oldest piece of `_end`, or as much of it as exceeds the limit."""
        stream, text = self._end.popleft()
        self._size -= _bytes(text)
        kept = _first(text[::-1], OUTPUT_LIMIT // 2 - self._size)[::-1] if self._size < OUTPUT_LIMIT // 2 else ""
        self._lines += text.count("\n") - kept.count("\n")
        self._lost += _bytes(text) - _bytes(kept)
        if kept:
            self._end.appendleft((stream, kept))
            self._size += _bytes(kept)


def _last_lines(outputs: list[dict]) -> list[dict]:
    """Keep only the last version of lines overwritten by carriage returns, even if a progress bar continues after other output."""
    goes_on: dict[str, bool] = {}  # by stream: whether the following text overwrites the line before it
    for output in reversed(outputs):
        if "stream" in output:
            text, stream = output["text"], output["stream"]
            over, goes_on[stream] = goes_on.get(stream, False), text.startswith("\r")
            if "\r" in text:
                text = text[: text.rfind("\n") + 1] if over else text
                output["text"] = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return [output for output in outputs if output.get("text") != ""]


class _Pieces(io.RawIOBase):
    """Sink of standard output below a buffer, which turns the many small writes of a flood into large ones."""

    def __init__(self, outputs: Outputs):
        self._outputs, self._decoder = outputs, codecs.getincrementaldecoder("utf-8")(errors="replace")

    def writable(self) -> bool:
        return True

    def write(self, data: memoryview) -> int:
        self._outputs.write("stdout", self._decoder.decode(bytes(data)))
        return len(data)


class _Errors(io.TextIOBase):
    """Standard error; flushes standard output first, to keep their order."""

    def __init__(self, outputs: Outputs, printed: io.TextIOWrapper):
        self._outputs, self._printed = outputs, printed

    def write(self, text: str) -> int:
        self._printed.flush()
        self._outputs.write("stderr", text)
        return len(text)


class _Shown(list):
    """List that receives what IPython displays, and adds it to the other outputs in order."""

    def __init__(self, outputs: Outputs, printed: io.TextIOWrapper):
        super().__init__()
        self._outputs, self._printed = outputs, printed

    def append(self, item: dict) -> None:
        self._printed.flush()
        self._outputs.show(item)


@contextlib.contextmanager
def capture_output(shell) -> Iterator[Outputs]:
    """Context manager: capture what a cell prints and displays, and send new output while it runs, if the shell has a kernel."""
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher

    outputs = Outputs()
    pieces = io.BufferedWriter(_Pieces(outputs), 1 << 16)
    printed = io.TextIOWrapper(pieces, encoding="utf-8", errors="backslashreplace", newline="\n")
    shown = _Shown(outputs, printed)
    publisher = CapturingDisplayPublisher()
    publisher.outputs = shown
    before = (sys.stdout, sys.stderr, sys.displayhook, shell.display_pub)
    own = {
        "showtraceback": lambda *_, **__: None,  # see `tracebacks`; IPython's own takes seconds for a thousand frames
        "showsyntaxerror": lambda *_, **__: None,
        "_tee": lambda channel: contextlib.nullcontext(),  # would keep a second copy of all output, slowly
    }
    sys.stdout, sys.stderr = printed, _Errors(outputs, printed)
    sys.displayhook = CapturingDisplayHook(shell=shell, outputs=shown)
    shell.display_pub = publisher
    vars(shell).update(own)
    try:
        with _sent(getattr(shell, "kernel", None), outputs, printed):  # isolated ranks have no kernel, and nobody watches
            yield outputs
    finally:
        sys.stdout, sys.stderr, sys.displayhook, shell.display_pub = before
        for name in own:
            vars(shell).pop(name, None)
        with contextlib.suppress(ValueError):  # the cell has closed standard output
            printed.flush()
        _publish(outputs)
        outputs.finish()


def _first(text: str, most: int) -> str:
    """Return the beginning of a text, in at most `most` bytes; whole lines only, if it has one."""
    if _bytes(text) <= most:
        return text
    text = text[:most] if text.isascii() else text.encode()[:most].decode(errors="ignore")
    return text[: text.rfind("\n") + 1] or text


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _characters(data: dict) -> int:
    return sum(len(value) if isinstance(value, str) else len(repr(value)) for value in data.values())


class _Cell:
    """The cell or call that is running, as the thread sees it."""

    def __init__(self, kernel, outputs: Outputs, printed: io.TextIOWrapper):
        self._kernel, self._outputs, self._parent = kernel, outputs, kernel.get_parent("shell")
        self._printed, self._stall_monitor, self._next = printed, StallMonitor(), time.monotonic() + FIRST_SEND_SECONDS

    def look(self) -> None:
        """Show the last line on the status board, and send new output if it is due."""
        with contextlib.suppress(Exception):  # errors here must not disturb the cell
            self._printed.flush()
            _publish(self._outputs, self)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SEND_INTERVAL_SECONDS
            with contextlib.suppress(Exception):  # errors here must not disturb the cell
                self._say("stdout", self._outputs.fresh())
                self._say(STALL_STREAM, self._stall_monitor.stalled_call())

    def _say(self, stream: str, text: str | None) -> None:
        if text:
            self._kernel.session.send(self._kernel.iopub_socket, "stream", {"name": stream, "text": text}, parent=self._parent)


_running: _Cell | None = None
_roused = threading.Event()
_publishing = threading.Lock()


def _publish(outputs: Outputs, cell: _Cell | None = None) -> None:
    """Show on the status board, if there is one, the last line of this output and the bytes sent; not after the cell has ended."""
    board = sys.modules.get(BOARD_MODULE)
    if board and board.open_board.cache_info().currsize:
        with _publishing:
            if cell is _running or cell is None:
                board.open_board().publish(round(traffic.sent()), outputs.last_line())


@contextlib.contextmanager
def _sent(kernel, outputs: Outputs, printed: io.TextIOWrapper) -> Iterator[None]:
    """Context manager: have the thread send new output, as messages of the cell that the kernel is running."""
    global _running
    if kernel is None:
        yield
        return
    try:
        _running = _Cell(kernel, outputs, printed)
        _roused.set()
        _start_thread()
        yield
    finally:
        _running = None


@functools.cache
def _start_thread() -> None:
    """Start the thread, once."""
    threading.Thread(target=_look, daemon=True).start()


def _look() -> None:
    """Send the output of running cells; sleep while there are none. The thread's main function."""
    while _roused.wait():
        idle = 0.0
        while idle < MAX_IDLE_SECONDS:
            time.sleep(OUTPUT_POLL_SECONDS)
            if cell := _running:
                cell.look()
            idle = 0.0 if cell else idle + OUTPUT_POLL_SECONDS
        _roused.clear()
        if _running:  # a cell began just before the event was cleared
            _roused.set()

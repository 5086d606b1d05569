"""What a cell prints and displays on a rank, collected in order."""

from __future__ import annotations

import base64
import contextlib
import io
import sys
from collections.abc import Iterator

OUTPUT_LIMIT = 200_000  # characters that a cell may print on one rank
DISPLAY_LIMIT = 4 << 20  # characters of what it displays


class _Stream(io.TextIOBase):
    """Standard output or error of a cell, in the order in which it was written."""

    def __init__(self, name: str, outputs: list):
        self.name, self.outputs = name, outputs

    def write(self, text: str) -> int:
        room = OUTPUT_LIMIT - sum(len(o.get("text", "")) for o in self.outputs)
        if room <= 0:
            return len(text)
        text = text if len(text) <= room else text[:room] + "\n(the rest of the output is cut)\n"
        if self.outputs and self.outputs[-1].get("stream") == self.name:
            self.outputs[-1]["text"] += text
        else:
            self.outputs.append({"stream": self.name, "text": text})
        return len(text)

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def captured(shell, outputs: list) -> Iterator[None]:
    """Collect what a cell prints and displays in `outputs`."""
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher

    shown = _Shown(outputs)
    publisher = CapturingDisplayPublisher()
    publisher.outputs = shown
    before = (sys.stdout, sys.stderr, sys.displayhook, shell.display_pub, shell._showtraceback)
    sys.stdout, sys.stderr = _Stream("stdout", outputs), _Stream("stderr", outputs)
    sys.displayhook = CapturingDisplayHook(shell=shell, outputs=shown)
    shell.display_pub = publisher
    shell._showtraceback = lambda *_: None
    try:
        yield
    finally:
        sys.stdout, sys.stderr, sys.displayhook, shell.display_pub, shell._showtraceback = before


class _Shown(list):
    """Takes what IPython displays and puts it among the other outputs."""

    def __init__(self, outputs: list):
        super().__init__()
        self.outputs = outputs

    def append(self, item: dict) -> None:
        data = {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in item["data"].items()}
        room = DISPLAY_LIMIT - sum(_size(o["data"]) for o in self.outputs if "data" in o)
        if _size(data) > room:
            data = {"text/plain": f"(not shown: it has {_size(data):,} characters, more than a cell may display on a rank)"}
        self.outputs.append({"data": data, "metadata": item.get("metadata") or {}})


def _size(data: dict) -> int:
    return sum(len(value) if isinstance(value, str) else len(repr(value)) for value in data.values())

"""What an answer does with a checkpoint's files where a look after each of its lines cannot see it; see `checkpoint`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType

from course_lib.check.checkpoint_files import INDEX

NOT_ITS_OWN = ("course_lib", "numpy", "safetensors", "json", "encodings", "codecs")
CHANGES = ("open", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate")


def its_own(code: CodeType) -> bool:
    """Whether this is the answer's own code, in whose lines somebody looks at the disk."""
    return not any(name in code.co_filename for name in NOT_ITS_OWN)


class Watch:
    """Hears of it from Python itself (PEP 578, audit hooks: once there, nobody can take one away).

    Parameters
    ----------
    folder : str
    line : callable
        What must trace the answer's lines.

    Attributes
    ----------
    on : bool
        Whether it listens.
    found : list of str
        What it has heard that must not be.
    """

    def __init__(self, folder: str, line: Callable):
        self.folder, self.line, self.on, self.found = folder, line, False, []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple) -> None:
        if not self.on:
            return
        if event == "sys.settrace":
            self.found.append("switched off the tracing of its lines")
        if event not in CHANGES or not self._here(arguments[0]):
            return
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes and os.path.basename(arguments[0]) == INDEX:
            self.found.append(f"opened {INDEX} for writing in its place")
        frame = sys._getframe(1)
        while frame is not None and not its_own(frame.f_code):
            frame = frame.f_back
        if frame is None or frame.f_trace is not self.line:
            self.found.append("used files where its lines cannot be traced, as in another thread")

    def _here(self, path: object) -> bool:
        return isinstance(path, (str, bytes)) and os.path.dirname(os.path.abspath(os.fsdecode(path))) == self.folder

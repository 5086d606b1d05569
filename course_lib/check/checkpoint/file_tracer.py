"""Trace an answer's file operations on a checkpoint folder from inside its process; see `checkpoint.check`.

For a student's own machine, and for grading where the system reports no file events: an answer could replace this class.
"""

from __future__ import annotations

import builtins
import encodings
import json
import os
import resource
import sys
import threading
import time
from types import BuiltinFunctionType, CodeType

import numpy as np
import safetensors.numpy

from course_lib.check.checkpoint.files import IN_PLACE_WRITE_CAUSE, INDEX_FILE, TENSORS_SUFFIX

LIBRARY_DIRS = tuple(os.path.dirname(m.__file__) + os.sep for m in (np, safetensors, json, encodings))
STDLIB_DIR = os.path.dirname(os.__file__) + os.sep
COURSE_DIR = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
UNTRACED_PREFIXES = (COURSE_DIR, *LIBRARY_DIRS, STDLIB_DIR, "<frozen")  # prefixes of files that contain no student code
WRITE_EVENTS = ("open", "os.rename", "os.remove", "os.link", "os.symlink", "os.truncate")
INTROSPECTION_EVENTS = ("sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents")
HOOK_ALIVE_EVENT = "course_lib.checkpoint"  # the tracer's own event, which shows that the hook is active
_active_tracer: list[FileTracer] = []


class SimulatedCrash(BaseException):
    """Simulate the death of the rank here, as by SIGKILL."""


def is_student_code(code: CodeType) -> bool:
    """Tell whether this is the answer's own code, after whose lines the folder is inspected."""
    return not code.co_filename.startswith((COURSE_DIR, *LIBRARY_DIRS)) and code.co_filename != "<frozen codecs>"


class FileTracer:
    """Call an answer and inspect its folder after each of its lines, and before and after each change that Python reports.

    Changes are reported by Python itself (PEP 578 audit hooks, which cannot be removed once added).

    Parameters
    ----------
    folder : str
    slow : bool
        Whether to pause when the folder changes, before a file is written, and after a collective.
    dies : int
        Line, counted in execution order, before which the rank dies; -1: before it writes a file; 0: never.
    faster : bool
        Whether another rank removes each file a moment before this one does.
    full : int
        File size limit in bytes, 0 for none; -1: nothing can be written once a file other than a part has been opened.

    Attributes
    ----------
    states : list of (float, dict, dict)
        For each change: its time, the files, and each file's inode, modification time and size.
    problems : list of (str, str)
        Forbidden operations, and a usual cause.
    wrote, removed : set of str
        Names of files in the folder.
    lines : int
        Number of lines executed.
    returned : float or None
        Time at which the answer returned; None if it has not.
    """

    def __init__(self, folder: str, slow: bool, dies: int, faster: bool, full: int):
        self.folder, self.slow, self.dies, self.faster, self.full = folder, slow, dies, faster, full
        self.states, self.problems, self.wrote, self.removed = [], [], set(), set()
        self.returned: float | None = None
        self.lines, self._calls, self._on, self._before = 0, 0, False, None
        self._dead = self._over = False
        self._busy, self._lock = threading.local(), threading.RLock()

    def run(self, function, *arguments) -> bool:
        """Call the function; return whether the rank survived it."""
        (soft, hard), given = resource.getrlimit(resource.RLIMIT_FSIZE), safetensors.numpy.serialize_file

        def serialize_file(data, filename, *more, **named):
            with self._muted():
                self.snapshot()
                self._record_write(filename)
                self._before_write()
                if self.slow:
                    time.sleep(0.1)
            try:
                return given(data, filename, *more, **named)
            finally:
                with self._muted():
                    self.snapshot()

        self._install_hook()
        try:
            safetensors.numpy.serialize_file = serialize_file
            if self.full > 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.full, hard))
            self.snapshot()
            sys.settrace(self._trace_call)
            self._on = True
            function(*arguments)
            self.returned = time.monotonic()
        except SimulatedCrash:
            return False
        finally:
            self._on = False
            sys.settrace(None)
            safetensors.numpy.serialize_file = given
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            self.snapshot()
        self._on = self._over = True
        sys.audit(HOOK_ALIVE_EVENT)
        if self._on:
            self._report("disabled the check's file tracing")
        for name, made in dict(open=builtins.open, scandir=os.scandir, sleep=time.sleep, replace=os.replace, remove=os.remove).items():
            if not isinstance(made, BuiltinFunctionType):
                self._report(f"has replaced the function {name}")
        return True

    def _install_hook(self) -> None:
        """Make this tracer receive audit events; one hook per process, as hooks cannot be removed."""
        if not _active_tracer:
            sys.addaudithook(lambda event, arguments: _active_tracer[-1]._on_audit_event(event, arguments))
        _active_tracer[:] = [self]

    def _report(self, problem: str, cause: str = "") -> None:
        self.problems.append((problem, cause))

    def snapshot(self) -> None:
        """Record the folder's contents if they have changed."""
        with self._lock:
            entries = sorted(os.scandir(self.folder), key=lambda entry: entry.name)
            stamps = {}
            for entry in entries:
                try:
                    found = entry.stat()
                except FileNotFoundError:  # another thread has just removed it
                    continue
                stamps[entry.name] = (found.st_ino, found.st_mtime_ns, found.st_size)
            if stamps == self._before:
                return
            before, self._before = (self._before or {}).get(INDEX_FILE), stamps
            if before and INDEX_FILE in stamps and before != stamps[INDEX_FILE] and before[0] == stamps[INDEX_FILE][0]:
                self._report(f"wrote {INDEX_FILE} in place", IN_PLACE_WRITE_CAUSE)
            self.states.append((time.monotonic(), read_folder(self.folder), stamps))
            if self.slow and 1 < len(self.states) < 8:
                time.sleep(0.03)

    def _muted(self):
        return _Muted(self._busy)

    def _trace_line(self, frame, event, argument):
        with self._muted():
            self.snapshot()
            if self.slow and self._calls:
                time.sleep(0.06)
                self._calls = 0
            written = not frame.f_code.co_filename.startswith(UNTRACED_PREFIXES)  # stopping inside a library would leave its locks held
            self.lines += event == "line" and written
        if written and (self._dead or self.lines == self.dies > 0):  # also when dead in another thread, or when the exception was swallowed
            self._crash()
        return self._trace_line

    def _trace_call(self, frame, event, argument):
        if is_student_code(frame.f_code):
            return self._trace_line(frame, event, argument)
        self._calls += "collectives" in frame.f_code.co_filename and not frame.f_code.co_name.startswith("Get_")
        return None

    def _on_audit_event(self, event: str, arguments: tuple) -> None:
        if not self._on or getattr(self._busy, "on", False):
            return
        if event == HOOK_ALIVE_EVENT and self._over:
            self._on = False
        with self._muted():
            if event == HOOK_ALIVE_EVENT and self._on:
                self._report("disabled the check's file tracing")
            elif event == "sys.settrace":
                self._report("switched off the tracing of its lines")
            elif event in INTROSPECTION_EVENTS and not sys._getframe(1).f_code.co_filename.startswith(UNTRACED_PREFIXES):
                self._report("inspected its callers")
            elif event in WRITE_EVENTS:
                self._on_change(event, arguments)

    def _on_change(self, event: str, arguments: tuple) -> None:
        path = arguments[0]
        far = event in ("os.rename", "os.remove") and arguments[-1 if event == "os.remove" else 2] not in (-1, None)
        onto = event == "os.rename" and self._name(arguments[1]) == INDEX_FILE
        name = self._name(path) or (os.path.basename(os.fsdecode(path)) if far else None)
        if onto and name is None:
            self._report(
                f"renamed a file from another folder to {INDEX_FILE}",
                "a temporary file elsewhere, perhaps on another disk; write it in the same folder",
            )
        if name is None:
            return
        self.snapshot()
        if name == INDEX_FILE and event in ("os.remove", "os.rename") and os.path.exists(os.path.join(self.folder, INDEX_FILE)):
            self._report(f"removed {INDEX_FILE} before the new one had that name", IN_PLACE_WRITE_CAUSE)
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event == "os.rename":
            self._record_write(path)
        if writes:
            self._before_write()
        if writes and self.full < 0 and not name.endswith(TENSORS_SUFFIX):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        if event == "os.remove":
            self.removed.add(name)
            if self.faster and os.path.isfile(path):
                os.remove(path)
        frame = sys._getframe(2)
        while frame is not None and not is_student_code(frame.f_code):
            frame = frame.f_back
        if frame is None or frame.f_trace != self._trace_line or not frame.f_trace_lines:
            self._report("accessed files outside the lines that the check can trace", "a thread; write the files in save itself")

    def _before_write(self) -> None:
        if self.dies < 0 or self._dead:
            self._crash()

    def _crash(self) -> None:
        self._dead, self._on = True, False
        raise SimulatedCrash

    def _record_write(self, path: object) -> None:
        name = self._name(path)
        if name and name != INDEX_FILE:
            self.wrote.add(name)

    def _name(self, path: object) -> str | None:
        """Name of a file that is directly in the folder, or None."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        place, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        return name if place == self.folder else None


class _Muted:
    """Ignore this thread's file operations inside a `with` block."""

    def __init__(self, busy: threading.local):
        self.busy = busy

    def __enter__(self):
        self.before, self.busy.on = getattr(self.busy, "on", False), True

    def __exit__(self, *error):
        self.busy.on = self.before


def read_folder(folder: str) -> dict[str, np.ndarray]:
    """Contents of a folder: the bytes of each file; a subfolder appears as an empty file whose name ends with /."""
    found = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            found[entry.name + "/"] = np.empty(0, np.uint8)
            continue
        try:
            with open(entry.path, "rb") as file:
                found[entry.name] = np.frombuffer(file.read(), np.uint8)
        except FileNotFoundError:  # as in `snapshot`
            continue
    return found

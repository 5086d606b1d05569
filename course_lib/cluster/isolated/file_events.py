"""Folders of isolated ranks, observed from outside: their files, and all changes in one order.

Linux's inotify (inotify(7)) reports each change in all watched folders, in the order in which they happened, and the process that makes a
change cannot suppress the event. Other systems have no such call.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

IN_MODIFY, IN_OPEN, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x20, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF, IN_Q_OVERFLOW, IN_ISDIR = 0x400, 0x800, 0x4000, 0x40000000
CHANGE_EVENTS = IN_MODIFY | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
MAX_FOLDER_BYTES = 64 << 20  # read from one folder
_EVENT_HEADER = struct.Struct("iIII")


@dataclass(frozen=True)
class InotifyEvent:
    """An inotify event: the watch, the event mask, a cookie shared by both halves of a rename, and the name in the folder."""

    watch: int
    mask: int
    cookie: int
    name: str


class FileEvents:
    """Stream of all changes in the watched folders, in order.

    Raises
    ------
    OSError
        The system has no inotify, or its limits are exhausted.
    """

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self.descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def watch(self, descriptor: int, mask: int) -> int:
        """Watch an open folder or file, by its descriptor; return the number of the watch."""
        return self._checked(self._libc.inotify_add_watch(self.descriptor, b"/proc/self/fd/%d" % descriptor, mask))

    def read(self) -> list[InotifyEvent]:
        """Return the events since the last call."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.descriptor, 1 << 16):
                at = 0
                while at < len(data):
                    *facts, length = _EVENT_HEADER.unpack_from(data, at)
                    at += _EVENT_HEADER.size + length
                    found.append(InotifyEvent(*facts, os.fsdecode(data[at - length : at].rstrip(b"\0"))))
        return found

    def close(self) -> None:
        """End all watches."""
        os.close(self.descriptor)

    @staticmethod
    def _checked(number: int) -> int:
        if number < 0:
            raise OSError(ctypes.get_errno(), "inotify cannot watch the files")
        return number


class TracedFolder:
    """A folder to which a rank writes, held open, so that replacing it by another one has no effect.

    Parameters
    ----------
    path : str
    process : psutil.Process
        The rank's process.
    """

    def __init__(self, path: str, process: psutil.Process):
        self.process, self.descriptor = process, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def files(self) -> tuple[dict[str, np.ndarray], dict[str, tuple]]:
        """Read all files.

        Returns
        -------
        contents : dict of str to numpy.ndarray
            The bytes of each file, as uint8. A folder's name ends with "/", that of anything but a file or folder with "@".
        stamps : dict of str to tuple
            Inode, modification time in ns, and size of each file.
        """
        found, stamps, left = {}, {}, MAX_FOLDER_BYTES
        for name in sorted(os.listdir(self.descriptor)):
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
                if not stat.S_ISREG(about.st_mode):
                    found[name + ("/" if stat.S_ISDIR(about.st_mode) else "@")] = np.empty(0, np.uint8)
                    continue
                data = self._read(name, left)
                left -= len(data)
                found[name], stamps[name] = np.frombuffer(data, np.uint8), (about.st_ino, about.st_mtime_ns, about.st_size)
        return found, stamps

    def open(self, name: str) -> int:
        """Open a file for reading; return its descriptor, which the caller closes."""
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.descriptor)

    def remove(self, name: str) -> bool:
        """Remove a file if it exists; return whether it did."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)
            return True
        return False

    def replace_by_pipe(self, name: str) -> None:
        """Replace a file by a named pipe: opening it for writing then blocks until there is a reader."""
        self.remove(name)
        self._run("mkfifo", f"/proc/self/fd/{self.descriptor}/{name}")

    def unblock_writers(self, name: str) -> None:
        """Remove the named pipe, and release a process that is blocked opening it."""
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode):
                reader = self.open(name)
                self.remove(name)
                os.close(reader)

    def limit_file_size(self, most: int | None) -> None:
        """Limit the size of files that the rank writes, in bytes; None restores the limit."""
        lines = Path(f"/proc/{self.process.pid}/limits").read_text().splitlines()
        now, hard = next(line.split()[3:5] for line in lines if line.startswith("Max file size"))
        if now != (soft := hard if most is None else str(most)):
            self._run("prlimit", f"--pid={self.process.pid}", f"--fsize={soft}:")

    def close(self) -> None:
        """Close the folder."""
        os.close(self.descriptor)

    def _read(self, name: str, most: int) -> bytes:
        try:
            descriptor = self.open(name)
        except PermissionError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most)

    def _run(self, *words: str) -> None:
        """Run a program as the rank's user: in some containers, not even root may change another user's files and limits."""
        about = os.stat(self.descriptor)
        user = dict(user=about.st_uid, group=about.st_gid, extra_groups=[]) if not os.geteuid() and about.st_uid else {}
        subprocess.run(words, check=True, pass_fds=[self.descriptor], capture_output=True, **user)

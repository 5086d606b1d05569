"""What a rank holds, by the system's account of its process and of its folders, wherever an answer hides it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import psutil

from course_lib.cluster import sandbox

FILE = 2048  # bytes that the system has for a file in memory, its name included
MOST_THREADS, MOST_FILES = 300, 20_000
MOST_WRITTEN = 64 << 20  # bytes, where a rank's folder is on the disk


class Account:
    """The account of one rank's process, from now on.

    Parameters
    ----------
    process : psutil.Process
    room : Path or None
        Its folder on the disk; None where its folders are in memory.
    """

    def __init__(self, process: psutil.Process, room: Path | None):
        self.process, self._room, self._marked = process, room, None
        self._traces_then: set = set()
        try:
            self.began = self.used()
        except (OSError, psutil.Error):
            self.began = 0

    def used(self) -> int:
        """Bytes in memory and in files; names of files count, too."""
        written, files = self._files()
        return self._memory() + written + FILE * files

    def mark(self) -> None:
        """Begin anew with the most that was held at once, see `peak`."""
        self._marked = None
        with contextlib.suppress(OSError):  # not every system lets it be forgotten
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
            self._marked, self._traces_then = self._status("VmRSS:"), self._traces()

    def peak(self) -> int | None:
        """The most bytes in memory at once since `mark`, beyond those at that time; None where the system does not say.

        Who has written to a file meanwhile may have held there all that there is room for: files go again, and leave no account.
        """
        if self._marked is None:
            return None
        room = MOST_WRITTEN if self._room else sandbox.ROOM * len(sandbox.FOLDERS)
        return self._status("VmHWM:") - self._marked + room * (self._traces() != self._traces_then)

    def too_much(self) -> str | None:
        """What it has more of than it may, or None."""
        if (threads := self.process.num_threads()) > MOST_THREADS:
            return f"it had {threads:,} threads, and {MOST_THREADS:,} are what a rank may have"
        written, files = self._files()
        if files > MOST_FILES:
            return f"it had {files:,} files, and {MOST_FILES:,} are what a rank may have"
        if self._room and written > MOST_WRITTEN:
            return f"it had written {written:,} bytes, and {MOST_WRITTEN:,} are what a rank may write"
        return None

    def _memory(self) -> int:
        if not Path("/proc/self/status").exists():
            return self.process.memory_full_info().uss
        return self._status("RssAnon:", "VmSwap:", "HugetlbPages:")

    def _status(self, *names: str) -> int:
        """Bytes, the sum of some lines of the system's account."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(names))

    def _traces(self) -> set[tuple[int, int, int]]:
        """All files and folders where it may write, also those without a name that it has open, and when each was last changed."""
        root = f"/proc/{self.process.pid}"
        folders = [str(self._room)] if self._room else [f"{root}/root{folder}" for folder in sandbox.FOLDERS]
        found, devices = {}, {os.stat(folder).st_dev for folder in folders}
        while folders:
            with contextlib.suppress(OSError):
                path = folders.pop()
                found[path] = os.stat(path)
                for entry in os.scandir(path):
                    found[entry.path] = file = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(file.st_mode) and file.st_dev in devices:  # not what is shown there to read, such as Python
                        folders.append(entry.path)
        for descriptor in os.scandir(f"{root}/fd"):
            with contextlib.suppress(OSError):
                found[descriptor.path] = os.stat(descriptor.path)
        return {(file.st_dev, file.st_ino, file.st_ctime_ns) for file in found.values() if file.st_dev in devices}

    def _files(self) -> tuple[int, int]:
        """Bytes written, and how many files there are."""
        if not self._room:
            rooms = [os.statvfs(f"/proc/{self.process.pid}/root{folder}") for folder in sandbox.FOLDERS]
            return sum((r.f_blocks - r.f_bfree) * r.f_frsize for r in rooms), sum(r.f_files - r.f_ffree for r in rooms)
        written, files, folders = self._nameless(), 0, [self._room]
        while folders and files <= MOST_FILES:
            try:
                entries = list(os.scandir(folders.pop()))
            except OSError:
                continue
            files += len(entries)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    written += 512 * entry.stat(follow_symlinks=False).st_blocks
        return written, files

    def _nameless(self) -> int:
        """Bytes in files that have no name any more: they are there while they are open, or mapped."""
        found: dict[tuple[int, int], int] = {}
        for descriptor in os.scandir(f"/proc/{self.process.pid}/fd"):
            with contextlib.suppress(OSError):
                file = os.stat(descriptor.path)
                if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                    found[file.st_dev, file.st_ino] = 512 * file.st_blocks
        for line in Path(f"/proc/{self.process.pid}/maps").read_text().splitlines():
            if line.endswith(" (deleted)"):
                span, _, offset, device, inode, *_ = line.split()
                begin, end = (int(word, 16) for word in span.split("-"))
                major, minor = (int(word, 16) for word in device.split(":"))
                file = os.makedev(major, minor), int(inode)
                found[file] = max(found.get(file, 0), int(offset, 16) + end - begin)
        return sum(found.values())

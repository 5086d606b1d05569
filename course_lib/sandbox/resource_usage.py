"""Measure the memory of a rank by the system's account of its process and of its folders, wherever an answer hides it."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from course_lib.sandbox import bubblewrap

INODE_BYTES = 2048  # bytes that the system has for a file in memory, its name included
UNMEASURED_BYTES = 1 << 40  # bytes that count for what cannot be counted at all
MAX_THREADS, MAX_FILES = 300, 20_000
MAX_WRITTEN_BYTES = 64 << 20  # bytes, where a rank's folder is on the disk
MAPPED_FIELDS = "RssFile:", "RssShmem:"  # pages of files, such as a library's
STOP_SECONDS = 3  # seconds that a process has to stop: on a busy machine, one of its threads may have to wait for a core


class ResourceUsage:
    """The account of one rank's process, from now on.

    Parameters
    ----------
    process : psutil.Process
    room : Path or None
        Its folder on the disk; None where its folders are in memory.
    """

    def __init__(self, process: psutil.Process, room: Path | None):
        self.process, self._room, self._marked = process, room, None
        self._file_stamps_then: set | None = None
        self._kept = 0  # bytes in memory at `reset_peak` beyond those that it began with and may hold
        self._mapped = 0  # the least bytes of files in its memory since `reset_peak`
        try:
            self.baseline = self.used()
        except (OSError, psutil.Error):
            self.baseline = 0

    def used(self) -> int:
        """Bytes in memory and in files; names of files count, too. What cannot be counted counts in full."""
        if self._has_ended():
            return UNMEASURED_BYTES
        with self._stopped():
            written, files, whole = self._files()
            return self._memory() + (written if whole else self._most_written()) + INODE_BYTES * files

    def reset_peak(self, spare: float) -> None:
        """Begin anew with the most that was held at once, see `peak`; what is held already beyond so many bytes counts."""
        self._marked = None
        with contextlib.suppress(OSError):  # not every system lets it be forgotten
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
            self._file_stamps_then = self._file_stamps()
            self._mapped, self._kept = self._status(*MAPPED_FIELDS), max(0, self._memory() - self.baseline - spare)
            self._marked = self._status("VmRSS:") - self._mapped

    def sample(self) -> None:
        """See whether file pages, such as a library's, have been released since `reset_peak`: other memory may have replaced them."""
        if self._marked is not None:
            self._mapped = min(self._mapped, self._status(*MAPPED_FIELDS))

    def peak(self) -> int | None:
        """The most bytes in memory at once since `reset_peak`, beyond those at that time; None where the system does not say.

        Who has written to a file meanwhile may have held there all that there is room for: files go again, and leave no account.
        """
        if self._has_ended():
            return UNMEASURED_BYTES
        if self._marked is None:
            return None
        self.sample()
        traces = self._file_stamps()
        written = traces is None or traces != self._file_stamps_then
        return self._kept + self._status("VmHWM:") - self._marked - self._mapped + self._most_written() * written

    def exceeded_limit(self) -> str | None:
        """Name the limit that it exceeds, or None."""
        if self._has_ended():
            return "its main thread has ended, and the system has no account of the others"
        if (threads := self.process.num_threads()) > MAX_THREADS:
            return f"it had {threads:,} threads, and {MAX_THREADS:,} are what a rank may have"
        written, files, whole = self._files()
        if files > MAX_FILES:
            return f"it had {files:,} files, and {MAX_FILES:,} are what a rank may have"
        if self._room and not whole:  # a folder that has gone meanwhile is none of these
            with self._stopped():
                written, _, whole = self._files()
            if not whole:
                return "it had a folder that cannot be listed, or one that lies deeper than a path may be long"
        if self._room and written > MAX_WRITTEN_BYTES:
            return f"it had written {written:,} bytes, and {MAX_WRITTEN_BYTES:,} are what a rank may write"
        return None

    def _has_ended(self) -> bool:
        """Return whether its main thread has ended: other threads may go on, and hold what no account shows."""
        return self.process.status() == psutil.STATUS_ZOMBIE

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Stop the process meanwhile: nothing moves to where it has been looked for already."""
        self.process.suspend()
        try:
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until and not self._is_stopped():
                time.sleep(0.001)
            yield
        finally:
            with contextlib.suppress(psutil.Error):
                self.process.resume()

    def _is_stopped(self) -> bool:
        """Return whether none of its threads runs."""
        states = []
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
        return set(states) <= set("TtZX")

    def _most_written(self) -> int:
        """Bytes that there is room for in files."""
        return MAX_WRITTEN_BYTES if self._room else bubblewrap.FOLDER_BYTES * len(bubblewrap.WRITABLE_FOLDERS)

    def _memory(self) -> int:
        if not Path("/proc/self/status").exists():
            return self.process.memory_full_info().uss
        return self._status("RssAnon:", "VmSwap:", "HugetlbPages:", "VmPTE:")  # the last: which pages were touched is memory, too

    def _status(self, *names: str) -> int:
        """Bytes, the sum of some lines of the system's account."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(names))

    def _file_stamps(self) -> set[tuple[int, int, int]] | None:
        """All files and folders where it may write, also those without a name that it has open, and when each was last changed.

        None where some cannot be listed.
        """
        root = f"/proc/{self.process.pid}"
        folders = [str(self._room)] if self._room else [f"{root}/root{folder}" for folder in bubblewrap.WRITABLE_FOLDERS]
        found = [os.stat(folder) for folder in folders]
        devices = {folder.st_dev for folder in found}
        below, whole = listed(folders, devices)
        found += below
        for descriptor in os.scandir(f"{root}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.stat(descriptor.path))
        return {(file.st_dev, file.st_ino, file.st_ctime_ns) for file in found if file.st_dev in devices} if whole else None

    def _files(self) -> tuple[int, int, bool]:
        """Bytes written, how many files there are, and whether these are all: where the disk is shared, some may not be listed."""
        if not self._room:
            rooms = [os.statvfs(f"/proc/{self.process.pid}/root{folder}") for folder in bubblewrap.WRITABLE_FOLDERS]
            return sum((r.f_blocks - r.f_bfree) * r.f_frsize for r in rooms), sum(r.f_files - r.f_ffree for r in rooms), True
        found, whole = listed([str(self._room)], {self._room.stat().st_dev}, MAX_FILES)
        written = sum(512 * file.st_blocks for file in found if not stat.S_ISDIR(file.st_mode))
        return self._unlinked_bytes() + written, len(found), whole

    def _unlinked_bytes(self) -> int:
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


def listed(folders: list[str], devices: set[int], most: float = math.inf) -> tuple[list[os.stat_result], bool]:
    """Find what lies in some folders and below, up to about so many.

    Parameters
    ----------
    folders : list of str
    devices : set of int
        Whose folders are entered: others are shown there to read, such as Python.
    most : float
        How many are enough.

    Returns
    -------
    found : list of os.stat_result
    whole : bool
        Whether these are all: a folder may not be listed, or its path may be too long.
    """
    left, found, whole = list(folders), [], True
    while left and len(found) <= most:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    found.append(file := entry.stat(follow_symlinks=False))
                    if stat.S_ISDIR(file.st_mode) and file.st_dev in devices:
                        left.append(entry.path)
        except OSError:
            whole = False
    return found, whole

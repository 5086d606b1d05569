"""Memory of a rank, measured through the operating system: its process and its folders, wherever an answer may hide data."""

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
from course_lib.sandbox.process_pause import ProcessPause

INODE_BYTES = 2048  # kernel memory of a file in tmpfs, including its name
UNMEASURED_BYTES = 1 << 40  # counted for a process that cannot be measured
MAX_THREADS, MAX_FILES = 300, 20_000
MAX_WRITTEN_BYTES = 64 << 20  # if a rank's folder is on disk
MAPPED_FIELDS = "RssFile:", "RssShmem:"  # resident pages of files, such as libraries
STOP_SECONDS = 3  # for a process to stop: on a busy machine, its threads may have to wait for a core


class ResourceUsage:
    """Measures one rank's process; its usage at construction is the baseline.

    Parameters
    ----------
    process : psutil.Process
    room : Path or None
        Its folder on disk; None if its folders are in memory (`bubblewrap.WRITABLE_FOLDERS`).

    Attributes
    ----------
    baseline : int
        Bytes; set it to `used()` to start over.
    pause : ProcessPause
        Stops the process.
    """

    def __init__(self, process: psutil.Process, room: Path | None):
        self.process, self._room, self._marked = process, room, None
        self.pause = ProcessPause(process)
        self._cpu_seconds = 0.0
        self._file_stamps_then: set | None = None
        self._kept = 0  # bytes at `reset_peak` beyond the baseline and the spare bytes
        self._mapped = 0  # the smallest number of resident bytes of files since `reset_peak`
        try:
            self.baseline = self.used()
        except (OSError, psutil.Error):
            self.baseline = 0

    def used(self) -> int:
        """Return the bytes in memory and in files, including their names; what cannot be measured counts with its maximum."""
        if self._has_ended():
            return UNMEASURED_BYTES
        with self._stopped():
            written, files, whole = self._files()
            return self._memory() + (written if whole else self._most_written()) + INODE_BYTES * files

    def reset_peak(self, spare: float) -> None:
        """Start to measure peak memory, see `peak`; memory held already, beyond the baseline and `spare` bytes, counts as well."""
        self._marked = None
        with contextlib.suppress(OSError):  # not every system can reset a process's peak
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
            self._file_stamps_then = self._file_stamps()
            self._mapped, self._kept = self._status(*MAPPED_FIELDS), max(0, self._memory() - self.baseline - spare)
            self._marked = self._status("VmRSS:") - self._mapped

    def sample(self) -> None:
        """Take note of file pages that have been released since `reset_peak`: the peak RSS may have other memory in their place."""
        if self._marked is not None:
            self._mapped = min(self._mapped, self._status(*MAPPED_FIELDS))

    def peak(self) -> int | None:
        """Return the peak memory in bytes since `reset_peak`, beyond the usage at that time; None if the system cannot measure it.

        Deleted files cannot be measured, so if any file was written, the full size of the writable folders is added.
        """
        if self._has_ended():
            return UNMEASURED_BYTES
        if self._marked is None:
            return None
        self.sample()
        traces = self._file_stamps()
        written = traces is None or traces != self._file_stamps_then
        return self._kept + self._status("VmHWM:") - self._marked - self._mapped + self._most_written() * written

    def cpu_seconds(self) -> float:
        """Return the processor time that all threads of the process have used."""
        with contextlib.suppress(psutil.Error):  # after its end, the last known one
            spent = self.process.cpu_times()
            self._cpu_seconds = spent.user + spent.system
        return self._cpu_seconds

    def exceeded_limit(self) -> str | None:
        """Describe the limit that the process exceeds; None if there is none."""
        if self._has_ended():
            return "its main thread has ended, and the system cannot measure the others"
        if (threads := self.process.num_threads()) > MAX_THREADS:
            return f"it had {threads:,} threads; a rank may have at most {MAX_THREADS:,}"
        written, files, whole = self._files()
        if files > MAX_FILES:
            return f"it had {files:,} files; a rank may have at most {MAX_FILES:,}"
        if self._room and not whole:  # look again with the process stopped: a folder may just have been removed
            with self._stopped():
                written, _, whole = self._files()
            if not whole:
                return "it had a folder that cannot be listed, or one nested so deeply that its path is too long"
        if self._room and written > MAX_WRITTEN_BYTES:
            return f"it had written {written:,} bytes; a rank may write at most {MAX_WRITTEN_BYTES:,}"
        return None

    def _has_ended(self) -> bool:
        """Return whether the main thread has ended: other threads may run on, with memory that the system no longer reports."""
        return self.process.status() == psutil.STATUS_ZOMBIE

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """Context manager: stop the process, so that it cannot move data to a place that was measured already."""
        self.pause.hold("measured")
        try:
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until and not self.is_stopped():
                time.sleep(0.001)
            yield
        finally:
            self.pause.release("measured")

    def is_stopped(self) -> bool:
        """Return whether all threads of the process are stopped."""
        states = []
        with contextlib.suppress(OSError):
            for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
                with contextlib.suppress(OSError):
                    states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
        return set(states) <= set("TtZX")

    def _most_written(self) -> int:
        """Return the most bytes that the rank can have in files."""
        return MAX_WRITTEN_BYTES if self._room else bubblewrap.FOLDER_BYTES * len(bubblewrap.WRITABLE_FOLDERS)

    def _memory(self) -> int:
        if not Path("/proc/self/status").exists():
            return self.process.memory_full_info().uss
        # VmPTE: page tables can encode data by which pages were touched.
        return self._status("RssAnon:", "VmSwap:", "HugetlbPages:", "VmPTE:")

    def _status(self, *names: str) -> int:
        """Return the sum of some fields of /proc/PID/status, in bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(names))

    def _file_stamps(self) -> set[tuple[int, int, int]] | None:
        """Return device, inode and change time (ns) of all files and folders where the rank may write, including unlinked open files.

        None if some folder cannot be listed.
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
        """Measure the rank's files.

        Returns
        -------
        written : int
            Bytes.
        files : int
            Number of files and folders.
        whole : bool
            False if a folder on disk could not be listed.
        """
        if not self._room:
            rooms = [os.statvfs(f"/proc/{self.process.pid}/root{folder}") for folder in bubblewrap.WRITABLE_FOLDERS]
            return sum((r.f_blocks - r.f_bfree) * r.f_frsize for r in rooms), sum(r.f_files - r.f_ffree for r in rooms), True
        found, whole = listed([str(self._room)], {self._room.stat().st_dev}, MAX_FILES)
        written = sum(512 * file.st_blocks for file in found if not stat.S_ISDIR(file.st_mode))
        return self._unlinked_bytes() + written, len(found), whole

    def _unlinked_bytes(self) -> int:
        """Return the bytes in unlinked files, which exist as long as they are open or mapped."""
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
    """List files and folders recursively.

    Parameters
    ----------
    folders : list of str
    devices : set of int
        Devices whose folders are entered; mounts of other devices, such as Python's files, are not.
    most : float
        Stop after about this many.

    Returns
    -------
    found : list of os.stat_result
    whole : bool
        False if a folder could not be listed, or its path was too long.
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

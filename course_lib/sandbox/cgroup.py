"""A control group for a hand-in, where the system lends one: a limit for all of its processes together, and a way to end them all.
The hub makes one for each user's server.

Root has one on most machines, others where their login session was given one (systemd, `Delegate=`); elsewhere the limits of each process
hold alone. Version 2 is tried first, then version 1 (kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
MEMORY_BYTES = 4 << 30  # bytes of a hand-in, all of its processes together
MAX_PROCESSES = 512  # and threads
HUB_MEMORY_VARIABLE = "MEM_LIMIT"  # bytes of this server, all of its processes together
CPU_PERIOD_MICROSECONDS = 100_000  # microseconds in which processors are dealt out


@contextlib.contextmanager
def limited(name: str) -> Iterator[list[Path]]:
    """Groups for one hand-in, none where there are none to be had; whatever is still in them in the end is ended."""
    groups = create(name, MEMORY_BYTES, MAX_PROCESSES)
    try:
        yield groups
    finally:
        for group in groups:
            end(group)


def create(name: str, memory: int, processes: int, cores: float | None = None) -> list[Path]:
    """New groups of that name, none where there are none to be had.

    Parameters
    ----------
    name : str
    memory : int
        Bytes, of all of its processes together.
    processes : int
        And threads.
    cores : float, optional
        Processors that it may use; with 0, as many as there are, and a fair share where others want them, too.
    """
    return _create_v2(name, memory, processes, cores) or _create_v1(name, memory, processes, cores)


def available_bytes() -> int:
    """Bytes that this process's groups have left for it; a very large number where none has a limit.

    On a hub the groups are not to be seen; JupyterHub says the limit in the environment.
    """
    left = [1 << 60]
    if said := os.environ.get(HUB_MEMORY_VARIABLE):
        used = [process.info["memory_info"] for process in psutil.process_iter(["memory_info"])]
        left.append(int(said) - sum(memory.rss for memory in used if memory))
    for folder in (*_above(""), *_above("memory")):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with contextlib.suppress(OSError, ValueError):
                left.append(int((folder / most).read_text()) - int((folder / used).read_text()))
    return max(0, min(left))


def remove_stale(prefix: str, is_left: Callable[[Path], bool]) -> None:
    """End and remove the groups that graders have left that were killed."""
    for parent in {folder for controller in ("", "memory", "pids", "cpu") for folder in _above(controller)}:
        for group in parent.glob(f"{prefix}*"):
            if is_left(group):
                end(group)


def join(groups: list[Path], pid: int) -> None:
    """Put a process, and all that it will start, under the limits."""
    for group in groups:
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(pid))


def _own(controller: str) -> Path | None:
    """The path of this process's group below the controller's root; "" is version 2."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    found = [path for _, controllers, path in lines if controller in controllers.split(",")]
    return Path(found[0].lstrip("/")) if found else None


def _create_v2(name: str, memory: int, processes: int, cores: float | None) -> list[Path]:
    """A group beside this process's, or above, where the controllers are handed down."""
    for folder in _above(""):
        with contextlib.suppress(OSError):
            handed_down = (folder / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed_down):
                limits = {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}
                return [
                    _made(
                        folder / name,
                        limits | ({"cpu.max": f"{int(cores * CPU_PERIOD_MICROSECONDS)} {CPU_PERIOD_MICROSECONDS}"} if cores else {}),
                    )
                ]
    return []


def _above(controller: str) -> list[Path]:
    """The folder of this process's group, and those above it."""
    own, root = _own(controller), ROOT / controller
    return [] if own is None else [root / own, *(root / above for above in own.parents)]


def _create_v1(name: str, memory: int, processes: int, cores: float | None) -> list[Path]:
    groups, wanted = [], [("memory", {"memory.limit_in_bytes": memory}), ("pids", {"pids.max": processes})]
    if cores is not None:
        wanted.append(("cpu", {"cpu.cfs_quota_us": int(cores * CPU_PERIOD_MICROSECONDS)} if cores else {}))
    for controller, limits in wanted:
        own = _own(controller)
        with contextlib.suppress(OSError):
            if own is not None:
                groups.append(_made(ROOT / controller / own / name, limits))
    return groups


def _made(group: Path, limits: dict[str, int | str]) -> Path:
    group.mkdir()
    try:
        for file, most in limits.items():
            with contextlib.suppress(FileNotFoundError):  # without swap, there is none for it
                (group / file).write_text(str(most))
    except OSError:
        group.rmdir()
        raise
    return group


def end(group: Path) -> None:
    """End what is in it, and remove it; it may take a moment until the kernel lets go."""
    for _ in range(50):
        with contextlib.suppress(OSError, ValueError):
            for pid in (group / "cgroup.procs").read_text().split():
                if pid != "0":  # a process that this namespace does not know
                    os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return

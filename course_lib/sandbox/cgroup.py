"""Control groups for a submission, and for each user's server on the hub: limits for all processes together, and a way to end them all.

Root can create them on most machines, other users if their login session has a delegated group (systemd, ``Delegate=``); without them, only
the limits of each process apply. Version 2 is tried first, then version 1 (kernel documentation, admin-guide/cgroup-v2.rst and cgroup-v1/).
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
MEMORY_BYTES = 4 << 30  # of all processes of a submission
MAX_PROCESSES = 512  # processes and threads of a submission
MAX_CORES = 8.0  # of a submission: one for each rank; the system divides busy cores by group
HUB_MEMORY_VARIABLE = "MEM_LIMIT"  # set by JupyterHub: bytes of all processes of a user's server
CPU_PERIOD_MICROSECONDS = 100_000  # scheduling period of the CPU quota


@contextlib.contextmanager
def limited(name: str) -> Iterator[list[Path]]:
    """Context manager: create the groups for one submission (none if that is not possible), and end their processes on exit."""
    groups = create(name, MEMORY_BYTES, MAX_PROCESSES, MAX_CORES)
    try:
        yield groups
    finally:
        for group in groups:
            end(group)


def create(name: str, memory: int, processes: int, cores: float | None = None) -> list[Path]:
    """Create groups of this name: one with version 2, one per controller with version 1; none if that is not possible.

    Parameters
    ----------
    name : str
    memory : int
        Bytes, for all processes together.
    processes : int
        Number of processes and threads.
    cores : float, optional
        CPU cores; 0 for no limit, but a fair share.

    Returns
    -------
    list of Path
    """
    return _create_v2(name, memory, processes, cores) or _create_v1(name, memory, processes, cores)


def available_bytes() -> int:
    """Return the bytes of memory left in this process's groups; a very large number if none has a limit.

    On a hub, the groups are not visible, and the limit is taken from JupyterHub's environment variable.
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
    """End and remove groups left behind by killed graders; `is_left` tells whether a group is one."""
    for parent in {folder for controller in ("", "memory", "pids", "cpu") for folder in _above(controller)}:
        for group in parent.glob(f"{prefix}*"):
            if is_left(group):
                end(group)


def join(groups: list[Path], pid: int) -> None:
    """Move a process into the groups, and with it all processes that it will start."""
    for group in groups:
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(pid))


def _own(controller: str) -> Path | None:
    """Return the path of this process's group relative to the controller's root; "" is version 2."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    found = [path for _, controllers, path in lines if controller in controllers.split(",")]
    return Path(found[0].lstrip("/")) if found else None


def _create_v2(name: str, memory: int, processes: int, cores: float | None) -> list[Path]:
    """Create a group in the nearest folder, from this process's group upwards, that delegates the controllers."""
    for folder in _above(""):
        with contextlib.suppress(OSError):
            handed_down = (folder / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed_down):
                limits = {"memory.max": memory, "memory.swap.max": 0, "pids.max": processes}
                if cores:
                    limits["cpu.max"] = f"{int(cores * CPU_PERIOD_MICROSECONDS)} {CPU_PERIOD_MICROSECONDS}"
                return [_made(folder / name, limits)]
    return []


def _above(controller: str) -> list[Path]:
    """Return the folder of this process's group, and those above it."""
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
            if (group / file).exists():  # without swap, there is no memory.swap.max
                (group / file).write_text(str(most))
    except OSError:
        group.rmdir()
        raise
    return group


def end(group: Path) -> None:
    """Kill all processes in a group and remove it, retrying for up to 5 s until the kernel has released it."""
    for _ in range(50):
        with contextlib.suppress(OSError, ValueError):
            for pid in (group / "cgroup.procs").read_text().split():
                if pid != "0":  # 0: a process outside this PID namespace
                    os.kill(int(pid), signal.SIGKILL)
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return

"""Limits for all processes of a user together: memory, number of processes, processors."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
from pathlib import Path

from course_lib.sandbox import cgroup

STUDENT_PROCESSES = 512  # and threads, of a student: a server with three notebooks of 8 ranks has about 200
INSTRUCTOR_PROCESSES = 8192  # instructors grade several submissions at a time
MAX_USER_OPEN_FILES = 4096  # for each process: eight ranks take a hundred sockets


def name_of(hub: Path, uid: int | str) -> str:
    """Return the name of a user's control groups, which differs between hubs in different folders."""
    return f"course-hub-{hashlib.sha256(bytes(hub)).hexdigest()[:8]}-{uid}"


def made(hub: Path, uid: int, memory: int | None, cores: float | None, processes: int) -> list[Path]:
    """Create control groups for a user's server; what an earlier one has left is ended first."""
    name = name_of(hub, uid)
    cgroup.remove_stale(name, lambda group: group.name == name)
    return cgroup.create(name, memory or 1 << 50, processes, cores or 0)


def tidy(hub: Path) -> None:
    """End and remove what a killed hub in that folder has left."""
    cgroup.remove_stale(name_of(hub, ""), lambda group: True)


def enter(groups: list[Path], processes: int = STUDENT_PROCESSES) -> None:
    """Put this process, which still is root's, and all that it will start, under the limits."""
    cgroup.join(groups, os.getpid())
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = MAX_USER_OPEN_FILES if hard_limit == resource.RLIM_INFINITY else min(MAX_USER_OPEN_FILES, hard_limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))  # of the user, across all sandboxes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # so that it is not the Hub that is killed if memory runs out


def missing(groups: list[Path]) -> list[str]:
    """Return the resources for which these groups have no limit."""
    held = {kind for kind, files in _SIGNS.items() if any((g / f"{kind}.{file}").exists() for g in groups for file in files)}
    return [word for kind, word in (("memory", "memory"), ("pids", "processes"), ("cpu", "processors")) if kind not in held]


def problem(hub: Path) -> str | None:
    """Return which of these limits are missing on this machine, in a sentence; None if all hold."""
    groups = made(hub, 0, 1 << 30, 1, STUDENT_PROCESSES)
    found = missing(groups)
    for group in groups:
        cgroup.end(group)
    if not found:
        return None
    return (
        f"There is no limit for the {' and '.join(found)} of a user's processes together: the system provides no control group for it. "
        "Usual causes: the Hub does not run as root, or runs in a container without cgroups."
    )


_SIGNS = {"memory": ("max", "limit_in_bytes"), "pids": ("max",), "cpu": ("max", "shares")}

"""Limits for all processes of a user together: memory, processes, processors."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
from pathlib import Path

from course_lib.sandbox import cgroup

STUDENT_PROCESSES = 512  # and threads, of one user: a server with three notebooks of 8 ranks has about 200
INSTRUCTOR_PROCESSES = 8192  # who grade several hand-ins at a time
MAX_USER_OPEN_FILES = 4096  # that a process may have open: eight ranks take a hundred sockets


def name_of(hub: Path, uid: int | str) -> str:
    """What a user's control groups are called; those of a hub in another folder have other names."""
    return f"course-hub-{hashlib.sha256(bytes(hub)).hexdigest()[:8]}-{uid}"


def made(hub: Path, uid: int, memory: int | None, cores: float | None, processes: int) -> list[Path]:
    """Control groups for a user's server; what an earlier one has left is ended first."""
    name = name_of(hub, uid)
    cgroup.remove_stale(name, lambda group: group.name == name)
    return cgroup.create(name, memory or 1 << 50, processes, cores or 0)


def tidy(hub: Path) -> None:
    """End and remove what a hub in that folder has left that was killed."""
    cgroup.remove_stale(name_of(hub, ""), lambda group: True)


def enter(groups: list[Path], processes: int = STUDENT_PROCESSES) -> None:
    """Put this process, root's still, under the limits, and all that it will start."""
    cgroup.join(groups, os.getpid())
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = MAX_USER_OPEN_FILES if most == resource.RLIM_INFINITY else min(MAX_USER_OPEN_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))  # of the user, here as well as in other walls
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # where memory runs out, it is not the Hub that goes


def missing(groups: list[Path]) -> list[str]:
    """For what there is no limit in these groups."""
    held = {kind for kind, files in _SIGNS.items() if any((g / f"{kind}.{file}").exists() for g in groups for file in files)}
    return [word for kind, word in (("memory", "memory"), ("pids", "processes"), ("cpu", "processors")) if kind not in held]


def problem(hub: Path) -> str | None:
    """What is missing of these limits on this machine, in a sentence; None if all hold."""
    groups = made(hub, 0, 1 << 30, 1, STUDENT_PROCESSES)
    found = missing(groups)
    for group in groups:
        cgroup.end(group)
    if not found:
        return None
    return (
        f"No limit holds for {' and '.join(found)} of a user's processes together: the system lends no control group for them. "
        "Usual causes: the Hub is not root, or runs in a container without cgroups."
    )


_SIGNS = {"memory": ("max", "limit_in_bytes"), "pids": ("max",), "cpu": ("max", "shares")}

"""The container in which a submission is graded: isolation of the ranks, memory kills, and cleanup."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

import psutil

from course_lib.cluster.isolated.launcher import RankFolders, remove_tree
from course_lib.sandbox import bubblewrap, landlock, seccomp
from grading.submission.sandbox import SANDBOX_VARIABLE, NoSandbox

LANDLOCK_ABI_TRUNCATE = 3  # the first Landlock version that also protects files from truncation
OOM_COUNTER_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # of a container, cgroup versions 2 and 1


def isolation() -> tuple[str, str]:
    """Return the isolation available here: the value for `SANDBOX`, and a sentence for the instructor.

    Raises
    ------
    NoSandbox
        Nothing here keeps an answer away from the results and the tests.
    """
    problem = bubblewrap.problem()
    unlimited = f" Their system calls were not limited: {missing}." if (missing := seccomp.problem()) else ""
    if not problem and os.environ.get(SANDBOX_VARIABLE) != "none":
        return "", f"The ranks were isolated by bubblewrap.{unlimited}"
    why = problem or f"{SANDBOX_VARIABLE}=none"
    if landlock.abi_version() >= LANDLOCK_ABI_TRUNCATE:
        return "none", f"The ranks were isolated by Landlock, without bubblewrap ({why}).{unlimited}"
    rank_folders = RankFolders()
    try:
        if rank_folders.other_users:
            return "none", f"The ranks ran as users that own nothing, without bubblewrap ({why}) and without Landlock.{unlimited}"
    finally:
        remove_tree(rank_folders.folder)
    raise NoSandbox(
        f"the autograder cannot keep answers away from the tests here: {why}; it needs Linux 6.2 or newer (Landlock), or root. "
        "Please tell your instructor"
    )


def oom_kills() -> int:
    """Return the number of processes of this container killed for lack of memory, as far as known."""
    for path in map(Path, OOM_COUNTER_FILES):
        if path.exists() and (found := re.search(r"^oom_kill (\d+)", path.read_text(), re.MULTILINE)):
            return int(found[1])
    return 0


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that all of them can be killed in the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def kill_descendants() -> None:
    """Kill all processes that this run has started."""
    for _ in range(20):
        left = psutil.Process().children(recursive=True)
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        if not left:
            return
        psutil.wait_procs(left, timeout=0.5)

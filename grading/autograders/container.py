"""The container in which a hand-in is graded: how it keeps the ranks apart, whether its memory ran out, and that nothing stays behind."""

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

LANDLOCK_ABI_TRUNCATE = 3  # the first version of Landlock that also keeps a file from being emptied
OOM_COUNTER_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # of a container, in versions 2 and 1


def isolation() -> tuple[str, str]:
    """How the ranks can be isolated here: the word for `SANDBOX`, and a sentence for the instructor.

    Raises
    ------
    NoSandbox
        Nothing here would keep an answer from the results and the tests.
    """
    problem = bubblewrap.problem()
    unlimited = f" Their system calls were not limited: {missing}." if (missing := seccomp.problem()) else ""
    if not problem and os.environ.get(SANDBOX_VARIABLE) != "none":
        return "", f"The ranks were isolated by bubblewrap.{unlimited}"
    why = problem or f"{SANDBOX_VARIABLE}=none"
    if landlock.abi_version() >= LANDLOCK_ABI_TRUNCATE:
        return "none", f"The ranks were isolated by Landlock, without bubblewrap ({why}).{unlimited}"
    place = RankFolders()
    try:
        if place.other_users:
            return "none", f"The ranks ran as users that own nothing, without bubblewrap ({why}) and without Landlock.{unlimited}"
    finally:
        remove_tree(place.folder)
    raise NoSandbox(
        f"the autograder cannot keep an answer from the tests here: {why}; Linux 6.2 or newer (Landlock) would do, and so would root. "
        "Please tell your instructor"
    )


def oom_kills() -> int:
    """How many processes of this container the system has ended because memory ran out, as far as that is known."""
    for path in map(Path, OOM_COUNTER_FILES):
        if path.exists() and (found := re.search(r"^oom_kill (\d+)", path.read_text(), re.MULTILINE)):
            return int(found[1])
    return 0


def become_subreaper() -> None:
    """Have those whose parents have gone as children of this process: so nobody is out of reach in the end."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def kill_descendants() -> None:
    """End all that this run has started."""
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

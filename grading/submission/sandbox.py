"""Isolation of a submission's ranks on this machine, and the notice about it."""

from __future__ import annotations

import os

from course_lib.sandbox import bubblewrap, landlock, seccomp

SANDBOX_VARIABLE = "SANDBOX"  # set by the instructor: SANDBOX=none


class NoSandbox(Exception):
    """There is no sandbox, and nobody has allowed grading without one."""


def sandbox_variables() -> dict[str, str]:
    """Return environment variables for the process that grades.

    Raises
    ------
    NoSandbox
        The message says why there is none, and what to do.
    """
    problem = bubblewrap.problem()
    if problem is None and os.environ.get(SANDBOX_VARIABLE) != "none":
        return {bubblewrap.ISOLATION_VARIABLE: bubblewrap.SANDBOXED}
    if os.environ.get(SANDBOX_VARIABLE) == "none":
        return {bubblewrap.ISOLATION_VARIABLE: bubblewrap.UNSANDBOXED}
    raise NoSandbox(
        f"No sandbox: {problem}. Without one, the students' code runs with your permissions; grading/README.md says what it can reach. "
        "Where that does no harm, such as in a container that holds nothing else, add SANDBOX=none to the command."
    )


def isolation_notice() -> str:
    """Describe the isolation for the instructor, in one line."""
    unlimited = f" Their system calls are not limited: {why}." if (why := seccomp.problem()) else ""
    if sandbox_variables()[bubblewrap.ISOLATION_VARIABLE] == bubblewrap.SANDBOXED:
        return f"Each rank runs in a sandbox of its own (bubblewrap): no network, no files, no other processes.{unlimited}"
    hidden = "with your permissions, but Landlock hides your files from it" if landlock.abi_version() else "as you, with all your files"
    return f"Without a sandbox, as you asked: the students' code runs {hidden}, and ranks can exchange data that is not counted.{unlimited}"

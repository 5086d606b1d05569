"""How the ranks of a hand-in are isolated here, and saying so."""

from __future__ import annotations

import os

from course_lib.sandbox import bubblewrap, landlock, seccomp

SANDBOX_VARIABLE = "SANDBOX"  # the instructor's word: SANDBOX=none


class NoSandbox(Exception):
    """There is no sandbox, and nobody has said that grading goes without one."""


def sandbox_variables() -> dict[str, str]:
    """Environment variables for the process that grades.

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
        f"No sandbox: {problem}. Without one, the students' code runs with your rights; grading/README.md says what it can reach then. "
        "Where that does no harm, in a container that holds nothing else say, add SANDBOX=none to the command."
    )


def isolation_notice() -> str:
    """One line for the instructor."""
    unlimited = f" Their system calls are not limited: {why}." if (why := seccomp.problem()) else ""
    if sandbox_variables()[bubblewrap.ISOLATION_VARIABLE] == bubblewrap.SANDBOXED:
        return f"Each rank runs in a sandbox of its own (bubblewrap): no network, no files, no other processes.{unlimited}"
    hidden = "with your rights, but Landlock hides your files from it" if landlock.abi_version() else "as you, with all your files"
    return f"Without a sandbox, as you said: the students' code runs {hidden}, and ranks can tell each other what nobody counts.{unlimited}"

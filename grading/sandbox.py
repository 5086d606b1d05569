"""Whether the ranks of a submission run in a sandbox, and saying so once."""

from __future__ import annotations

from functools import cache

from course_lib.cluster import sandbox


@cache
def settings() -> dict[str, str]:
    """Environment variables that put the ranks into a sandbox, where there is one."""
    return {sandbox.SANDBOX: "1"} if sandbox.problem() is None else {}


def notice() -> str:
    """One line for the instructor."""
    problem = sandbox.problem()
    if problem is None:
        return "The students' code runs in a sandbox (bubblewrap): no network, no files but its own."
    return f"No sandbox: {problem}. The students' code runs as you, so grade on a machine that holds nothing of value."

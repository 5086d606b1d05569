"""A sandbox for ranks whose code nobody has read: no network, no other processes, no files to change.

It uses bubblewrap (`bwrap`), on Linux. The ranks reach the controller by Unix sockets in their
own folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SANDBOX = "COURSE_SANDBOX"  # set to 1 by grading


def command(folder: Path) -> tuple[str, ...]:
    """The bwrap command in which the ranks of this folder run.

    What they see: the system, read only; this Python and course_lib; the folder, which they may
    write to. Not the home folder, not the course (solutions, gradebook, submissions).
    """
    home, course = Path.home(), Path(__file__).resolve().parents[2]
    bare = ["--tmpfs", "/tmp", "--tmpfs", str(home), "--tmpfs", str(course)]
    shown = {sys.base_prefix, sys.prefix, str(course / "course_lib"), os.environ.get("COURSE_DATA_DIR", "")}
    binds = [word for path in sorted(p for p in shown if p) for word in ("--ro-bind-try", path, path)]
    return (
        "bwrap",
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *bare, *binds, "--bind", str(folder), str(folder)),
        *("--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session", "--chdir", str(folder)),
    )


@cache
def problem() -> str | None:
    """Why there is no sandbox on this machine, or None when there is one."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap is for Linux"
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed (apt install bubblewrap)"
    tried = subprocess.run([*command(Path("/var/tmp")), "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"bubblewrap does not work here ({tried.stderr.strip()[:120]})"

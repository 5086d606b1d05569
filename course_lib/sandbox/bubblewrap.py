"""Sandbox of an isolated rank: what untrusted code may see, write and use.

On Linux, it is bubblewrap (``bwrap``): new user, PID, network, mount and IPC namespaces, no capabilities, and only Python, the course's
library and the system's shared objects as read-only files. If the grader is root, the rank runs as a user that owns nothing. Resource
limits apply with and without bubblewrap; `engine.isolated_rank` sets them, and they cannot be lifted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ISOLATION_VARIABLE = "COURSE_ISOLATED"  # set when grading, to one of the following: ranks in bubblewrap, or without it
SANDBOXED, UNSANDBOXED = "walled", "open"
WRITABLE_FOLDERS = ("/tmp", "/dev/shm")  # in memory, private to the rank, and gone with it
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
HIDDEN_FOLDERS = ("sim/plan",)  # parts of course_lib that would solve an exercise
FOLDER_BYTES = 8 << 20  # size of each writable folder
FIRST_USER_ID = 1_999_999_000  # of a range of user ids that no system assigns, one for each rank, so that ranks do not share a user

# The complete environment of a rank, apart from variables for threads and MPI.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/tmp",
    "IPYTHONDIR": "/tmp/ipython",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "MPLBACKEND": "agg",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def limits() -> dict[str, int]:
    """Return a rank's resource limits (setrlimit(2)): sizes in bytes, CPU time in seconds."""
    none = dict.fromkeys(("RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE"), 0)
    return {"RLIMIT_DATA": 1 << 30, "RLIMIT_FSIZE": FOLDER_BYTES, "RLIMIT_CPU": 600, **none}


def sandbox_command(library: Path, data: str = "", rank: int = 0) -> tuple[str, ...]:
    """Return the command prefix that runs a rank in the sandbox.

    Parameters
    ----------
    library : Path
        The folder that contains course_lib.
    data : str
        A folder with data sets, which is readable; may be empty.
    rank : int

    Returns
    -------
    tuple of str
        To be followed by the rank's own command.
    """
    binds = _binds(library, data)
    writable = [word for path in WRITABLE_FOLDERS for word in ("--size", str(FOLDER_BYTES), "--tmpfs", path)]
    devices = [word for path in DEVICES for word in ("--dev-bind", path, path)]
    alone = ("--unshare-all", "--as-pid-1", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--chdir", "/tmp")
    inner = ("bwrap", *writable, *binds, *devices, "--remount-ro", "/", *alone)
    if os.geteuid():
        return inner
    # As root: an outer bubblewrap builds a tree where the rank's user can reach Python even in root's home, then setpriv becomes that user.
    tools = [shutil.which(name) or name for name in ("bwrap", "setpriv")]
    programs = [word for path in tools for word in ("--ro-bind", path, path)]
    places = [Path(word) for word in (*binds, *programs, *devices) if word.startswith("/")]
    above = sorted({str(folder) for place in places for folder in place.parents if folder != Path("/")})
    folders = [word for path in above for word in ("--dir", path)]  # folders that bubblewrap creates itself are accessible to root only
    # A process without capabilities may not kill another user's when it dies; the end of its namespace of processes does.
    ends = ("--unshare-pid", "--die-with-parent")
    outer = ("bwrap", "--dir", "/tmp", *folders, *binds, *programs, *devices, "--bind", "/proc", "/proc", *ends, "--")
    user = FIRST_USER_ID + rank
    return (*outer, "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *inner)


def readable_paths(library: Path, data: str = "") -> list[str]:
    """Return the paths that a rank may read: Python, the course's library, the system's shared objects, and the data sets' folder."""
    python = {sys.base_prefix} if sys.base_prefix not in ("/usr", "/") else _links(sys.executable)
    python = {path for path in python if not path.startswith(f"{sys.prefix}/")}
    own = sorted(path for path in {sys.prefix, *python, str(library / "course_lib"), data} if path)
    return [path for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache") if os.path.lexists(path)] + own


def _links(path: str) -> set[str]:
    """Return the chain of files that a symbolic link leads to: .venv/bin/python, /usr/bin/python3, /usr/bin/python3.11."""
    found = set()
    while os.path.islink(path):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        found.add(path)
    return found or {path}


def _binds(library: Path, data: str) -> list[str]:
    words = []
    for path in readable_paths(library, data):
        link = path.startswith("/lib") and os.path.islink(path)
        words += ["--symlink", os.readlink(path), path] if link else ["--ro-bind", path, path]
    for path in (str(library / "course_lib" / folder) for folder in HIDDEN_FOLDERS):
        words += ["--tmpfs", path, "--remount-ro", path]
    return words


@cache
def problem() -> str | None:
    """Return the reason why bubblewrap cannot be used on this machine, or None if it can."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap is for Linux"
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed (apt install bubblewrap)"
    tried = [*sandbox_command(Path(__file__).resolve().parents[2]), sys.executable, "-I", "-S", "-c", ""]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"bubblewrap does not work here ({done.stderr.strip()[:120]})"

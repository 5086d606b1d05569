"""The wall round a rank whose code nobody has read: what it may see, write and use.

On Linux it is bubblewrap (`bwrap`): namespaces of its own for users, processes, network, mounts and messages, no capabilities, and of
the files only Python, the course's library and the system's shared objects, read only. Where the grader is root, the rank runs as a
user that owns nothing. Limits of the system hold everywhere; `engine.isolated_rank` sets them, and they cannot be lifted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ISOLATION_VARIABLE = "COURSE_ISOLATED"  # set when grading, to one of these: each rank in a sandbox, or without one
SANDBOXED, UNSANDBOXED = "walled", "open"
WRITABLE_FOLDERS = ("/tmp", "/dev/shm")  # where a rank may write: in memory, and gone with it
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
HIDDEN_FOLDERS = ("sim/plan",)  # of course_lib, what would do an exercise for a student
FOLDER_BYTES = 8 << 20  # bytes that it may write to each
FIRST_USER_ID = 1_999_999_000  # the first of some user ids that no system gives to anybody, one for each rank: they share no account

# All that a rank's environment has, beside what its threads and MPI need.
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
    """Return a rank's resource limits: bytes of memory and of a file, seconds of a processor, locks and messages."""
    return {
        "RLIMIT_DATA": 1 << 30,
        "RLIMIT_FSIZE": FOLDER_BYTES,
        "RLIMIT_CPU": 600,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }


def sandbox_command(library: Path, data: str = "", rank: int = 0) -> tuple[str, ...]:
    """The command in which one rank runs.

    Parameters
    ----------
    library : Path
        The folder in which course_lib lies.
    data : str
        A folder with data sets, if there is one.
    rank : int
    """
    binds = _binds(library, data)
    writable = [word for path in WRITABLE_FOLDERS for word in ("--size", str(FOLDER_BYTES), "--tmpfs", path)]
    devices = [word for path in DEVICES for word in ("--dev-bind", path, path)]
    inner = (
        *("bwrap", *writable, *binds, *devices, "--remount-ro", "/"),
        *("--unshare-all", "--as-pid-1", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--chdir", "/tmp"),
    )
    if os.geteuid():
        return inner
    # Root first shows a tree in which that user may reach Python, also where it lies in root's home, and then becomes that user.
    tools = [shutil.which(name) or name for name in ("bwrap", "setpriv")]
    programs = [word for path in tools for word in ("--ro-bind", path, path)]
    places = [Path(word) for word in (*binds, *programs, *devices) if word.startswith("/")]
    above = sorted({str(folder) for place in places for folder in place.parents if folder != Path("/")})
    folders = [word for path in above for word in ("--dir", path)]  # bubblewrap's own would be for root alone
    return (
        *("bwrap", "--dir", "/tmp", *folders, *binds, *programs, *devices, "--bind", "/proc", "/proc"),
        *(
            "--die-with-parent",
            "--",
            "setpriv",
            f"--reuid={FIRST_USER_ID + rank}",
            f"--regid={FIRST_USER_ID + rank}",
            "--clear-groups",
            *inner,
        ),
    )


def readable_paths(library: Path, data: str = "") -> list[str]:
    """Return the paths that a rank may read: Python, the course's library, the system's shared objects, a folder with data sets."""
    python = {sys.base_prefix} if sys.base_prefix not in ("/usr", "/") else _links(sys.executable)
    python = {path for path in python if not path.startswith(f"{sys.prefix}/")}
    own = sorted(path for path in {sys.prefix, *python, str(library / "course_lib"), data} if path)
    return [path for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache") if os.path.lexists(path)] + own


def _links(path: str) -> set[str]:
    """The files that a link leads to, one after the other: .venv/bin/python, /usr/bin/python3, /usr/bin/python3.11."""
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
    """Return why there is no sandbox on this machine, or None when there is one."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap is for Linux"
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed (apt install bubblewrap)"
    tried = [*sandbox_command(Path(__file__).resolve().parents[2]), sys.executable, "-I", "-S", "-c", ""]
    done = subprocess.run(tried, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"bubblewrap does not work here ({done.stderr.strip()[:120]})"

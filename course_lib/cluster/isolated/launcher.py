"""Start the process of an isolated rank: in a bubblewrap sandbox, or without one, in a private folder with a copy of the library."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from course_lib.engine.processes.mpiexec import LOOPBACK_VARIABLES, SMALL_QUEUE_VARIABLES, THREAD_VARIABLES
from course_lib.sandbox import bubblewrap, seccomp

LIBRARY_PARENT = Path(__file__).resolve().parents[3]
SAME_ROUTINES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # so that a rank computes with those of the process that checks it


class RankFolders:
    """Private folders for ranks without a sandbox, and their copy of the library; if root grades, each rank runs as a user of its own.

    Attributes
    ----------
    folder : Path
        Contains all of the below; other users can enter it, but not list it.
    library : Path
        The folder that contains the copy of course_lib; readable by all.
    folders : dict of int to Path
        The folder of each rank, under a random name.
    other_users : bool
        Whether each rank has a user id of its own.
    """

    def __init__(self):
        self.folder, self.folders = Path(tempfile.mkdtemp(prefix="course-ranks-")), {}
        self.other_users, self.library = False, self.folder / "library"
        shutil.copytree(LIBRARY_PARENT / "course_lib", self.library / "course_lib", ignore=shutil.ignore_patterns("__pycache__"))
        for folder in bubblewrap.HIDDEN_FOLDERS:
            shutil.rmtree(self.library / "course_lib" / folder)
        if hasattr(os, "geteuid") and not os.geteuid() and _others_may_run_python():
            self.other_users = True
            self.folder.chmod(0o711)
            _run("chmod", "-R", "go+rX", self.library)

    def create(self, rank: int) -> Path:
        """Create the folder to which one rank may write; other ranks do not know its name, and with Landlock cannot open it."""
        room = self.folders[rank] = self.folder / secrets.token_hex(16)
        room.mkdir(mode=0o700)
        if self.other_users:
            os.chown(room, bubblewrap.FIRST_USER_ID + rank, bubblewrap.FIRST_USER_ID + rank)
        return room

    def user(self, rank: int) -> dict[str, object]:
        """Return the arguments of `subprocess.Popen` that make a process run as a rank's user."""
        return _user(rank) if self.other_users else {}


def remove_tree(folder: Path) -> None:
    """Remove a folder, whatever is in it; `shutil.rmtree` fails on folders nested a thousand deep."""
    _run("rm", "-rf", folder)
    if folder.exists():  # it contains folders without permissions
        _run("chmod", "-R", "u+rwx", folder)
        _run("rm", "-rf", folder)


def start_rank(rank: int, n: int, line: int, log: int, place: RankFolders | None) -> subprocess.Popen:
    """Start one of `n` ranks.

    Parameters
    ----------
    rank, n : int
    line, log : int
        File descriptors: the rank's socket to the broker, and a pipe for its output outside of cells.
    place : RankFolders or None
        None to run it in bubblewrap.

    Returns
    -------
    subprocess.Popen
        The outermost process; see `ranks.IsolatedRanks.rank_process`.
    """
    library = place.library if place else LIBRARY_PARENT
    words = [sys.executable, "-I", str(library / "course_lib/engine/isolated_rank.py"), str(library), str(rank), str(n), str(line)]
    data = os.environ.get("COURSE_DATA_DIR", "")
    environment = {
        **THREAD_VARIABLES,
        **LOOPBACK_VARIABLES,
        **SMALL_QUEUE_VARIABLES,
        **bubblewrap.ENVIRONMENT,
        **{name: os.environ[name] for name in SAME_ROUTINES if name in os.environ},
        "COURSE_LIMITS": json.dumps(bubblewrap.limits()),
    }
    if data:
        environment["COURSE_DATA_DIR"] = data
    if not seccomp.problem():
        environment["COURSE_FILTERED"] = "1"  # the rank exits unless it can install the filter
    how = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(line,), start_new_session=True)
    if not place:
        return subprocess.Popen([*bubblewrap.sandbox_command(LIBRARY_PARENT, data, rank), *words], env=environment, cwd="/", **how)
    room = place.create(rank)
    files = {"read": bubblewrap.readable_paths(library, data), "write": [str(room), *bubblewrap.DEVICES]}
    environment |= {"COURSE_FILES": json.dumps(files), "HOME": str(room), "TMPDIR": str(room)}
    environment |= {name: str(room / name.lower()) for name in ("IPYTHONDIR", "MPLCONFIGDIR")}
    return subprocess.Popen(words, env=environment, cwd=room, **how, **place.user(rank))


def _user(rank: int) -> dict[str, object]:
    return dict(user=bubblewrap.FIRST_USER_ID + rank, group=bubblewrap.FIRST_USER_ID + rank, extra_groups=[])


def _others_may_run_python() -> bool:
    tried = [sys.executable, "-I", "-S", "-c", ""]
    streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run(tried, **_user(0), cwd="/", check=False, **streams)
    except OSError:
        return False
    return done.returncode == 0


def _run(*words: object) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run([*map(str, words)], stderr=subprocess.DEVNULL, timeout=60, check=False)

"""The processes behind a cluster: ipyparallel's controller, and one engine a rank under mpiexec.

They are started at the same time, as what takes long is their imports.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from course_lib.cluster import sandbox
from course_lib.engine import watchdog
from course_lib.engine.mpiexec import LOOPBACK, SMALL, THREADS, find_mpiexec


@dataclass
class Processes:
    """A controller and an mpiexec, and the folder with their files."""

    n: int
    folder: Path
    controller: subprocess.Popen | Adopted
    mpiexec: subprocess.Popen | Adopted

    @property
    def client_file(self) -> Path:
        """ipyparallel's connection file for clients."""
        return self.folder / "security" / "ipcontroller-client.json"

    def ended(self) -> str | None:
        """None while all run; else what ended and the last lines of its log."""
        for name, process in (("mpiexec", self.mpiexec), ("the controller", self.controller)):
            if process.poll() is not None:
                return f"{name} ended with exit code {process.returncode}.\n{self.log()}".strip()
        return None

    def log(self, lines: int = 12) -> str:
        """The last lines that the processes wrote."""
        with contextlib.suppress(OSError):
            text = (self.folder / "log.txt").read_text(errors="replace")
            return "\n".join(text.strip().splitlines()[-lines:])
        return ""

    def obituary(self) -> str:
        """Which rank's process ended first, and how, in a sentence or two."""
        log = self.log(60)
        found = re.search(r"rank (\d+) ended with code (-?\d+)", log)  # what the zygote writes
        found = found or re.search(r"\[0\](\d+):Return code = ([1-9]\d*)", log)  # what mpiexec.gforker writes
        if not found:
            return f"a rank's process ended. The last lines that the ranks wrote:\n{log}\n"
        code = int(found[2])
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the process of rank {found[1]} ended, {how}. Usual causes: os._exit or sys.exit in a function, or memory that ran out."

    def stop(self) -> None:
        """End all processes and remove the folder; safe to call again."""
        for process in (self.mpiexec, self.controller):
            _kill_group(process)
        # Ranks may be in process groups of their own: mpiexec's helper ends them when it goes.
        for process in (self.mpiexec, self.controller):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)


def launch(n: int) -> Processes:
    """Start `n` ranks; returns at once, while they come up.

    Parameters
    ----------
    n : int
        Number of ranks.

    Raises
    ------
    StartError
        There is no mpiexec.
    """
    mpiexec = find_mpiexec()
    folder, started = Path(tempfile.mkdtemp(prefix="course-ranks-")), []
    try:
        (folder / "security").mkdir()
        environment = {**os.environ, **THREADS, **LOOPBACK, **SMALL, **watchdog.environment(str(folder))}
        environment.pop("JPY_PARENT_PID", None)
        wrap, inside = (), environment
        if os.environ.get(sandbox.SANDBOX):
            # Processes outside cannot be seen from in there; bubblewrap ends with its parent instead.
            wrap, inside = sandbox.command(folder), {k: v for k, v in environment.items() if k != watchdog.OWNER}
        python = [sys.executable, "-m"]
        commands = (
            ([*python, "course_lib.engine.controller", str(n), str(folder), json.dumps(_network(folder))], environment),
            ([*wrap, *python, "course_lib.engine.mpiexec", mpiexec, str(n), str(folder)], inside),
        )
        with (folder / "log.txt").open("wb") as log:
            for command, env in commands:
                streams = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                started.append(subprocess.Popen(command, env=env, cwd=folder, start_new_session=True, **streams))
        (folder / "processes.json").write_text(json.dumps([n, *(process.pid for process in started)]))
    except BaseException:  # an interrupt, too, leaves nothing behind
        for process in started:
            _kill_group(process)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Processes(n, folder, *started)


class Adopted:
    """A process that another one has started; as much of Popen as `Processes` needs."""

    def __init__(self, pid: int):
        self.pid, self.returncode = pid, None
        self._process = psutil.Process(pid)

    def poll(self) -> int | None:
        if not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE:
            self.returncode = 0
        return self.returncode

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)


def adopt(n: int, folder: Path) -> Processes | None:
    """The processes that someone else launched with this folder, if they are `n` ranks."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        count, controller, ranks = json.loads((folder / "processes.json").read_text())
        if count == n:
            return Processes(n, folder, Adopted(controller), Adopted(ranks))
    return None


def _network(folder: Path) -> dict[str, str]:
    """Unix sockets where their path fits: only this user can reach them, and no port is open."""
    where = folder / "s"
    if len(str(where)) < 80 and sys.platform != "darwin":
        return {"transport": "ipc", "ip": str(where), "location": "localhost"}
    return {"ip": "127.0.0.1"}


def _kill_group(process: subprocess.Popen) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

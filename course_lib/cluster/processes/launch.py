"""Launch the processes of a cluster on this machine: ipyparallel's controller, and one engine per rank under mpiexec.

They are started at the same time, as most of the time is spent on their imports.
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
from dataclasses import dataclass
from pathlib import Path

from course_lib.engine import memory_limit
from course_lib.engine.processes import watchdog
from course_lib.engine.processes.mpiexec import LOOPBACK_VARIABLES, SMALL_QUEUE_VARIABLES, THREAD_VARIABLES, find_mpiexec

COURSE_PARENT = str(Path(__file__).resolve().parents[3])  # the ranks use this course_lib, even if another one is installed


@dataclass
class Processes:
    """A running controller and mpiexec, and the folder with their files."""

    n: int
    folder: Path
    controller: subprocess.Popen
    mpiexec: subprocess.Popen
    advice = "Run `make doctor` in the course folder for what to do."

    @property
    def client_file(self) -> Path:
        """ipyparallel's connection file for clients."""
        return self.folder / "security" / "ipcontroller-client.json"

    def ended(self) -> str | None:
        """Return None while all processes run, else which one ended, with the last lines of the log."""
        for name, process in (("mpiexec", self.mpiexec), ("the controller", self.controller)):
            if process.poll() is not None:
                return f"{name} ended with exit code {process.returncode}.\n{self.log()}".strip()
        return None

    def log(self, lines: int = 12) -> str:
        """Return the last lines of the processes' log."""
        with contextlib.suppress(OSError):
            text = (self.folder / "log.txt").read_text(errors="replace")
            return "\n".join(text.strip().splitlines()[-lines:])
        return ""

    def exit_reason(self) -> str:
        """Describe in a sentence or two which rank's process ended first, and how."""
        log = self.log(60)
        found = re.search(r"rank (\d+) ended with code (-?\d+)", log)  # what the zygote writes
        found = found or re.search(r"\[0\](\d+):Return code = ([1-9]\d*)", log)  # what mpiexec.gforker writes
        if not found:
            return f"a rank's process ended. The last lines that the ranks wrote:\n{log}\n"
        code = int(found[2])
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the process of rank {found[1]} ended, {how}. Usual causes: os._exit or sys.exit in a function, or memory that ran out."

    def reason(self) -> str | None:
        """Return why the processes are being ended from outside, if that is known."""
        return None

    def waits(self) -> str | None:
        """Return what the start of the processes waits for; None, on this machine."""
        return None

    def missing(self) -> str:
        """Name the ranks that have not started, if that is known."""
        return ""

    def forget_keys(self) -> None:
        """Delete the connection keys, once all processes have them, where others could read them; not needed on this machine."""

    def stop(self) -> None:
        """End all processes and remove the folder; safe to call again."""
        for process in (self.mpiexec, self.controller):
            kill_group(process)
        # Ranks may be in process groups of their own: mpiexec's helper process ends them when it exits.
        for process in (self.mpiexec, self.controller):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        shutil.rmtree(self.folder, ignore_errors=True)


def launch(n: int) -> Processes:
    """Start `n` ranks; returns at once, before they are ready.

    Parameters
    ----------
    n : int
        Number of ranks.

    Raises
    ------
    StartError
        There is no mpiexec.
    ValueError
        The memory limit set in the environment is invalid.
    """
    mpiexec = find_mpiexec()
    folder, started = Path(tempfile.mkdtemp(prefix="course-ranks-")), []
    try:
        (folder / "security").mkdir()
        environment = {**os.environ, **THREAD_VARIABLES, **LOOPBACK_VARIABLES, **SMALL_QUEUE_VARIABLES, **watchdog.environment(str(folder))}
        environment[memory_limit.MEMORY_VARIABLE] = str(memory_limit.per_rank(n))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (COURSE_PARENT, os.environ.get("PYTHONPATH"))))
        environment.pop("JPY_PARENT_PID", None)
        controller = ("controller", str(n), str(folder), json.dumps(_network(folder)))
        with (folder / "log.txt").open("wb") as log:
            for module, *words in (controller, ("mpiexec", mpiexec, str(n), str(folder))):
                command = [sys.executable, "-m", f"course_lib.engine.processes.{module}", *words]
                streams = dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                started.append(subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **streams))
    except BaseException:  # even an interrupt must leave nothing behind
        for process in started:
            kill_group(process)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Processes(n, folder, *started)


def _network(folder: Path) -> dict[str, str]:
    """Return the controller's network settings: Unix sockets, which only this user can reach, unless their path would be too long."""
    where = folder / "s"
    if len(str(where)) < 80 and sys.platform != "darwin":
        return {"transport": "ipc", "ip": str(where), "location": "localhost"}
    return {"ip": "127.0.0.1"}


def kill_group(process: subprocess.Popen) -> None:
    """Kill a process that leads a group of its own, with the whole group; do nothing if it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

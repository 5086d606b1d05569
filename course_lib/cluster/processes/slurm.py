"""Run the ranks and their controller in a Slurm allocation; `Allocation` has the interface of `launch.Processes`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from course_lib.cluster.processes import slurm_exit
from course_lib.cluster.processes.launch import Processes
from course_lib.engine.processes import watchdog
from course_lib.engine.processes.mpiexec import THREAD_VARIABLES, StartError
from course_lib.engine.processes.slurm import COMMAND_SECONDS, JOB_CANCEL_SECONDS, MODULE_ARGUMENTS, NOT_ENDED, run_slurm
from course_lib.utils import wording

SHARED_FOLDER_VARIABLE = "COURSE_SHARED"  # a folder that all machines of the cluster see; the home folder by default
JOB_START_SECONDS = 120.0  # seconds from the start of the job until all ranks are ready: 64 that read the same files at once are slow
QUEUE_POLL_SECONDS = 2.0  # seconds between two queries of the queue
EXPECTED_START = "; Slurm expects it to begin at "
HOPELESS_REASONS = {"PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints"}
HOPELESS_REASONS |= {"AccountNotAllowed", "InvalidAccount", "InvalidQOS", "QOSNotAllowed"}
SHORT_FLAGS = "EHOsuvX"  # short options of srun without a value, which can therefore be combined in one word
RESERVED_OPTIONS = {
    **dict.fromkeys(("--ntasks", "-n"), "cluster.start(n) says how many"),
    **dict.fromkeys(("--job-name", "-J"), "the course finds its job by its name, to end it"),
    **dict.fromkeys(("--export",), "the ranks need this notebook's environment"),
    **dict.fromkeys(("--mpi", "--multi-prog", "--pty", "--kill-on-bad-exit", "-K", "--no-kill", "-k"), "the course starts the ranks"),
    **dict.fromkeys(("--wait", "-W"), "when one rank ends, all do"),
    **dict.fromkeys(("--chdir", "-D"), "the ranks go where the notebook is"),
    **dict.fromkeys(("--clusters", "-M"), "the environment variable SLURM_CLUSTERS chooses it, for all commands"),
    **dict.fromkeys(("--output", "-o", "--error", "-e", "--input", "-i", "--label", "-l"), "the course reads what the ranks write"),
    **dict.fromkeys(("--quiet", "-Q"), "the course reads what srun says"),
    **dict.fromkeys(
        ("--no-allocate", "-Z", "--test-only", "--jobid", "--overlap", "--het-group", "--array"),
        "the course asks for an allocation of its own",
    ),
}


@dataclass
class Allocation(Processes):
    """The processes of a Slurm job, with the interface of `Processes`."""

    advice = "What Slurm knows: `squeue --me`, `sinfo`."
    name: str = ""
    shown: list[str] = field(default_factory=list)
    asked: float = 0.0
    runs: bool = False

    def ended(self) -> str | None:
        """Return None while the job runs or waits in the queue, else how it ended."""
        if self.mpiexec.poll() is None:
            return None
        return f"the Slurm job ended. {self._said()}".strip()

    def _said(self) -> str:
        return slurm_exit.exit_message(self.log(200), self.machines(), self.mpiexec.returncode)

    def machines(self) -> dict[int, str]:
        """Return the machine of each rank that has started."""
        return {int(file.name.partition("-")[2]): file.read_text() for file in self.folder.glob("rank-*")}

    def reason(self) -> str | None:
        """Return why Slurm is ending the job, if its log says so; the job may not have ended completely yet."""
        return slurm_exit.reason(self.log(200))

    def exit_reason(self) -> str:
        """Describe in a sentence or two how the ranks ended."""
        return f"the ranks' Slurm job has ended. {self._said()}"

    def waits(self) -> str | None:
        """Return a sentence about the job's wait in the queue; None once it runs."""
        if self.runs or (self.folder / "rank-0").exists():
            self.runs = True
            return None
        if time.monotonic() < self.asked:
            return self.shown[-1] if self.shown else "Slurm has been asked for an allocation"
        self.asked = time.monotonic() + QUEUE_POLL_SECONDS
        found = run_slurm("squeue", "--noheader", f"--user={os.geteuid()}", f"--name={self.name}", "--format=%i|%T|%r|%V|%S")
        if not found:
            return self.shown[-1] if self.shown else "Slurm has been asked for an allocation"
        job, state, reason, since, begins = (found.splitlines()[0].split("|") + [""] * 5)[:5]
        if state not in ("PENDING", "CONFIGURING"):
            self.runs = True
            return None
        clock = since.replace("T", " ").removeprefix(f"{date.today()} ")
        guess = "" if begins in ("", "N/A") else f"{EXPECTED_START}{begins.replace('T', ' ')}"
        why = "" if reason in ("", "None") else f" ({reason})"
        if reason in HOPELESS_REASONS:
            guess = ". With these options it will never start: stop the cell, and ask for less, or for another partition"
        return f"Slurm job {job} has been waiting in the queue since {clock}{why}{guess}"

    def show(self, waits: str) -> None:
        """Print what the job waits for if that has changed, apart from the expected start, which Slurm keeps revising."""
        if waits.partition(EXPECTED_START)[0] not in [shown.partition(EXPECTED_START)[0] for shown in self.shown]:
            self.shown.append(waits)
            print(f"{waits}.", flush=True)

    def missing(self) -> str:
        """Name in a sentence or two the ranks that have not started, or are not ready; empty if all are."""
        begun = self.machines()
        ready = {int(file.name.partition("-")[2]) for file in self.folder.glob("ready-*")}
        said = []
        if absent := [r for r in range(self.n) if r not in begun]:
            others = f"; the others are on {', '.join(sorted(set(begun.values())))}" if begun else ""
            said.append(f"{wording.ranks(absent)} did not start{others}.")
        if slow := [r for r in begun if r not in ready]:
            where = ", ".join(sorted({begun[r] for r in slow}))
            said.append(f"{wording.ranks(slow)} ({where}) started, but did not get ready: is {Path(sys.prefix)} slow to read there?")
        return " ".join(said)

    def forget_keys(self) -> None:
        """Delete the connection keys from the shared folder, as all processes have them by now."""
        shutil.rmtree(self.folder / "security", ignore_errors=True)

    def stop(self) -> None:
        """Release the allocation; safe to call again."""
        ended_by_itself = self.mpiexec.poll() is not None
        if not ended_by_itself:
            self.mpiexec.terminate()
            try:
                self.mpiexec.wait(JOB_CANCEL_SECONDS + 3 * COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                self.mpiexec.kill()
                self.mpiexec.wait()
        elif self.folder.exists() and self.mpiexec.returncode < 0:  # it was killed before it could cancel the job
            run_slurm("scancel", f"--user={os.geteuid()}", f"--name={self.name}")
        for line in self.log().splitlines():
            if line.startswith(NOT_ENDED):
                print(line, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def parse_options(text: str) -> list[str]:
    """Split options of srun into words, and check them.

    Raises
    ------
    TypeError
        The options are not a str.
    ValueError
        One of them is reserved for the course, or the text is malformed.
    """
    if not isinstance(text, str):
        raise TypeError(
            f'cluster.start(slurm=...): expected options of srun, such as "--nodes=2 --time=1:00:00"; got {wording.shown(text)}.'
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cluster.start(slurm={text!r}): {error}.") from None
    for before, word in zip(["", *words], words, strict=False):
        takes = before.startswith("-") and "=" not in before and (before.startswith("--") or len(before) == 2)
        if word == "--" or not (word.startswith("-") or takes):
            raise ValueError(
                f'cluster.start(slurm={text!r}): expected options of srun, such as "--nodes=2 --partition=short"; {word} belongs to none.'
            )
    for word in words:
        name = word.partition("=")[0]
        if re.fullmatch(f"-(?!v+$)[{SHORT_FLAGS}].+", word):
            raise ValueError(f"cluster.start(slurm={text!r}): {word} is several options; write each separately, such as -O -N2.")
        for taken, why in RESERVED_OPTIONS.items():
            if (name[:2] == taken and not name.startswith("--")) or (len(name) > 3 and taken.startswith(name) and len(taken) > 2):
                raise ValueError(f"cluster.start(slurm={text!r}): {word} cannot be given here; {why}.")
    return words


def allocate(n: int, text: str) -> Allocation:
    """Ask Slurm for an allocation for `n` ranks; returns at once.

    Parameters
    ----------
    n : int
    text : str
        Options of srun.

    Returns
    -------
    Allocation

    Raises
    ------
    ValueError
        An option is reserved for the course.
    StartError
        There is no srun, or no writable shared folder.
    """
    words = parse_options(text)
    if not shutil.which("srun"):
        raise StartError(
            "slurm=...: there is no srun on this machine. Open the notebook on a machine of a Slurm cluster from which jobs are started."
        )
    shared = Path(os.environ.get(SHARED_FOLDER_VARIABLE) or Path.home())
    try:
        folder = Path(tempfile.mkdtemp(prefix=".course-ranks-", dir=shared))
    except OSError as error:
        raise StartError(
            f"slurm=...: no folder can be made in {shared} ({error.strerror}). "
            f"{SHARED_FOLDER_VARIABLE} names one that all machines of the cluster see."
        ) from None
    try:
        (folder / "security").mkdir(mode=0o700)
        name = f"course-{folder.name.rpartition('-')[2]}"
        environment = {**os.environ, **THREAD_VARIABLES, **watchdog.environment(str(folder))}
        command = [sys.executable, *MODULE_ARGUMENTS, "ask", str(n), name, str(folder), *words]
        with (folder / "log.txt").open("wb") as log:
            streams = dict(cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            asking = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Allocation(n, folder, asking, asking, name)

"""Bringing up the ranks' processes, and waiting until all of them are there; every wait has an end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from course_lib import launcher
from course_lib.client import Client, connect
from course_lib.launcher import Processes, StartError

PRESTARTED = "COURSE_RANKS"  # a folder with ranks that are already coming up, see grading


def bring_up(n: int, limit: float) -> tuple[Processes, Client]:
    """Start `n` ranks and wait for them; leaves nothing behind if they do not come up.

    Parameters
    ----------
    n : int
        Number of ranks.
    limit : float
        Seconds to wait.

    Raises
    ------
    launcher.StartError
        They ended or did not come up in time; the message has the last lines of their log.
    """
    deadline = time.monotonic() + limit
    processes, client = _take_prestarted(n) or launcher.launch(n), None
    try:
        while not processes.client_file.exists():
            _pause("the controller did not come up", deadline, processes)
        try:
            client = connect(str(processes.client_file), limit)
        except TimeoutError:
            raise StartError(f"the controller did not answer within {limit:g} s.\n{processes.log()}") from None
        wait_for_engines(client, n, deadline, processes)
    except BaseException:  # an interrupt, too
        processes.stop()
        if client:
            client.close(linger=0)
        raise
    return processes, client


def wait_for_engines(client: Client, n: int, deadline: float, processes: Processes | None = None) -> None:
    """Wait until `n` engines have registered; StartError if the deadline passes or the processes end before."""
    while len(client.ids) < n:
        _pause(f"only {len(client.ids)} of {n} ranks came up", deadline, processes)


def hosts(facts: dict[int, dict]) -> list[str]:
    """The ranks' hosts, from what the engines say of themselves; StartError unless they are the ranks of one MPI job, in order."""
    if {f["size"] for f in facts.values()} != {len(facts)} or any(engine != f["rank"] for engine, f in facts.items()):
        raise StartError(
            f"expected {len(facts)} engines of one MPI job, in the order of their ranks; got sizes "
            f"{sorted({f['size'] for f in facts.values()})} and ranks {[f['rank'] for f in facts.values()]}. "
            "Were the engines started by this MPI's own mpiexec?"
        )
    return [f["host"] for f in facts.values()]


def _pause(problem: str, deadline: float, processes: Processes | None) -> None:
    ended = processes.ended() if processes else None
    if ended:
        raise StartError(f"{problem}: {ended}\nRun `make doctor` in the course folder for what to do.")
    if time.monotonic() > deadline:
        raise StartError(f"{problem} in time.\n{processes.log() if processes else ''}")
    time.sleep(0.02)


def _take_prestarted(n: int) -> Processes | None:
    folder = os.environ.pop(PRESTARTED, None)
    return launcher.adopt(n, Path(folder)) if folder else None

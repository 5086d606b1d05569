"""Connection to running ranks: their processes, and the client that sends them requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_lib.cluster.panel.source import Source
from course_lib.cluster.processes.host_heartbeat import LOST_AFTER_SECONDS, HostHeartbeat
from course_lib.cluster.processes.launch import Processes
from course_lib.utils import wording

if TYPE_CHECKING:
    from course_lib.cluster.client import Client

RESTART_ADVICE = "ranks.restart(rerun=True) starts new ranks, and reruns the cells that only define functions and variables."
STOPPED_MESSAGE = (
    "the ranks were stopped. ranks.restart(rerun=True) starts new ones, and reruns the cells that only define functions and variables."
)


class RanksGone(RuntimeError):
    """The ranks' processes have ended; `cluster.start` starts new ones."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mRanksGone\x1b[0m: {self}"]


@dataclass
class ClusterConnection:
    """Connection to `n` running ranks.

    Parameters
    ----------
    n : int
    client : Client or IsolatedRanks
    processes : Processes or None
        None for attached engines.
    hosts : list of str
        The machine of each rank.
    heartbeat : HostHeartbeat or None
        Present if machines have agents.
    source : Source or None
        Where this kernel reads the states of the ranks; None if it cannot.
    end_reason : str
        Why the ranks have ended, if `check` has found that.
    closed : bool
        Whether `end` has been called.
    """

    n: int
    client: Client
    processes: Processes | None = None
    hosts: list[str] = field(default_factory=list)
    heartbeat: HostHeartbeat | None = None
    source: Source | None = None
    end_reason: str = ""
    closed: bool = False

    def alive(self) -> bool:
        """Return whether all processes that this kernel has started still run."""
        return not (self.processes and self.processes.ended())

    def check(self) -> None:
        """Raise RanksGone if a process has ended, a machine is lost, or `end` was called; the remaining processes are ended first."""
        if self.closed:
            raise RanksGone(self.end_reason or STOPPED_MESSAGE)
        if not self.alive():
            what = self.end_reason = self.processes.exit_reason()
            self.end()
            raise RanksGone(f"{what} All ranks end with it. {RESTART_ADVICE}")
        if self.heartbeat and (lost := self.heartbeat.lost()):
            went = wording.ranks(r for r, host in enumerate(self.hosts) if host in lost)
            what = f"nothing has been heard from {', '.join(lost)} for {LOST_AFTER_SECONDS:g} s, and {went} went with it"
            why = (self.processes and self.processes.reason()) or "The machine or its network has failed."
            what_now = (
                f"All ranks end with it. {RESTART_ADVICE}"
                if self.processes
                else "The other engines still run, but cannot continue: start new ones."
            )
            self.end_reason = f"{what}. {why}"
            self.end()
            raise RanksGone(f"{what}. {why} {what_now}")

    def log(self) -> str:
        """Return the last lines of the processes' log."""
        return self.processes.log() if self.processes else ""

    def end(self) -> None:
        """End the processes; attached engines keep running. Safe to call again."""
        self.closed, self.source = True, None
        if self.heartbeat:
            self.heartbeat.close()
        if self.processes:
            self.processes.stop()
        self.client.close(linger=0)

"""The connection to ranks that run: their processes, and the client that reaches them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_lib import wording
from course_lib.cluster.processes.host_heartbeat import LOST_AFTER_SECONDS, HostHeartbeat
from course_lib.cluster.processes.launch import Processes

if TYPE_CHECKING:
    from course_lib.cluster.client import Client

STOPPED_MESSAGE = "the ranks were stopped. ranks.restart(rerun=True) brings up new ones, and runs the cells again that only define."


class RanksGone(RuntimeError):
    """The ranks' processes have ended; `start` brings up new ones."""

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[31mRanksGone\x1b[0m: {self}"]


@dataclass
class ClusterConnection:
    """`n` ranks that came up.

    Parameters
    ----------
    n : int
    client : Client
    processes : Processes or None
        None for engines that somebody else has started.
    hosts : list of str
        The machine of each rank.
    heartbeat : HostHeartbeat or None
        Where these are several.
    """

    n: int
    client: Client
    processes: Processes | None = None
    hosts: list[str] = field(default_factory=list)
    heartbeat: HostHeartbeat | None = None

    def alive(self) -> bool:
        """Return whether all processes still run, as far as can be seen from here."""
        return not (self.processes and self.processes.ended())

    def check(self) -> None:
        """Raise RanksGone, which says what happened, when a process has ended; what is left of them ends, too."""
        if not self.alive():
            what = self.processes.exit_reason()
            self.end()
            raise RanksGone(f"{what} All ranks end with it. {self.restart_advice}")
        if self.heartbeat and (lost := self.heartbeat.lost()):
            went = wording.ranks(r for r, host in enumerate(self.hosts) if host in lost)
            what = f"nothing has been heard from {', '.join(lost)} for {LOST_AFTER_SECONDS:g} s, and {went} went with it"
            why = (self.processes and self.processes.reason()) or "The machine has failed, or its network."
            what_now = (
                f"All ranks end with it. {self.restart_advice}"
                if self.processes
                else "The other engines run, and cannot go on: start new ones."
            )
            self.end()
            raise RanksGone(f"{what}. {why} {what_now}")

    @property
    def restart_advice(self) -> str:
        """Advice for when the ranks are gone."""
        return "ranks.restart(rerun=True) brings up new ranks, and runs the cells again that only define functions and variables."

    def log(self) -> str:
        """The last lines that the processes wrote."""
        return self.processes.log() if self.processes else ""

    def end(self) -> None:
        """End the processes; engines that somebody else has started are left as they are. Safe to call again."""
        if self.heartbeat:
            self.heartbeat.close()
        if self.processes:
            self.processes.stop()
        self.client.close(linger=0)

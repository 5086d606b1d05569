"""Heartbeat of the ranks' machines, for the notebook's kernel: it asks the agent on each (`collectives.deadlock.agent`).

ipyparallel does not notice when a machine fails: its connections just stay silent. Slurm may take minutes.
"""

from __future__ import annotations

import time
from multiprocessing import AuthenticationError

from course_lib.collectives.deadlock import agent
from course_lib.collectives.deadlock.host_agents import LOST_AFTER_SECONDS, AgentAddress, AgentLink
from course_lib.engine.processes.mpiexec import StartError

CONNECT_SECONDS = 10.0  # timeout to connect to an agent
HEARTBEAT_SECONDS = 0.5  # seconds from one question to the next


class HostHeartbeat:
    """Connections to the agents of some machines.

    Parameters
    ----------
    agents : dict of str to (str, int, str)
        By machine: address, port and secret of its agent.

    Raises
    ------
    StartError
        A machine does not answer.
    """

    def __init__(self, agents: dict[str, AgentAddress]):
        self._links: dict[str, AgentLink] = {}
        self._looked = self._asked = 0.0
        for machine, (address, port, secret) in agents.items():
            self._links[machine] = AgentLink((address, port, secret))
            try:
                self._links[machine].connect(CONNECT_SECONDS)
            except (OSError, EOFError, AuthenticationError) as error:
                self.close()
                raise StartError(
                    f"this kernel cannot reach {machine} at {address}:{port} ({error}). The ranks run, but nobody would notice if that "
                    "machine failed. Can this machine open connections to those of the cluster? COURSE_ADDRESS names the network to use."
                ) from None

    def lost(self) -> list[str]:
        """Return the machines that have not answered for `LOST_AFTER_SECONDS`; call it often, as it also asks them."""
        now = time.monotonic()
        resumed = now - self._looked > LOST_AFTER_SECONDS / 2  # after a pause in the calls, answers are waiting to be read
        self._looked = now
        asks = now - self._asked > HEARTBEAT_SECONDS
        if asks:
            self._asked = now
        for link in self._links.values():
            link.answer()
            if resumed:
                link.reset_silence()
            if asks:
                link.ask(agent.PING)
        return [machine for machine, link in self._links.items() if link.silent_seconds() > LOST_AFTER_SECONDS]

    def close(self) -> None:
        """Close all connections."""
        for link in self._links.values():
            link.close()

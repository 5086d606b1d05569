"""Fetch the state of ranks on other machines: each machine runs an `agent`, which is asked only during a long wait."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING

from course_lib.collectives.deadlock import agent, layout
from course_lib.utils import host

if TYPE_CHECKING:
    from mpi4py import MPI

LOST_AFTER_SECONDS = 8.0  # a machine that leaves a question unanswered for this long counts as lost
FIRST_CONNECT_SECONDS = 20.0  # timeout of the first connection to an agent
RECONNECT_INTERVAL_SECONDS, RECONNECT_TIMEOUT_SECONDS = 0.5, 0.5  # between attempts to reconnect, and for each
ANSWER_SECONDS = 2.0  # from the first byte of an answer to its last
AgentAddress = tuple[str, int, str]  # address, port and secret


class AgentLink:
    """Connection to one machine's agent; `ask` blocks only to reconnect, and then for at most two seconds.

    Parameters
    ----------
    address : (str, int, str)
        Address, port and secret.
    """

    def __init__(self, address: AgentAddress):
        self._address, self._connection = address, None
        self._tried, self._asked, self._awaiting_answer = -RECONNECT_INTERVAL_SECONDS, 0.0, False

    def connect(self, seconds: float = RECONNECT_TIMEOUT_SECONDS) -> None:
        """Connect, and authenticate both sides.

        Raises
        ------
        OSError, EOFError, multiprocessing.AuthenticationError
            The agent cannot be reached, or something else listens there.
        """
        self.close()
        name, port, secret = self._address
        with socket.create_connection((name, port), seconds) as opened:
            opened.settimeout(None)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            agent.set_timeout(opened, max(seconds, ANSWER_SECONDS))
            connection = Connection(os.dup(opened.fileno()))
            try:
                answer_challenge(connection, bytes.fromhex(secret))
                deliver_challenge(connection, bytes.fromhex(secret))
                agent.set_timeout(opened, ANSWER_SECONDS)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    def ask(self, question: bytes) -> None:
        """Send a question, unless the last one is still unanswered."""
        now = time.monotonic()
        if not self._awaiting_answer:
            self._awaiting_answer, self._asked = True, now
            if self._connection:
                self._send(question)
        if self._connection is None and now - self._tried > RECONNECT_INTERVAL_SECONDS:
            self._tried = now
            with contextlib.suppress(OSError, EOFError, AuthenticationError):
                self.connect()
                self._send(question)

    def _send(self, question: bytes) -> None:
        try:
            self._connection.send_bytes(question)
        except OSError:
            self.close()

    def answer(self) -> bytes | None:
        """Return the answer if it is here, else None."""
        if not self._awaiting_answer or self._connection is None:
            return None
        try:
            if not self._connection.poll(0):
                return None
            found = self._connection.recv_bytes()
        except (OSError, EOFError):
            self.close()
            return None
        self._awaiting_answer = False
        return found

    def silent_seconds(self) -> float:
        """Return the seconds since the unanswered question; 0 if there is none."""
        return time.monotonic() - self._asked if self._awaiting_answer else 0.0

    def reset_silence(self) -> None:
        """Restart the clock of `silent_seconds`, after a time in which nobody read answers."""
        self._asked = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        if self._connection:
            self._connection.close()
        self._connection = None


class HostAgents:
    """The machines of the ranks, and the connections to their agents; creating it is collective over all ranks.

    Parameters
    ----------
    world : MPI.Comm
        All ranks.
    names : list of str
        The machine of each rank.
    memory : int
        File descriptor of this machine's status board; closed here.
    places : dict of str to int
        Layout of the board in bytes, see `layout.byte_layout`.

    Attributes
    ----------
    agent : (str, int, str)
        Address, port and secret of this machine's agent: the notebook's kernel asks it whether the machine is alive.

    Raises
    ------
    ConnectionError
        The machines cannot reach each other.
    """

    def __init__(self, world: MPI.Comm, names: list[str], memory: int, places: dict[str, int]):
        self.names = list(dict.fromkeys(names))
        own, rank = names[world.Get_rank()], world.Get_rank()
        leads, address, problem = names.index(own) == rank, None, None
        if leads:
            problem = _problem(self._listen)
            address = self._server and self._server.getsockname()
        secret = world.bcast(secrets.token_hex(32) if not rank else None)
        found = _allgather_or_raise(world, names, address, problem)
        self.addresses = {name: (*found[names.index(name)], secret) for name in self.names}
        if leads:
            here = [r for r, name in enumerate(names) if name == own]
            task = {"memory": memory, "listen": self._server.fileno(), "secret": secret, "ranks": here, **places}
            problem = _problem(lambda: self._start(task))
            self._server.close()
        os.close(memory)
        _allgather_or_raise(world, names, None, problem)
        self.agent = self.addresses[own]
        self._links = {name: AgentLink(self.addresses[name]) for name in self.names if name != own}
        self._fresh: set[str] = set()
        _allgather_or_raise(world, names, None, _problem(self._connect_all) if leads else None)

    def _listen(self) -> None:
        self._server = None
        self._server = socket.create_server((host.address(), 0), backlog=64)

    def _start(self, task: dict) -> None:
        """Start this machine's agent; it exits with this process, which closes its stdin."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", agent.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[task["memory"], task["listen"]],
            cwd="/",
            start_new_session=True,
        )
        self._process.stdin.write(json.dumps(task).encode() + b"\n")
        self._process.stdin.flush()

    def _connect_all(self) -> None:
        """Connect to all other machines."""
        for name, link in self._links.items():
            try:
                link.connect(FIRST_CONNECT_SECONDS)
            except (OSError, EOFError, AuthenticationError) as error:
                where = "{}:{}".format(*self.addresses[name])
                raise ConnectionError(f"{name} ({where}) does not answer ({type(error).__name__}: {error})") from None

    def refresh(self, parts: list[memoryview]) -> bool:
        """Ask the other machines, and store the answers that are here, without waiting.

        Parameters
        ----------
        parts : list of memoryview
            The parts of all ranks on the status board, as bytes; those of ranks on other machines are updated.

        Returns
        -------
        bool
            True once every machine that is not lost has answered a question asked after this last returned True.
        """
        for name, link in self._links.items():
            if name not in self._fresh:
                link.ask(agent.STATES)
                if data := link.answer():
                    layout.store(data, parts, len(parts))
                    self._fresh.add(name)
        if self._fresh | self.lost() >= self._links.keys():
            self._fresh.clear()
            return True
        return False

    def lost(self) -> set[str]:
        """Return the machines that have left a question unanswered for `LOST_AFTER_SECONDS`."""
        return {name for name, link in self._links.items() if link.silent_seconds() > LOST_AFTER_SECONDS}


def _allgather_or_raise(world: MPI.Comm, names: list[str], said: object, problem: str | None) -> list:
    """All-gather an object; ConnectionError on all ranks if one of them has a problem."""
    found = world.allgather((said, problem))
    if problems := sorted({f"{names[r]}: {problem}" for r, (_, problem) in enumerate(found) if problem}):
        raise ConnectionError(
            f"the machines cannot be connected. {'; '.join(problems).rstrip('.')}. Those of a cluster must reach each other over TCP. "
            f"Where they have several networks, {host.ADDRESS_ENV} says which one to use, such as ib0."
        )
    return [said for said, _ in found]


def _problem(step: Callable[[], None]) -> str | None:
    """Run a step; return the text of its error, to be shared with the other ranks, or None."""
    try:
        step()
    except (OSError, ValueError) as error:
        return str(error)
    return None

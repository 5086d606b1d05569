"""Read the states of the ranks in the notebook's kernel, without asking the ranks.

On one machine, the kernel has the file of their status board: rank 0 passes it when it starts. The kernel reads the file, and does not map
it, as reading memory that was never allocated would end the kernel where /dev/shm is full. Where machines have agents, these are asked.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import socket
import struct
import tempfile
import time
import weakref
from abc import ABC, abstractmethod

from course_lib.collectives.deadlock import agent
from course_lib.collectives.deadlock.host_agents import LOST_AFTER_SECONDS, AgentAddress, AgentLink
from course_lib.collectives.deadlock.layout import (
    DETAIL,
    KEY,
    OPERATION,
    PID,
    BoardReader,
    byte_layout,
    collective_key,
    context_of,
    store,
    words,
)

MAX_PATH = 100  # characters in the path of a Unix socket that every system allows
MAX_READ_TRIES = 10
ANSWER_SECONDS, FIRST_PAUSE_SECONDS = 0.15, 1e-3  # for which `refresh` waits for the agents' answers, and the first pause in that


class DescriptorListener:
    """A Unix socket at which rank 0 hands over the file of the status board; a context manager.

    Attributes
    ----------
    path : str
    """

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="course-board-")
        if len(self._folder) > MAX_PATH - 2:
            os.rmdir(self._folder)
            self._folder = tempfile.mkdtemp(prefix="course-board-", dir="/tmp")
        self.path = os.path.join(self._folder, "b")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.setblocking(False)
        with contextlib.suppress(OSError):  # then there is no panel
            self._server.bind(self.path)
            self._server.listen(1)

    def __enter__(self) -> DescriptorListener:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def descriptor(self) -> int | None:
        """Return the file's descriptor once rank 0 has replied; None if there is none, as it is on another machine."""
        with contextlib.suppress(OSError):
            link, _ = self._server.accept()
            with link:
                _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
                for descriptor in descriptors:
                    os.set_inheritable(descriptor, False)
                    return descriptor
        return None


class Source(BoardReader, ABC):
    """A copy of the status board, renewed by `refresh`.

    Parameters
    ----------
    n : int
        Number of ranks.
    machines : tuple of str
        The machine of each rank; empty if there is only one.

    Attributes
    ----------
    memory : list of int
        By rank, the resident memory of its process in bytes; `agent.GONE_BYTES` if it has ended, `agent.UNKNOWN_BYTES` if not known.
    now : list of int
        By rank, `time.monotonic_ns` of its machine.
    """

    def __init__(self, n: int, machines: tuple[str, ...] = ()):
        # Mapped, as most of the pages stay untouched and then take no memory.
        super().__init__(machines, [memoryview(mmap.mmap(-1, 8 * words(n))) for _ in range(n)])
        self._layout, self.memory, self.now = byte_layout(n), [agent.UNKNOWN_BYTES] * n, [time.monotonic_ns()] * n

    @abstractmethod
    def refresh(self) -> None:
        """Renew the copy, without waiting for long."""

    def unseen(self) -> list[str]:
        """Return the machines of which nothing has been heard yet."""
        return []


class FileSource(Source):
    """Reads the board's file; `descriptor` is closed with this object."""

    def __init__(self, n: int, descriptor: int):
        super().__init__(n)
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def refresh(self) -> None:
        for rank in range(self.size):
            row = self._read(rank, 0, self._layout["row"])
            for _ in range(MAX_READ_TRIES):  # until two reads agree: not half of one state and half of the next
                if row == (row := self._read(rank, 0, self._layout["row"])):
                    break
            self.bytes[rank][: len(row)] = row
        self.now = [time.monotonic_ns()] * self.size
        for key in {collective_key(part[KEY], part[OPERATION], part[DETAIL]) for part in self.parts} - {0}:
            start = 8 * self.page_offset(context_of(key))
            for rank in range(self.size):
                page = self._read(rank, start, 16)
                self.bytes[rank][start : start + len(page)] = page
        pids = [part[PID] for part in self.parts]
        self.memory = [_memory(pid) if before != agent.GONE_BYTES else before for pid, before in zip(pids, self.memory, strict=True)]

    def _read(self, rank: int, start: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, rank * self._layout["part"] + start)


class HostSource(Source):
    """Asks the agents of the ranks' machines.

    Parameters
    ----------
    hosts : list of str
        The machine of each rank.
    agents : dict of str to (str, int, str)
        By machine: address, port and secret of its agent.
    """

    def __init__(self, hosts: list[str], agents: dict[str, AgentAddress]):
        super().__init__(len(hosts), tuple(hosts))
        self._ranks = {host: [r for r, other in enumerate(hosts) if other == host] for host in agents}
        self._links = {host: AgentLink(tuple(place)) for host, place in agents.items()}
        self._heard: set[str] = set()
        self._looked = 0.0

    def refresh(self) -> None:
        now = time.monotonic()
        resumed, self._looked = now - self._looked > LOST_AFTER_SECONDS / 2, now
        for host, link in self._links.items():
            if resumed:  # nobody has read answers for a while
                link.reset_silence()
            self._take(host)
            link.ask(agent.PANEL)
        asked, pause = set(self._links), FIRST_PAUSE_SECONDS
        while asked and time.monotonic() < now + ANSWER_SECONDS:  # an answer to an earlier question would show what was true then
            time.sleep(pause)
            pause *= 2
            asked -= {host for host in asked if self._take(host)}

    def _take(self, host: str) -> bool:
        """Store a machine's answer, if it is here."""
        if not (data := self._links[host].answer()):
            return False
        ranks = self._ranks[host]
        clock, *memory = struct.unpack_from(f"{1 + len(ranks)}q", data)
        store(data[8 * (1 + len(ranks)) :], self.bytes, self.size)
        for rank, held in zip(ranks, memory, strict=True):
            self.memory[rank], self.now[rank] = held, clock
        self._heard.add(host)
        return True

    def lost(self) -> list[str]:
        return [host for host, link in self._links.items() if link.silent_seconds() > LOST_AFTER_SECONDS]

    def unseen(self) -> list[str]:
        return [host for host in self._links if host not in self._heard]


def _memory(pid: int) -> int:
    held = agent.resident_bytes(pid)
    if held == agent.UNKNOWN_BYTES:  # a system without /proc
        import psutil

        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).memory_info().rss or agent.GONE_BYTES
        return agent.GONE_BYTES
    return held

"""The status board of ranks on several machines.

The ranks of each machine share memory, in which all ranks of the world have their place. A process beside them (`mirror`) shows the
other machines what has changed there, and writes down what comes from them. So a rank reads about all others as it does on one machine.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from course_lib import host
from course_lib.collectives import mirror
from course_lib.collectives.mirror import SILENT

if TYPE_CHECKING:
    from mpi4py import MPI

START = 20.0  # seconds for the mirrors to find each other


class Hosts:
    """The machines, and the memory that the ranks of this one share.

    Parameters
    ----------
    world : MPI.Comm
        All ranks; the call is collective.
    names : list of str
        The machine of each rank.

    Attributes
    ----------
    of : list of int
        The number of each rank's machine.
    watch : tuple of (str, int, str)
        Where this machine's mirror listens, and the secret: for the kernel, which looks whether the machine is there.
    """

    def __init__(self, world: MPI.Comm, names: list[str]):
        self.names = list(dict.fromkeys(names))
        self.of = [self.names.index(name) for name in names]
        self.rank, self.mine = world.Get_rank(), self.of[world.Get_rank()]
        self._world = world

    def open(self, row: int, tables: int, words: int) -> list[memoryview]:
        """Make the memory, and have the mirrors find each other; one buffer a rank.

        Parameters
        ----------
        row, tables, words : int
            Bytes: of a rank's row; where its table of notices begins; and of that table.

        Raises
        ------
        ConnectionError
            Machines do not reach each other.
        """
        world, size = self._world, self._world.Get_size()
        blocks = -(-words // (8 * mirror.BLOCK))
        each = -(-(tables + words + 8 * blocks) // 64) * 64
        total = each * size + 8 * len(self.names)
        leads = self.of.index(self.mine) == self.rank
        place, problem = _Place(), None
        try:
            if leads:
                taken = [(r * each + start, size_) for r in range(size) for start, size_ in ((0, row), (tables, each - tables))]
                problem = _tried(lambda: place.make(total, taken))
            found = self._agree((place.folder, place.address), problem)
            leaders = [found[self.of.index(h)] for h in range(len(self.names))]
            problem = _tried(lambda: place.enter(leaders[self.mine][0], total))
            self._agree(None, problem)
            peers = [address for _, address in leaders]
            secret = world.bcast(secrets.token_hex(32) if not self.rank else None)
            if leads:
                facts = {"memory": place.board, "poke": place.poked.fileno(), "listen": place.server.fileno(), "secret": secret}
                facts |= {"ranks": [[r for r in range(size) if self.of[r] == h] for h in range(len(self.names))], "peers": peers}
                facts |= {"each": each, "row": row, "tables": tables, "words": words, "marks": tables + words, "blocks": blocks}
                problem = _tried(lambda: self._start({**facts, "host": self.mine, "heard": each * size}))
        finally:
            place.leave()
        self._poke, memory = place.poke, place.memory
        self.watch = (*peers[self.mine], secret)
        self._heard = memory[each * size :].cast("q")
        buffers = [memory[r * each : (r + 1) * each] for r in range(size)]
        self._marks = buffers[self.rank][tables + words :].cast("q")
        self._agree(None, problem or _tried(lambda: self._find(peers)))
        return buffers

    def _agree(self, said: object, problem: str | None) -> list:
        """What all ranks say; ConnectionError on all of them when one has a problem."""
        found = self._world.allgather((said, problem))
        if problems := sorted({f"{self.where(r)}: {problem}" for r, (_, problem) in enumerate(found) if problem}):
            raise ConnectionError(
                f"the machines cannot be connected. {'; '.join(problems).rstrip('.')}. Those of a cluster must reach each other over TCP. "
                f"Where they have several networks, {host.ADDRESS} says which one to use, such as ib0."
            )
        return [said for said, _ in found]

    def _start(self, facts: dict) -> None:
        """Start this machine's mirror; it ends when this process does, as its input then ends."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", mirror.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[facts[name] for name in ("memory", "poke", "listen")],
            cwd="/",
            start_new_session=True,
        )
        self._process.stdin.write(json.dumps(facts).encode() + b"\n")
        self._process.stdin.flush()

    def _find(self, peers: list[tuple[str, int]]) -> None:
        """Wait until all machines are heard."""
        deadline = time.monotonic() + START
        while missing := [h for h in range(len(self.names)) if not self._heard[h]]:
            if time.monotonic() > deadline:
                where = ", ".join(f"{self.names[h]} ({peers[h][0]}:{peers[h][1]})" for h in missing)
                raise ConnectionError(f"nothing was heard from {where} in {START:g} s")
            time.sleep(0.01)

    def poke(self) -> None:
        """Have what this rank has changed sent to the other machines at once, not at the next beat."""
        with contextlib.suppress(OSError):  # it has been poked, and has not looked yet; or it is gone
            self._poke.send(b"1")

    def changed(self, word: int, rank: int | None = None) -> None:
        """A word of this rank's table has changed; `rank` (all by default) waits for it."""
        self._marks[word // mirror.BLOCK] += 1
        if rank is None or self.of[rank] != self.mine:
            self.poke()

    def near(self, ranks: tuple[int, ...]) -> bool:
        """Whether all these ranks are on this machine."""
        return all(self.of[r] == self.mine for r in ranks)

    def heard_since(self, moment: float) -> bool:
        """Whether what is in the memory of each machine that is not lost was read there after this moment of `time.monotonic`."""
        known = {self.mine, *self.lost()}  # what its own ranks do is in the memory at once
        return all(self._heard[h] > moment * 1e9 for h in range(len(self.names)) if h not in known)

    def lost(self) -> list[int]:
        """Machines from which nothing has been heard for long; when this one's mirror is gone, those are all others."""
        now = time.monotonic_ns()
        return [h for h in range(len(self.names)) if h != self.mine and now - self._heard[h] > SILENT * 1e9]

    def where(self, rank: int) -> str:
        """The name of a rank's machine."""
        return self.names[self.of[rank]]


@cache
def beacon() -> Hosts:
    """Mirrors that show nothing, where the board needs none: by them the kernel sees whether the machines are there. Collective."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    hosts = Hosts(world, world.allgather(host.name()))
    hosts.open(8, 8, 8)
    return hosts


class _Place:
    """What the ranks of a machine find each other by while they start: a folder for this user alone, with the memory and a socket."""

    def __init__(self):
        self.folder: str | None = None
        self.address: tuple[str, int] | None = None
        self.server = self.poked = self.board = None

    def make(self, size: int, taken: list[tuple[int, int]]) -> None:
        shm = "/dev/shm"
        self.folder = tempfile.mkdtemp(prefix="course-board-", dir=shm if os.access(shm, os.W_OK) else None)
        with open(f"{self.folder}/board", "wb") as file:
            file.truncate(size)
            with contextlib.suppress(AttributeError):  # a system that cannot promise room
                for start, length in taken:  # of what will be written; the slots are for ranks of one machine
                    os.posix_fallocate(file.fileno(), start, length)
        self.poked = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.poked.bind(f"{self.folder}/poke")
        self.server = socket.create_server((host.address(), 0), backlog=64)
        self.address = self.server.getsockname()

    def enter(self, folder: str, size: int) -> None:
        self.board = os.open(f"{folder}/board", os.O_RDWR)
        self.memory = memoryview(mmap.mmap(self.board, size))
        self.poke = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.poke.setblocking(False)
        self.poke.connect(f"{folder}/poke")

    def leave(self) -> None:
        """All have entered, and the mirror has what it needs."""
        for held in (self.server, self.poked):
            if held:
                held.close()
        if self.board is not None:
            os.close(self.board)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def _tried(step: Callable[[], None]) -> str | None:
    """What went wrong, for the others to hear of it, too."""
    try:
        step()
    except (OSError, ValueError) as error:
        return str(error)
    return None

"""Status board: the state of each rank, in memory shared by all ranks of a machine.

A waiting rank reads here whether the others can still arrive. Each rank writes only to its own part, so no lock is needed. With several
machines, a rank that waits for long asks the others for the parts of their ranks (see `host_agents`), and keeps the latest copies here.
The notebook's kernel reads the board for `cluster.panel`. For what is where on it, see `layout`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import time
from collections.abc import Collection
from functools import cache

from mpi4py import MPI

from course_lib.collectives import shared_memory
from course_lib.collectives.deadlock.detector import CONFIRM_SECONDS
from course_lib.collectives.deadlock.host_agents import HostAgents
from course_lib.collectives.deadlock.layout import (
    ACCEPTED_IDS,
    ACCEPTED_SLOTS,
    CALL_SINCE,
    DEADLOCKED_KEY,
    DETAIL,
    KEY,
    LINE_START,
    LINE_WORDS,
    MAX_RANKS,
    MEMBERS,
    OPERATION,
    PID,
    ROUND,
    SENT,
    SLOT_BYTES,
    STATE,
    STATE_SINCE,
    TARGETS,
    TEXT_START,
    TEXT_WORDS,
    BoardReader,
    byte_layout,
    pair_offset,
    words,
)
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, GONE, RAISED, SILENT, WAITING
from course_lib.utils import host


class Board(BoardReader):
    """The status board of all ranks; creating it is collective.

    Parameters
    ----------
    world : MPI.Comm
        All ranks.

    Attributes
    ----------
    parts : list of memoryview
        The part of each rank, as 64-bit words; for ranks on other machines, a local copy.
    mine : memoryview
        This rank's part.
    machines : tuple of str
        The machine of each rank; empty if there is only one.
    hosts : HostAgents or None
        The machines' agents, if the ranks, or the ranks and the notebook, are on several machines.

    Raises
    ------
    ConnectionError
        The machines cannot reach each other.
    MemoryError
        The ranks of a machine cannot share memory.
    """

    def __init__(self, world: MPI.Comm):
        self.rank, self.size, self.round = world.Get_rank(), world.Get_size(), 0
        names = world.allgather(host.name())
        machines = tuple(names) if len(set(names)) > 1 else ()
        self.local = tuple(r for r in range(self.size) if names[r] == names[self.rank])
        layout = byte_layout(self.size)
        part, n, room = layout["part"], len(self.local), 8 * words(self.size)
        local_comm = world.Split(names.index(names[self.rank]), self.rank)
        allocated = shared_memory.allocate_file(local_comm, n * part, [(i * part, layout["head"] + 16 * layout["page"]) for i in range(n)])
        problem = None if allocated else f"no room for {n} ranks in {shared_memory.SHM_FOLDER} (8 ranks need about 1 MB)"
        if problems := sorted({f"{names[r]}: {said}" for r, said in enumerate(world.allgather(problem)) if said}):
            raise MemoryError(f"the ranks cannot share memory. {'; '.join(problems)}. In a container: docker run --shm-size=64m.")
        memory, descriptor = memoryview(allocated[0]), allocated[1]
        local_parts = {r: memory[i * part : (i + 1) * part] for i, r in enumerate(self.local)}
        super().__init__(machines, [local_parts[r][:room] if r in local_parts else memoryview(bytearray(room)) for r in range(self.size)])
        self.slots = {r: (some[room : room + SLOT_BYTES], some[room + SLOT_BYTES :]) for r, some in local_parts.items()}
        self.mine, self._published = self.parts[self.rank], 0
        self.mine[STATE], self.mine[PID], self.mine[STATE_SINCE] = COMPUTING, os.getpid(), time.monotonic_ns()
        self.hosts, self._descriptor = None, descriptor
        if machines or host.notebook_may_be_remote():
            self.hosts = HostAgents(world, names, descriptor, layout)
        elif self.rank:  # rank 0 may pass it to the notebook's kernel
            os.close(descriptor)
        world.Barrier()
        atexit.register(self._leave)

    # What this rank writes.

    def begin(self, round: int, targets: int) -> None:
        """Announce the start of a cell: its number, and the mask of the ranks that were asked to run it."""
        self.write_text("")
        self.mine[TARGETS] = targets if targets < 1 << 63 else targets - (1 << 64)
        self.mine[STATE], self.mine[STATE_SINCE] = COMPUTING, time.monotonic_ns()
        self.mine[ROUND] = self.round = round

    def end(self, state: int, text: str = "", keep_call: bool = False) -> None:
        """Announce the end of a cell, or of the process.

        Parameters
        ----------
        state : int
            FINISHED, RAISED, DEADLOCKED or GONE.
        text : str
            The error, if there is one.
        keep_call : bool
            Keep the last call in this rank's row, for ranks that have yet to describe it in their own error messages.
        """
        if text:
            self.write_text(text)
        if not keep_call:
            self.mine[KEY] = 0
        self.mine[STATE_SINCE], self.mine[STATE] = time.monotonic_ns(), state

    def wait(self, key: int, operation: int, members: int, detail: int, text: str) -> None:
        """Announce that this rank waits in a call; for the arguments see `RankView`."""
        mine = self.mine
        if mine[STATE] != WAITING or mine[KEY] != key:
            mine[STATE] = COMPUTING  # until all words of the row are written
            mine[KEY], mine[OPERATION] = key, operation
        if key != self._published:
            self._published, mine[CALL_SINCE] = key, time.monotonic_ns()
        mine[MEMBERS], mine[DETAIL] = members, detail
        self.write_text(text)
        mine[STATE] = WAITING

    def resume(self) -> None:
        """Announce that this rank no longer waits; called before it consumes the event that ends the wait.

        In the other order, a rank preempted between the two would show a wait whose event is gone, and look deadlocked. A rank that has
        ended its cell, and completes what it has left open, stays in its state: others must not take it for one that still runs.
        """
        if self.mine[STATE] == WAITING:
            self.mine[STATE] = COMPUTING

    def compute(self) -> None:
        """Announce that this rank no longer waits, and since when; after a long wait."""
        if self.mine[STATE] != COMPUTING or self.mine[STATE_SINCE] < self.mine[CALL_SINCE]:  # the latter after `resume`
            self.mine[STATE_SINCE], self.mine[STATE] = time.monotonic_ns(), COMPUTING

    def fall_silent(self, silent: bool) -> None:
        """Announce that this rank stands still, or that it goes on."""
        self.mine[STATE_SINCE], self.mine[STATE] = time.monotonic_ns(), SILENT if silent else COMPUTING

    def pass_descriptor(self, path: str) -> None:
        """Pass the board's file, from rank 0, to the notebook's kernel, which listens at a Unix socket; not if machines have agents."""
        if self.rank == 0 and self.hosts is None:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:  # the kernel may be on another machine
                link.connect(path)
                socket.send_fds(link, [b"."], [self._descriptor])

    def give_up(self) -> None:
        """Announce that this rank has detected its deadlock; then pause, so that the other deadlocked ranks see the same snapshot."""
        self.mine[DEADLOCKED_KEY] = self.mine[KEY]
        self.mine[STATE] = DEADLOCK_RAISING
        time.sleep(CONFIRM_SECONDS)

    def write_text(self, text: str) -> None:
        """Write this rank's text, cut to the room: where it waits, or what it raised."""
        self._write(text, TEXT_START, TEXT_WORDS)

    def publish(self, sent: int, line: str) -> None:
        """Show the bytes that this rank has sent, and the last line that it has printed, if it has; any thread may call it."""
        self.mine[SENT] = sent
        if line:
            self._write(line, LINE_START, LINE_WORDS)

    def _write(self, text: str, start: int, room: int) -> None:
        data = text.encode(errors="replace")[: 8 * room - 1].decode(errors="ignore").encode()
        self.bytes[self.rank][8 * start : 8 * start + len(data) + 1] = data + b"\0"

    def _leave(self) -> None:
        """Announce the end of the process; an error that it raised stays readable."""
        if self.mine[STATE] != RAISED:
            self.end(GONE)

    # What it reads.

    def has_unread_messages(self) -> bool:
        """Return whether some rank has yet to take messages of this rank out of MPI's queue, as far as it is known on this machine."""
        return any(self._unread(self.rank, r) for r in range(self.size))

    def lost(self) -> Collection[str]:
        return self.hosts.lost()

    def refresh(self) -> bool:
        """Ask the other machines for the state of their ranks, without waiting.

        Returns
        -------
        bool
            True if every part here is newer than when this last returned True; always so on one machine.
        """
        return not self.machines or self.hosts.refresh(self.bytes)

    def accept(self, source: int, message: int) -> None:
        """Announce that a message has matched a receive on this rank; `message` is its id, see `point_to_point`."""
        self.mine[pair_offset(source) + ACCEPTED_IDS + message % ACCEPTED_SLOTS] = message


@cache
def open_board() -> Board:
    """Return this process's board; the first call is collective over all ranks.

    Raises
    ------
    ValueError
        There are more than 64 ranks.
    ConnectionError
        The ranks are on several machines, which cannot reach each other.
    """
    world = MPI.COMM_WORLD
    if world.Get_size() > MAX_RANKS:
        raise ValueError(f"the course's communicator supports at most {MAX_RANKS} ranks; got {world.Get_size()}.")
    return Board(world)

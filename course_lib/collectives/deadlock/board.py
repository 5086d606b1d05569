"""Status board: the state of each rank, in memory shared by all ranks of a machine.

A waiting rank reads here whether the others can still arrive. Each rank writes only to its own part, so no lock is needed. With several
machines, a rank that waits for long asks the others for the parts of their ranks (see `host_agents`), and keeps the latest copies here.

The part of a rank, in 64-bit words:

====================================  =====================================================================================
Words                                 Content
====================================  =====================================================================================
0 to 8                                Row: state, cell, and the call in which the rank waits; see the constants below
``TEXT_START``, ``TEXT_WORDS``        Text, UTF-8, ends with a zero byte: where the rank waits, or what it raised
``PAIRS_START``, ``PAIR_WORDS`` each  For each other rank: messages sent to it, messages read from it, ids accepted from it
from the next multiple of             One page per group (index: its context): ``ARRIVED_KEY``, ``LEFT_KEY``, and a ring with
``PAGE_WORDS``                        the signatures of its latest collectives; see `progress.rendezvous`
after the pages                       Two slots of ``SLOT_BYTES`` for the arrays of small collectives
====================================  =====================================================================================
"""

from __future__ import annotations

import atexit
import os
import time
from functools import cache

from mpi4py import MPI

from course_lib.collectives import shared_memory
from course_lib.collectives.calls import BLOCKING_FORM, RECV, SEND
from course_lib.collectives.deadlock.detector import CONFIRM_SECONDS, rank_mask
from course_lib.collectives.deadlock.host_agents import HostAgents
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, GONE, LOST, RAISED, WAITING, RankView, Snapshot
from course_lib.utils import host

MAX_RANKS = 64  # a group is a bit mask in one word

# The words of a row: the call's key (0: none), the rank's state, the cell's number, the mask of ranks that run the cell, and the call's
# operation, mask of members and detail. DEADLOCKED_KEY: the key of the last call given up as a deadlock. CONTEXTS: the number of pages.
KEY, STATE, ROUND, TARGETS, OPERATION, MEMBERS, DETAIL, DEADLOCKED_KEY, CONTEXTS = range(9)
TEXT_START, TEXT_WORDS = 16, 32
PAIRS_START = TEXT_START + TEXT_WORDS
# With each other rank: messages sent to it, messages read from it, and the ids of its latest messages that have matched a receive here.
SENT_COUNT, READ_COUNT, ACCEPTED_IDS, PAIR_WORDS, ACCEPTED_SLOTS = 0, 1, 2, 10, 8
PAGE_WORDS = 512
ARRIVED_KEY, LEFT_KEY = 0, 1  # first words of a page: the key of the latest collective that this rank has entered, and has left
MAX_CONTEXTS = 512  # MPICH has room for 2048 communicators, and each group uses two or three
SLOT_BYTES = 1 << 19
CAUGHT_SECONDS = 1.0  # a rank that raised DeadlockError and whose cell still runs after this time has caught it


class Board:
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
        self.machines = tuple(names) if len(set(names)) > 1 else ()
        self.local = tuple(r for r in range(self.size) if names[r] == names[self.rank])
        self._pages = -(-(PAIRS_START + PAIR_WORDS * self.size) // PAGE_WORDS) * PAGE_WORDS  # offset of the first page
        words = self._pages + MAX_CONTEXTS * PAGE_WORDS
        part, n = 8 * words + 2 * SLOT_BYTES, len(self.local)
        local_comm = world.Split(names.index(names[self.rank]), self.rank)
        allocated = shared_memory.allocate_file(local_comm, n * part, [(i * part, 8 * (self._pages + 16 * PAGE_WORDS)) for i in range(n)])
        problem = None if allocated else f"no room for {n} ranks in {shared_memory.SHM_FOLDER} (8 ranks need about 1 MB)"
        if problems := sorted({f"{names[r]}: {said}" for r, said in enumerate(world.allgather(problem)) if said}):
            raise MemoryError(f"the ranks cannot share memory. {'; '.join(problems)}. In a container: docker run --shm-size=64m.")
        memory, descriptor = memoryview(allocated[0]), allocated[1]
        local_parts = {r: memory[i * part : (i + 1) * part] for i, r in enumerate(self.local)}
        self.bytes = [local_parts[r][: 8 * words] if r in local_parts else memoryview(bytearray(8 * words)) for r in range(self.size)]
        self.parts = [some.cast("q") for some in self.bytes]
        self.slots = {r: (some[8 * words : 8 * words + SLOT_BYTES], some[8 * words + SLOT_BYTES :]) for r, some in local_parts.items()}
        self.mine, self._giving_up = self.parts[self.rank], {}
        self.mine[STATE] = COMPUTING
        self.hosts = None
        if self.machines or host.notebook_may_be_remote():
            layout = {"part": part, "row": 8 * (PAIRS_START + PAIR_WORDS * self.size), "head": 8 * self._pages, "page": 8 * PAGE_WORDS}
            self.hosts = HostAgents(world, names, descriptor, {**layout, "contexts": 8 * CONTEXTS})
        else:
            os.close(descriptor)
        world.Barrier()
        atexit.register(self._leave)

    # What this rank writes.

    def begin(self, round: int, targets: int) -> None:
        """Announce the start of a cell: its number, and the mask of the ranks that were asked to run it."""
        self.write_text("")
        self.mine[TARGETS] = targets if targets < 1 << 63 else targets - (1 << 64)
        self.mine[STATE] = COMPUTING
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
        self.mine[STATE] = state

    def wait(self, key: int, operation: int, members: int, detail: int, text: str) -> None:
        """Announce that this rank waits in a call; for the arguments see `RankView`."""
        mine = self.mine
        if mine[STATE] != WAITING or mine[KEY] != key:
            mine[STATE] = COMPUTING  # until all words of the row are written
            mine[KEY], mine[OPERATION] = key, operation
        mine[MEMBERS], mine[DETAIL] = members, detail
        self.write_text(text)
        mine[STATE] = WAITING

    def resume(self) -> None:
        """Announce that this rank no longer waits; called before it consumes the event that ends the wait.

        In the other order, a rank preempted between the two would show a wait whose event is gone, and look deadlocked.
        """
        self.mine[STATE] = COMPUTING

    def give_up(self) -> None:
        """Announce that this rank has detected its deadlock; then pause, so that the other deadlocked ranks see the same snapshot."""
        self.mine[DEADLOCKED_KEY] = self.mine[KEY]
        self.mine[STATE] = DEADLOCK_RAISING
        time.sleep(CONFIRM_SECONDS)

    def write_text(self, text: str) -> None:
        """Write this rank's text, cut to the room: where it waits, or what it raised."""
        data = text.encode()[: 8 * TEXT_WORDS - 1].decode(errors="ignore").encode()
        self.bytes[self.rank][8 * TEXT_START : 8 * TEXT_START + len(data) + 1] = data + b"\0"

    def _leave(self) -> None:
        """Announce the end of the process; an error that it raised stays readable."""
        if self.mine[STATE] != RAISED:
            self.end(GONE)

    # What it reads.

    def page_offset(self, context: int) -> int:
        """Return the offset, in words, of a group's page in each rank's part."""
        return self._pages + context * PAGE_WORDS

    def page(self, rank: int, context: int) -> memoryview:
        """Return a rank's page for a group."""
        start = self.page_offset(context)
        return self.parts[rank][start : start + PAGE_WORDS]

    def refresh(self) -> bool:
        """Ask the other machines for the state of their ranks, without waiting.

        Returns
        -------
        bool
            True if every part here is newer than when this last returned True; always so on one machine.
        """
        return not self.machines or self.hosts.refresh(self.bytes)

    def state(self, rank: int) -> int:
        """Return the state of a rank as far as it is known on this machine; COMPUTING for a rank that has caught its DeadlockError.

        A rank has caught the error if it is in another call, or if its cell still runs after `CAUGHT_SECONDS`. It cannot report that
        itself: no Python thread of a rank runs during a long C call.
        """
        row = self.parts[rank]
        if self.machines and row[STATE] != GONE and self.machines[rank] in self.hosts.lost():
            return LOST
        if row[STATE] != DEADLOCK_RAISING:
            return row[STATE]
        call, (known, since) = (row[ROUND], row[DEADLOCKED_KEY]), self._giving_up.get(rank, (None, 0.0))
        if call != known:
            since = time.monotonic()
            self._giving_up[rank] = call, since
        caught = row[KEY] not in (0, row[DEADLOCKED_KEY]) or time.monotonic() - since > CAUGHT_SECONDS
        return COMPUTING if caught else DEADLOCK_RAISING

    def text(self, rank: int) -> str:
        """Return the text of a rank."""
        return bytes(self.bytes[rank][8 * TEXT_START : 8 * PAIRS_START]).split(b"\0", 1)[0].decode(errors="replace")

    def snapshot(self) -> Snapshot:
        """Take a snapshot of all ranks."""
        return Snapshot(tuple(self._view(r) for r in range(self.size)), self.machines)

    def _view(self, rank: int) -> RankView:
        row = self.parts[rank]
        key, members, operation, detail = row[KEY], row[MEMBERS], row[OPERATION], row[DETAIL]
        state, arrived, released = self.state(rank), 0, False
        collective = key if key > 0 else detail if operation in BLOCKING_FORM else 0
        if state == COMPUTING and key > 0 and self.page(rank, context_of(key))[LEFT_KEY] >= key:
            key = 0  # the rank has left that call
        elif state != COMPUTING:
            others = [r for r in range(self.size) if members >> r & 1 and r != rank]
            if collective:
                arrived = rank_mask(r for r in others if self.page(r, context_of(collective))[ARRIVED_KEY] >= collective)
                released = all(arrived >> r & 1 for r in others)
            elif operation == RECV:
                released = any(self._unread(r, rank) for r in others)
            elif operation == SEND:
                released = any((self._unread(rank, r) and self.state(r) == WAITING) or self.accepted(rank, r, detail) for r in others)
        if row[KEY] != key and state == WAITING:  # the row changed while it was read: the rank is in another call by now
            state = COMPUTING
        return RankView(rank, state, row[ROUND], row[TARGETS], key, operation, members, arrived, released, self.text(rank))

    def _unread(self, source: int, dest: int) -> bool:
        """Return whether messages from `source` to `dest` have not been taken out of MPI's queue yet."""
        return self.parts[source][pair_offset(dest) + SENT_COUNT] > self.parts[dest][pair_offset(source) + READ_COUNT]

    def accept(self, source: int, message: int) -> None:
        """Announce that a message has matched a receive on this rank; `message` is its id, see `point_to_point`."""
        self.mine[pair_offset(source) + ACCEPTED_IDS + message % ACCEPTED_SLOTS] = message

    def accepted(self, source: int, dest: int, message: int) -> bool:
        """Return whether a message, by its id, has matched a receive on rank `dest`."""
        return self.parts[dest][pair_offset(source) + ACCEPTED_IDS + message % ACCEPTED_SLOTS] == message


def pair_offset(other: int) -> int:
    """Return the offset, in words, of the message counts with rank `other` in each rank's part."""
    return PAIRS_START + PAIR_WORDS * other


def context_of(key: int) -> int:
    """Return the group's context id, from the key of a collective; see `progress.rendezvous`."""
    return key >> 32 & (MAX_CONTEXTS - 1)


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

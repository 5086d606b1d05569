"""The status board: what each rank does, in memory that all ranks of its machine see.

A rank that waits reads here whether the others can still come. Each rank writes to its own part only, so no lock is needed. Where ranks
are on several machines, a rank that waits for long asks the other machines for their parts, see `hosts`; what was read last lies here.

A rank's part, in 64-bit words: a row; a text; what is known of messages with each other rank; and one page for each group, in which
`progress.rendezvous` has the group's collectives. After them two slots for small arrays.
"""

from __future__ import annotations

import atexit
import os
import time
from functools import cache

from mpi4py import MPI

from course_lib import host
from course_lib.collectives import shared_memory
from course_lib.collectives.calls import BLOCKING_FORM, RECV, SEND
from course_lib.collectives.deadlock.detector import CONFIRM_SECONDS, rank_mask
from course_lib.collectives.deadlock.host_agents import HostAgents
from course_lib.collectives.snapshot import COMPUTING, DEADLOCK_RAISING, GONE, LOST, RAISED, WAITING, RankView, Snapshot

MAX_RANKS = 64  # a group is a bit mask in one word

# The words of a row. CONTEXTS: how many groups this rank has pages for. GIVEN: the call that it gave up last.
KEY, STATE, ROUND, TARGETS, OPERATION, MEMBERS, DETAIL, DEADLOCKED_KEY, CONTEXTS = range(9)
TEXT_START, TEXT_WORDS = 16, 32
PAIRS_START = TEXT_START + TEXT_WORDS
SENT_COUNT, READ_COUNT, ACCEPTED_IDS, PAIR_WORDS, ACCEPTED_SLOTS = (
    0,
    1,
    2,
    10,
    8,
)  # messages sent to a rank, read from it, and the last ones that have a receive here
PAGE_WORDS = 512  # words of a group's page
ARRIVED_KEY, LEFT_KEY = 0, 1  # of a page: the key of the latest collective to which this rank has come, and of the latest that it has left
MAX_CONTEXTS = 512  # MPI has room for 2048 communicators, of which a group takes two or three
SLOT_BYTES = 1 << 19  # bytes of a slot
CAUGHT_SECONDS = 1.0  # seconds after which a rank that gave up, and whose cell has not ended, has caught the error


class Board:
    """The parts of all ranks.

    Parameters
    ----------
    world : MPI.Comm
        All ranks; the call is collective.

    Attributes
    ----------
    parts : list of memoryview
        Of 64-bit words, one a rank; those of ranks elsewhere are copies.
    mine : memoryview
        This rank's.
    hosts : Hosts or None
        The machines' agents, where the ranks or the notebook are on several.

    Raises
    ------
    ConnectionError
        Machines do not reach each other.
    """

    def __init__(self, world: MPI.Comm):
        self.rank, self.size, self.round = world.Get_rank(), world.Get_size(), 0
        names = world.allgather(host.name())
        self.machines = tuple(names) if len(set(names)) > 1 else ()
        self.local = tuple(r for r in range(self.size) if names[r] == names[self.rank])
        self._pages = -(-(PAIRS_START + PAIR_WORDS * self.size) // PAGE_WORDS) * PAGE_WORDS  # where they begin
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
        """Start a cell: its number, and (a bit mask) the ranks that were asked to run it."""
        self.write_text("")
        self.mine[TARGETS] = targets if targets < 1 << 63 else targets - (1 << 64)
        self.mine[STATE] = COMPUTING
        self.mine[ROUND] = self.round = round

    def end(self, state: int, text: str = "", keep_call: bool = False) -> None:
        """End a cell (or the process): FINISHED, RAISED or GONE, and what there is to say.

        `keep_call` leaves this rank's last call in its row, for others that still describe it.
        """
        if text:
            self.write_text(text)
        if not keep_call:
            self.mine[KEY] = 0
        self.mine[STATE] = state

    def wait(self, key: int, operation: int, members: int, detail: int, text: str) -> None:
        """Show that this rank waits, and for what."""
        mine = self.mine
        if mine[STATE] != WAITING or mine[KEY] != key:
            mine[STATE] = COMPUTING  # until the row is whole
            mine[KEY], mine[OPERATION] = key, operation
        mine[MEMBERS], mine[DETAIL] = members, detail
        self.write_text(text)
        mine[STATE] = WAITING

    def resume(self) -> None:
        """Show that this rank no longer waits, before the word goes that says why it need not.

        On a busy machine it may have no core for a while between the two, and would look like one that waits in vain.
        """
        self.mine[STATE] = COMPUTING

    def give_up(self) -> None:
        """Show that this rank has found a deadlock; the others get the time to see the same picture."""
        self.mine[DEADLOCKED_KEY] = self.mine[KEY]
        self.mine[STATE] = DEADLOCK_RAISING
        time.sleep(CONFIRM_SECONDS)

    def write_text(self, text: str) -> None:
        """Write this rank's text: where it waits, or what it raised."""
        data = text.encode()[: 8 * TEXT_WORDS - 1].decode(errors="ignore").encode()
        self.bytes[self.rank][8 * TEXT_START : 8 * TEXT_START + len(data) + 1] = data + b"\0"

    def _leave(self) -> None:
        """The process ends; what it has raised stays to be read."""
        if self.mine[STATE] != RAISED:
            self.end(GONE)

    # What it reads.

    def page_offset(self, context: int) -> int:
        """The place of a group's page in each rank's part."""
        return self._pages + context * PAGE_WORDS

    def page(self, rank: int, context: int) -> memoryview:
        """A rank's page for a group."""
        start = self.page_offset(context)
        return self.parts[rank][start : start + PAGE_WORDS]

    def pair_offset(self, rank: int, other: int) -> int:
        """The place in a rank's part of what is known of messages with another."""
        return PAIRS_START + PAIR_WORDS * other

    def refresh(self) -> bool:
        """Ask the other machines what their ranks do; whether all that is here now is younger than the last time that this was True."""
        return self.hosts is None or not self.machines or self.hosts.refresh(self.bytes)

    def state(self, rank: int) -> int:
        """Return the state of a rank, as far as it is known here."""
        if self.machines and self.parts[rank][STATE] != GONE and self.machines[rank] in self.hosts.lost():
            return LOST
        return self._visible_state(rank)

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
            key = 0  # it has left that call
        elif state != COMPUTING:
            others = [r for r in range(self.size) if members >> r & 1 and r != rank]
            if collective:
                arrived = rank_mask(r for r in others if self.page(r, context_of(collective))[ARRIVED_KEY] >= collective)
                released = all(arrived >> r & 1 for r in others)
            elif operation == RECV:
                released = any(self._unread(r, rank) for r in others)
            elif operation == SEND:
                released = any((self._unread(rank, r) and self.state(r) == WAITING) or self._accepted(rank, r, detail) for r in others)
        if row[KEY] != key and state == WAITING:  # it has gone on to another call meanwhile
            state = COMPUTING
        return RankView(rank, state, row[ROUND], row[TARGETS], key, operation, members, arrived, released, self.text(rank))

    def _unread(self, source: int, dest: int) -> bool:
        """Return whether a rank has messages from another one that it has not taken."""
        return (
            self.parts[source][self.pair_offset(source, dest) + SENT_COUNT] > self.parts[dest][self.pair_offset(dest, source) + READ_COUNT]
        )

    def accept(self, source: int, message: int) -> None:
        """Show that this rank has a receive for a message."""
        self.mine[self.pair_offset(self.rank, source) + ACCEPTED_IDS + message % ACCEPTED_SLOTS] = message

    def _accepted(self, source: int, dest: int, message: int) -> bool:
        return self.parts[dest][self.pair_offset(dest, source) + ACCEPTED_IDS + message % ACCEPTED_SLOTS] == message

    def has_receive(self, dest: int, message: int) -> bool:
        """Return whether a rank has a receive for a message of this rank."""
        return self._accepted(self.rank, dest, message)

    def _visible_state(self, rank: int) -> int:
        """Its state. Who gave up has caught the error when it is in another call, or when its cell has not ended for a while.

        It cannot say so itself: no thread of a rank runs while one long step of C does.
        """
        row = self.parts[rank]
        if row[STATE] != DEADLOCK_RAISING:
            return row[STATE]
        call, (known, since) = (row[ROUND], row[DEADLOCKED_KEY]), self._giving_up.get(rank, (None, 0.0))
        if call != known:
            since = time.monotonic()
            self._giving_up[rank] = call, since
        caught = row[KEY] not in (0, row[DEADLOCKED_KEY]) or time.monotonic() - since > CAUGHT_SECONDS
        return COMPUTING if caught else DEADLOCK_RAISING


def context_of(key: int) -> int:
    """The group's number in the key of a collective, see `rendezvous`."""
    return key >> 32 & (MAX_CONTEXTS - 1)


@cache
def open_board() -> Board:
    """The board of this process, made on first use by all ranks together.

    Raises
    ------
    ValueError
        There are more than 64 ranks.
    ConnectionError
        Ranks are on several machines, which do not reach each other.
    """
    world = MPI.COMM_WORLD
    if world.Get_size() > MAX_RANKS:
        raise ValueError(f"the course's communicator takes at most {MAX_RANKS} ranks; these are {world.Get_size()}.")
    return Board(world)

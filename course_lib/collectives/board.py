"""The status board: what each rank is doing, in memory that all ranks of a machine see.

A rank that waits in a collective reads here whether the others can still come. A collective
starts only after every rank of its group has put the same call on the board, so a wrong call
is found before MPI sees it, and MPI stays usable.

One row a rank, in 64-bit words. Only the row's owner writes to it, so no lock is needed. What ranks of other machines write is
shown here by this machine's mirror, see `hosts`.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from course_lib import host
from course_lib.collectives import apart, calls, notices

if TYPE_CHECKING:
    from mpi4py import MPI

    from course_lib.collectives.hosts import Hosts

# What a rank is doing. GIVES_UP: it waited, and finds that nobody will come. GAVE_UP: its cell has ended with that.
# LOST: nothing is heard from its machine.
COMPUTING, WAITING, FINISHED, RAISED, GONE, GAVE_UP, LOST, GIVES_UP = 1, 2, 3, 4, 5, 6, 7, 8
STANDS = (WAITING, GIVES_UP, GAVE_UP)  # in the call that its row shows

# The words of a row; what is read while waiting shares one cache line. After them: one word a
# rank, the last call that this rank saw complete together with that rank (negative: complete,
# but the calls do not match); and once more one word a rank, for `slots`. Then a text, and the slots.
KEY, SIGNATURE, ROUND, STATE, TARGETS, OPERATION, MEMBERS, DTYPE, COUNT, DETAIL, FILLED, _, GIVEN = range(13)
# GIVEN: the call that it gave up last.
# DETAIL of a rank that waits for a message or for the start of others: what it waits for, see `mailbox`.
SEEN = 16
TEXT_WORDS = 32
SLOT = 1 << 19  # bytes of one of a rank's two slots, see `slots`
SURE = 0.25  # seconds that a deadlock must be seen unchanged
CAUGHT = 1.0  # seconds after which one that gave up, and whose cell has not ended, has caught the error
MAX_RANKS = 64  # a group is a bit mask in one word


@dataclass(frozen=True)
class Row:
    """A snapshot of what one rank has on the board.

    `released`: what it waits for is there, and it has yet to see that.
    """

    rank: int
    state: int
    round: int
    targets: int
    key: int
    members: int
    operation: int
    released: bool


def mask(ranks: Iterable[int]) -> int:
    """A bit mask as a signed word has it: ask it with ``mask >> rank & 1``.

    >>> mask([0, 2]), mask([63]) >> 63 & 1
    (5, 1)
    """
    bits = sum(1 << r for r in ranks)
    return bits if bits < 1 << 63 else bits - (1 << 64)


def late_ranks(rows: list[Row]) -> set[int]:
    """Those that were asked to run this cell and have not begun it."""
    newest = max(r.round for r in rows)
    asked = next(r.targets for r in rows if r.round == newest)
    return {r.rank for r in rows if r.round < newest and asked >> r.rank & 1 and r.state != LOST}


class Board:
    """The rows of all ranks.

    Parameters
    ----------
    world : MPI.Comm
        All ranks; the call is collective.
    hosts : Hosts, optional
        Their machines, where these are several.
    """

    def __init__(self, world: MPI.Comm, hosts: Hosts | None = None):
        self.rank, self.size, self.hosts = world.Get_rank(), world.Get_size(), hosts
        self.round, self._giving = 0, {}
        self.last: object = None  # the group that this rank's row shows
        words = -(-(SEEN + 2 * self.size + TEXT_WORDS) // 16) * 16  # rows share no cache line
        row, tables, about = 8 * words, 8 * words + 2 * SLOT, 8 * notices.words(self.size)
        buffers = hosts.open(row, tables, about) if hosts else self._allocate(world, tables + about)
        self.rows = [b[:row].cast("q") for b in buffers]
        self._texts = [b[row - 8 * TEXT_WORDS : row] for b in buffers]
        self.slots = [b[row:tables] for b in buffers]
        changed = hosts.changed if hosts else None
        self.notices = notices.Notices([b[tables : tables + about].cast("q") for b in buffers], self.rank, changed)
        self.left = SEEN + self.size  # where a row's last words begin
        self.mine = self.rows[self.rank]
        for i in range(words):
            self.mine[i] = 0
        self.mine[STATE] = COMPUTING
        world.Barrier()
        atexit.register(self._leave)

    def _allocate(self, world: MPI.Comm, size: int) -> list[memoryview]:
        """So many bytes for each rank. MPI owns the memory: it goes when the ranks go, and leaves no file behind."""
        from mpi4py import MPI

        self._window = MPI.Win.Allocate_shared(size, 8, comm=world)  # what is not touched takes no room
        return [memoryview(self._window.Shared_query(r)[0]).cast("B") for r in range(self.size)]

    # Where ranks are on several machines.

    def near(self, ranks: tuple[int, ...]) -> bool:
        """Whether all these ranks are on this rank's machine."""
        return self.hosts is None or self.hosts.near(ranks)

    def heard_since(self, moment: float) -> bool:
        """Whether all that is to be seen of ranks elsewhere was true after this moment of `time.monotonic`."""
        return self.hosts is None or self.hosts.heard_since(moment)

    def state(self, rank: int) -> int:
        """What a rank is doing."""
        state = self._shown(rank)
        return LOST if self.hosts and state != GONE and self.hosts.of[rank] in self.hosts.lost() else state

    # What this rank says.

    def begin(self, round: int, targets: int) -> None:
        """Start a cell: its number, and (a bit mask) the ranks that were asked to run it."""
        self.say("")
        self.mine[TARGETS] = targets if targets < 1 << 63 else targets - (1 << 64)
        self.mine[STATE] = COMPUTING
        self.mine[ROUND] = round
        self.round = round

    def end(self, state: int, text: str = "", keep_call: bool = False) -> None:
        """End a cell (or the process): FINISHED, RAISED or GONE, and what there is to say.

        `keep_call` leaves this rank's last call in its row, for others that still describe it.
        """
        if text:
            self.say(text)
        if not keep_call:
            self.mine[KEY] = 0
        self.mine[STATE] = state

    def goes_on(self) -> None:
        """Show that this rank no longer waits, before the word goes that says why it need not.

        On a busy machine it may have no core for a while between the two, and would look like one that waits in vain.
        """
        if self.mine[STATE] == WAITING:
            self.mine[STATE] = COMPUTING

    def give_up(self) -> None:
        """This rank waits for what will never come; the others get the time to see the same picture."""
        self.mine[GIVEN] = self.mine[KEY]
        self.mine[STATE] = GIVES_UP
        time.sleep(SURE)

    def _shown(self, rank: int) -> int:
        """Its state. Who gave up has caught the error when it is in another call, or when its cell has not ended for a while.

        It cannot say so itself: no thread of a rank runs while one long step of C does.
        """
        row = self.rows[rank]
        if row[STATE] != GIVES_UP:
            return row[STATE]
        call, (known, since) = (row[ROUND], row[GIVEN]), self._giving.get(rank, (None, 0.0))
        if call != known:
            since = time.monotonic()
            self._giving[rank] = call, since
        caught = row[KEY] not in (0, row[GIVEN]) or time.monotonic() - since > CAUGHT
        return COMPUTING if caught else GIVES_UP

    def _leave(self) -> None:
        """The process ends; what it has raised stays to be read."""
        if self.mine[STATE] != RAISED:
            self.end(GONE)

    def say(self, text: str) -> None:
        """Write this rank's text: where it waits, or what it raised."""
        data = text.encode()[: 8 * TEXT_WORDS - 1].decode(errors="ignore").encode()
        self._texts[self.rank][: len(data) + 1] = data + b"\0"

    def text(self, rank: int) -> str:
        """What a rank said last."""
        return bytes(self._texts[rank]).split(b"\0", 1)[0].decode(errors="replace")

    def snapshot(self) -> list[Row]:
        """Every rank's row, as it is now."""
        rows, lost = [], self.hosts.lost() if self.hosts else ()
        for r, row in enumerate(self.rows):
            key, members = row[KEY], row[MEMBERS]
            others = [o for o in range(self.size) if members >> o & 1 and o != r]
            if key >= 0:
                released = key != 0 and any(abs(self.rows[o][SEEN + r]) == key for o in others)
            else:
                released = self._come(r, row, others)
            state = LOST if lost and row[STATE] != GONE and self.hosts.of[r] in lost else self._shown(r)
            if row[KEY] != key and state == WAITING:  # it has gone on to another call meanwhile
                state = COMPUTING
            rows.append(Row(r, state, row[ROUND], row[TARGETS], key, members, row[OPERATION], released))
        return rows

    def _come(self, rank: int, row: memoryview, others: list[int]) -> bool:
        """Whether the message, the receiver or the starts for which a rank waits have come."""
        operation, detail = row[OPERATION], row[DETAIL]
        if operation == calls.RECV:
            return any(self.notices.unread(o, rank) for o in others)
        if operation == calls.SEND:
            looks = any(self.notices.unread(rank, o) and self.state(o) == WAITING for o in others)
            return looks or any(self.notices.accepted(rank, o, detail) for o in others)
        return all(self.notices.found(o, detail) for o in others)

    def stuck(self, rows: list[Row]) -> tuple[Row, ...]:
        """The ranks that wait and can never go on, as these rows stand.

        A waiting rank can go on when every rank of its group waits in the same call or can
        still come; for a message, when one of those from which it may come can. What can still
        come: a rank that computes, one that has not begun the cell yet but was asked to run it,
        and a waiting rank that can itself go on.
        """
        newest, late = max(r.round for r in rows), late_ranks(rows)
        moving = {
            r.rank for r in rows if r.rank in late or (r.round == newest and r.state == COMPUTING) or (r.state == WAITING and r.released)
        }
        waiting = [r for r in rows if r.round == newest and r.state == WAITING]
        grew = True
        while grew:
            grew = False
            for row in waiting:
                if row.rank in moving:
                    continue
                others = [o for o in rows if row.members >> o.rank & 1 and o.rank != row.rank]
                if row.key < 0:  # one that sends would do, or one that receives; nobody does it for oneself
                    goes = any(o.rank in moving for o in others)
                    goes = goes if row.operation in (calls.SEND, calls.RECV) else all(o.rank in moving for o in others)
                else:
                    goes = all(o.rank in moving or (o.state == WAITING and o.key == row.key) for o in others)
                if goes:
                    moving.add(row.rank)
                    grew = True
        return tuple(r for r in waiting if r.rank not in moving)


@cache
def open_board() -> Board | None:
    """The board of this process, made on first use by all ranks together.

    Returns
    -------
    Board or None
        None when the ranks are kept apart or are more than 64: then waits end by a plain time limit.

    Raises
    ------
    ConnectionError
        Ranks are on several machines, which do not reach each other.
    """
    if apart.line:
        return None
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    if world.Get_size() > MAX_RANKS:
        return None
    names = world.allgather(host.name())
    if len(set(names)) == 1:
        return Board(world)
    from course_lib.collectives.hosts import Hosts

    return Board(world, Hosts(world, names))

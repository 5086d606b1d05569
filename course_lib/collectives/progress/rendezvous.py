"""Rendezvous of the ranks of a group before a collective: each rank announces the call it makes, and compares it with the others' calls.

A wrong call is thus found before MPI sees it, and MPI stays usable. On one machine, each rank writes its calls to its page of the status
board, into a ring long enough for the slowest rank to read them. Between machines, the ranks exchange them in one all-gather of fixed size.
Both carry small arrays inline, and then the collective needs no transfer by MPI.

Key
    Identifies a collective: the cell's number (bits 42 and up), the group's context (bits 32 to 41), and twice the number of the collective
    among those of the group in this cell (bits 0 to 31). All ranks compute it without communicating, from the same order of calls; the keys
    of a group only grow. The odd key after a collective's own is that of its second phase: `Split` first exchanges colors, and then
    synchronizes once more (`second_phase`) before it creates MPI communicators.
Context
    The number of a group, which the ranks agree on when it is created; also the index of its page on the status board.
Renewals
    The number of times that a rank has duplicated the group's MPI communicator, as it does before the first transfer of an epoch (see
    `progress.operations`). An interrupted rank may have duplicated it fewer times than others, and MPI matches duplications by their order:
    the ranks announce their numbers, and all duplicate until they have reached the largest one plus 1.
"""

from __future__ import annotations

import math
import platform
import struct
import time
from collections.abc import Sequence
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib.collectives.calls import ALLGATHER, ALLREDUCE, BARRIER, REDUCE_SCATTER, SPLIT, SUM, SUMMABLE_DTYPES, Call
from course_lib.collectives.deadlock.board import Board
from course_lib.collectives.deadlock.layout import ARRIVED_KEY, CONTEXTS, KEY, LEFT_KEY, PAGE_WORDS, SLOT_BYTES
from course_lib.collectives.progress.engine import sched_yield
from course_lib.collectives.progress.operations import progress_state, raise_interrupt

TOTAL_STORE_ORDER = platform.machine() in ("x86_64", "AMD64")  # other processors may make stores visible in another order
ENTRY_WORDS = 8  # words per call in a page; the first entry's place is taken by ARRIVED_KEY and LEFT_KEY
RING_ENTRIES = PAGE_WORDS // ENTRY_WORDS - 1  # a rank may be this many calls ahead of the slowest one
_ENTRY_STRUCT = struct.Struct("7q")  # an entry: key, token (hash of the signature), operation, dtype, count, detail, renewals
RENEWALS_WORD = 6
ROUND_MODULUS = 1 << 21
VISIBILITY_SECONDS = 1.0  # seconds after which an earlier store is certainly visible
MAX_SLOT_READ_BYTES = 1 << 20  # bytes that a rank reads from all slots; beyond that, MPI's ring algorithms are faster
INLINE_OPERATIONS = {ALLREDUCE, ALLGATHER, REDUCE_SCATTER, SPLIT, BARRIER}  # the rendezvous may carry their arrays
Signature = tuple[int, int, int, int]


class Rendezvous:
    """Rendezvous of the ranks of one group, with this rank's page for it on the status board, which the deadlock detector reads.

    For each collective, in this order: `next_key` (or `second_phase_key`), `arrive`, `is_complete` until it is True, `signatures`, and
    `inline_arrays` if the arrays were sent inline; finally `leave`, or `cancel` at any time after `arrive`. The two kinds of rendezvous
    below implement the methods without a body.

    Parameters
    ----------
    board : Board
    members : tuple of int
        World ranks, in the group's order.
    context : int
        The group's context id.
    max_inline, max_read : float
        Bytes that a rank can send inline (-1: nothing, not even empty arrays), and that it may read from all ranks together.
    """

    inlines_barrier = True

    def __init__(self, board: Board, members: tuple[int, ...], context: int, max_inline: float, max_read: float):
        self._members, self._max_inline, self._max_read = members, max_inline, max_read
        self.board, self._context, self._round, self._key, self._first = board, context, -1, 0, 0
        self._page = board.page(board.rank, context)
        self._page[ARRIVED_KEY] = self._page[LEFT_KEY] = 0
        board.mine[CONTEXTS] = max(board.mine[CONTEXTS], context + 1)

    def next_key(self) -> int:
        """Return the key of the next collective of this group."""
        if self._round != self.board.round:
            self._round = self.board.round
            self._first = self._key = self._round % ROUND_MODULUS << 42 | self._context << 32
        self._key += 2
        return self._key

    def second_phase_key(self) -> int:
        """Return the key of the second phase of the latest collective: its own key plus 1. Both share one number in messages."""
        return self._key + 1

    def has_room(self, key: int) -> bool:
        """Return whether this rank may announce this collective already; False while its entry would overwrite one still needed."""
        return True

    def inlines(self, call: Call) -> bool:
        """Return whether the arrays of a call are sent inline; for operations in `INLINE_OPERATIONS`.

        The answer depends only on what the signature fixes, so it is the same on all ranks that make the same call.
        """
        operation, n = call.operation, len(self._members)
        if operation == BARRIER:
            return self.inlines_barrier
        if call.recv.dtype.num not in SUMMABLE_DTYPES:
            return False
        if operation == ALLREDUCE:
            return call.detail == SUM and (nbytes := call.recv.nbytes) <= self._max_inline and n * nbytes <= self._max_read
        if operation in (ALLGATHER, SPLIT):
            return call.recv.nbytes <= min(self._max_read, n * self._max_inline)
        read = max(call.counts) * call.recv.itemsize * n
        return call.detail % 16 == SUM and call.send.nbytes <= self._max_inline and read <= self._max_read

    def arrive(self, key: int, call: Call, inline: bool, blocking: bool, renewals: int) -> None:
        """Announce that this rank has entered a collective.

        Parameters
        ----------
        key : int
        call : Call
        inline : bool
            Whether to send the call's contribution along, see `inlines`.
        blocking : bool
            Whether this rank will wait for it at once.
        renewals : int
            This rank's number of renewals, see the module's docstring.
        """

    def renewals(self, key: int) -> int:
        """Return the largest number of renewals that a rank has announced; only once the collective is complete."""

    def is_complete(self, key: int) -> bool:
        """Return whether all ranks of the group have entered the collective."""

    def spin_until_agreed(self, key: int, polls: range) -> bool:
        """Spin until all ranks have entered the collective with the same signature, for a limited time.

        Returns
        -------
        bool
            True if all have entered it and agree. False means "not yet" as well as "they differ": `is_complete` tells the two apart, and
            `signatures` has the difference. (A processor without total store order also gets False when all is well.)
        """

    def signatures(self, key: int) -> dict[int, Signature] | None:
        """Return each rank's signature, by world rank, or None if all are equal; only once the collective is complete."""

    def inline_arrays(self, key: int, dtype: np.dtype, count: int, start: int = 0) -> Sequence[np.ndarray]:
        """Return `count` elements, from element `start`, of each rank's inline array, in the group's order; valid until `leave`."""

    def leave(self, key: int) -> None:
        """Announce that this rank needs nothing more of this collective; the other ranks may reuse its space."""
        if key > self._page[LEFT_KEY]:
            self._page[LEFT_KEY] = key

    def cancel(self, key: int) -> None:
        """Withdraw from a collective that has failed on this rank."""

    def missing(self, key: int) -> list[int]:
        """Return the world ranks that have not entered the collective, as far as is known here."""
        return [r for r in self._members if self.board.page(r, self._context)[ARRIVED_KEY] < key]


class BoardRendezvous(Rendezvous):
    """Rendezvous through the status board, for a group on one machine; parameters as for `Rendezvous`."""

    inlines_barrier = TOTAL_STORE_ORDER

    def __init__(self, board: Board, members: tuple[int, ...], context: int):
        super().__init__(board, members, context, SLOT_BYTES if TOTAL_STORE_ORDER and len(members) > 1 else -1, MAX_SLOT_READ_BYTES)
        self._offset = 8 * board.page_offset(context)
        self._bytes, self._row, self._room = board.bytes[board.rank], board.mine, 0
        self._others = [(r, board.page(r, context)) for r in members if r != board.rank]
        self._pages = [page for _, page in self._others]
        self._readers = [(page, board.parts[r]) for r, page in self._others]
        self._slots = _slot_writer(board)
        self._views = [board.slots[r] for r in members]

    def has_room(self, key: int) -> bool:
        if key > self._room:
            first = self._first  # collectives of earlier cells are over
            self._room = RING_ENTRIES - 2 + min(max(first, page[LEFT_KEY]) for page in (self._page, *self._pages))
        return key <= self._room

    def arrive(self, key: int, call: Call, inline: bool, blocking: bool, renewals: int) -> None:
        signature = call.signature
        if inline and call.operation != BARRIER:
            self._slots.put(key, call.contribution, self._readers)
        self._token = token = hash(signature) if TOTAL_STORE_ORDER else hash((key, *signature))
        _ENTRY_STRUCT.pack_into(self._bytes, self._offset + 8 * ENTRY_WORDS * (1 + key % RING_ENTRIES), key, token, *signature, renewals)
        if blocking:
            self._row[KEY] = key
        self._page[ARRIVED_KEY] = key

    def is_complete(self, key: int) -> bool:
        return all([page[ARRIVED_KEY] >= key for page in self._pages])

    def spin_until_agreed(self, key: int, polls: range) -> bool:
        place, pages = ENTRY_WORDS * (1 + key % RING_ENTRIES) + 1, self._pages
        for _ in polls:
            for page in pages:
                if page[ARRIVED_KEY] < key:
                    break
            else:
                for page in pages:
                    if page[place] != self._token:
                        return False
                return TOTAL_STORE_ORDER
        return False

    def signatures(self, key: int) -> dict[int, Signature] | None:
        place = ENTRY_WORDS * (1 + key % RING_ENTRIES)
        own = self._page[place + 1]
        if TOTAL_STORE_ORDER:
            for page in self._pages:
                if page[place + 1] != own:
                    break
            else:
                return None
        found = {self.board.rank: tuple(self._page[place + 2 : place + 6])}
        found |= {rank: self._read(page, place, key) for rank, page in self._others}
        return found if len(set(found.values())) > 1 else None

    def renewals(self, key: int) -> int:
        place = ENTRY_WORDS * (1 + key % RING_ENTRIES)
        return max(page[place + RENEWALS_WORD] for page in (self._page, *self._pages))

    @staticmethod
    def _read(page: memoryview, place: int, key: int) -> Signature:
        """Return the signature that a rank announced, once all its words are visible."""
        deadline = time.monotonic() + VISIBILITY_SECONDS
        while True:
            words = tuple(page[place : place + 6])
            whole = TOTAL_STORE_ORDER or (words[0] == key and words[1] == hash((key, *words[2:])))
            if whole or time.monotonic() > deadline:
                return words[2:]

    def inline_arrays(self, key: int, dtype: np.dtype, count: int, start: int = 0) -> list[np.ndarray]:
        # Created for each call and not cached: memory checks count the arrays that are alive on a rank.
        return [np.frombuffer(slots[key >> 1 & 1], dtype, count, start * dtype.itemsize) for slots in self._views]

    def cancel(self, key: int) -> None:
        self._page[ARRIVED_KEY] = key - 1
        self.leave(key)  # so that no rank waits for this one to read its slot
        self._slots.forget(key)


class _SlotWriter:
    """This process's two slots for inline arrays, one for collectives with even numbers and one for odd.

    A slot is reused once nobody reads it any more: each reader has left the collective, or is no longer in that call.
    """

    def __init__(self, board: Board):
        self._board = board
        self._mine = board.slots[board.rank]
        self._readers: list[tuple[int, list]] = [(0, []), (0, [])]  # the key, and the readers' pages and rows

    def put(self, key: int, array: np.ndarray, readers: list[tuple[memoryview, memoryview]]) -> None:
        half = key >> 1 & 1
        before, earlier = self._readers[half]
        polls = 0
        for page, row in earlier:
            while page[LEFT_KEY] < before and row[KEY] == before:
                polls += 1
                sched_yield() if polls < 2000 else time.sleep(1e-4)
                if progress_state.interrupt_pending:
                    raise_interrupt()
        np.frombuffer(self._mine[half], array.dtype, array.size)[...] = array.reshape(-1)
        self._readers[half] = key, readers

    def forget(self, key: int) -> None:
        if self._readers[key >> 1 & 1][0] == key:
            self._readers[key >> 1 & 1] = 0, []


@cache
def _slot_writer(board: Board) -> _SlotWriter:
    return _SlotWriter(board)


class _AllgatherBuffers:
    """The buffers of one all-gather of announcements, and its request once it is started."""

    def __init__(self, n: int, size: int):
        self.out, self.into, self.request = np.zeros(size, np.uint8), np.empty((n, size), np.uint8), None
        self.mine, self.all = self.out[: 8 * RENEWALS_WORD].view(np.int64), self.into[:, : _ENTRY_STRUCT.size].view(np.int64)
        self._n, self._signatures = n, self.into[:, : 8 * RENEWALS_WORD]

    def agrees(self) -> bool:
        """Return whether all ranks have sent this rank's key and signature."""
        return self._signatures.tobytes() == self.mine.tobytes() * self._n  # a fraction of what comparing arrays costs


class AllgatherRendezvous(Rendezvous):
    """Rendezvous by an all-gather, for a group on several machines.

    One all-gather is in flight at a time. A rank that cancelled a collective has started an all-gather for it nevertheless; the others find
    its old key in the result when they take part, and every rank whose own key is not there starts another one.

    Parameters
    ----------
    board, members, context
        As for `Rendezvous`.
    comm : MPI.Comm
        A communicator of the group, used for nothing else.
    """

    MAX_INLINE_BYTES, MAX_TOTAL_INLINE_BYTES = 4096, 1 << 16  # inline bytes per rank, and of all ranks together
    HEADER_BYTES, MAX_POLLS = 64, 200

    def __init__(self, board: Board, members: tuple[int, ...], context: int, comm: MPI.Comm):
        room = min(self.MAX_INLINE_BYTES, self.MAX_TOTAL_INLINE_BYTES // len(members) // 64 * 64)
        super().__init__(board, members, context, room, math.inf)
        self._comm, self._size = comm, self.HEADER_BYTES + room
        self._open: dict[int, _AllgatherBuffers] = {}  # by key, in ascending order
        self._complete: set[int] = set()
        self._spare: list[_AllgatherBuffers] = []

    def arrive(self, key: int, call: Call, inline: bool, blocking: bool, renewals: int) -> None:
        exchange = self._spare.pop() if self._spare else _AllgatherBuffers(len(self._members), self._size)
        _ENTRY_STRUCT.pack_into(exchange.out, 0, key, 0, *call.signature, renewals)
        if inline and call.operation != BARRIER:
            given = call.contribution
            exchange.out[self.HEADER_BYTES : self.HEADER_BYTES + given.nbytes].view(given.dtype)[...] = given.reshape(-1)
        if blocking:
            self.board.mine[KEY] = key
        self._page[ARRIVED_KEY] = key
        self._open[key] = exchange
        self._advance()

    def _advance(self) -> None:
        """Advance the all-gather of the first collective that is not complete."""
        for key, exchange in self._open.items():
            if key in self._complete:
                continue
            if exchange.request is None:
                exchange.request = self._comm.Iallgather(exchange.out, exchange.into)
            if not exchange.request.Test():
                return
            if not exchange.agrees() and not (exchange.all[:, 0] == key).all():
                exchange.request = self._comm.Iallgather(exchange.out, exchange.into)
                return
            self._complete.add(key)

    def is_complete(self, key: int) -> bool:
        if key not in self._complete:
            self._advance()
        return key in self._complete

    def spin_until_agreed(self, key: int, polls: range) -> bool:
        exchange = self._open[key]
        for _ in range(self.MAX_POLLS):  # polling this one request costs less than a wait, in which all operations make progress
            request = exchange.request  # None while the all-gather of an earlier call is under way
            if (request is None or request.Test()) and self.is_complete(key):
                return self.signatures(key) is None
            if progress_state.interrupt_pending:
                break
            sched_yield()
        return False

    def signatures(self, key: int) -> dict[int, Signature] | None:
        exchange = self._open[key]
        if exchange.agrees():
            return None
        return dict(zip(self._members, (tuple(words[2:RENEWALS_WORD]) for words in exchange.all.tolist()), strict=True))

    def renewals(self, key: int) -> int:
        return int(self._open[key].all[:, RENEWALS_WORD].max())

    def inline_arrays(self, key: int, dtype: np.dtype, count: int, start: int = 0) -> np.ndarray:
        begin = self.HEADER_BYTES + start * dtype.itemsize
        return self._open[key].into[:, begin : begin + count * dtype.itemsize].view(dtype)

    def leave(self, key: int) -> None:
        super().leave(key)
        if exchange := self._open.pop(key, None):
            self._complete.discard(key)
            exchange.request = None
            self._spare.append(exchange)

    def cancel(self, key: int) -> None:
        """Keep the buffers alive: MPI has the all-gather already, and to the others this rank has entered the collective."""
        if exchange := self._open.pop(key, None):
            progress_state.abandoned.append((progress_state.epoch, exchange))


def combine(rendezvous: Rendezvous, key: int, call: Call, place: int) -> None:
    """Compute a collective's result from the inline arrays, into the call's receive buffer.

    Sums are taken in rank order, so all ranks get the same result to the last bit.

    Parameters
    ----------
    rendezvous : Rendezvous
    key : int
    call : Call
    place : int
        This rank's position in the group.
    """
    operation, recv = call.operation, call.recv
    if operation == BARRIER:
        return
    flat = recv.reshape(-1)
    if operation in (ALLGATHER, SPLIT):
        np.concatenate(rendezvous.inline_arrays(key, recv.dtype, call.contribution.size), out=flat)
        return
    start = sum(call.counts[:place]) if operation == REDUCE_SCATTER else 0
    arrays = rendezvous.inline_arrays(key, recv.dtype, recv.size, start)
    if isinstance(arrays, np.ndarray) and recv.size > 1:  # of a single element, NumPy would not add in order
        np.add.reduce(arrays, axis=0, dtype=recv.dtype, out=flat)
        return
    first, *more = arrays
    if not more:
        flat[...] = first
        return
    np.add(first, more[0], flat)
    for array in more[1:]:
        np.add(flat, array, flat)

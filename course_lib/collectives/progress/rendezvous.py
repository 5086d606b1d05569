"""Rendezvous of the ranks of a group before a collective: each rank announces the call it makes, and compares it with the others' calls.

A wrong call is thus found before MPI sees it, and MPI stays usable. On one machine, each rank writes its calls to its page of the status
board, into a ring long enough for the slowest rank to read them. Between machines, the first rank of the group on each, its leader,
exchanges them for all in one all-gather of fixed size. Both carry small arrays inline, and then the collective needs no transfer by MPI.

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

import platform
import struct
import time
from array import array
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
RENEWALS_WORD, VERDICT_WORD = 6, 7  # VERDICT_WORD: see `MachinesRendezvous`
ROUND_MODULUS = 1 << 21
VISIBILITY_SECONDS = 1.0  # seconds after which an earlier store is certainly visible
MAX_SLOT_READ_BYTES = 1 << 20  # bytes that a rank reads from all slots; beyond that, MPI's ring algorithms are faster
INLINE_OPERATIONS = {ALLREDUCE, ALLGATHER, REDUCE_SCATTER, SPLIT, BARRIER}  # the rendezvous may carry their arrays
Signature = tuple[int, int, int, int]


class Rendezvous:
    """Rendezvous of the ranks of one group, with this rank's page for it on the status board, which the deadlock detector reads.

    For each collective, in this order: `next_key` (or `second_phase_key`), `arrive`, `is_complete` until it is True, `signatures`, and
    `combine` if the arrays were sent inline; finally `leave`, or `cancel` at any time after `arrive`. The two kinds of rendezvous
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

    def combine(self, key: int, call: Call, place: int) -> None:
        """Compute the result of a collective from the inline arrays, into the call's receive buffer; the same to the last bit on all ranks.

        Parameters
        ----------
        key : int
        call : Call
        place : int
            This rank's position in the group.
        """

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
            self._slots.take(key, self._readers, call.contribution.dtype, call.contribution.size)[...] = call.contribution.reshape(-1)
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

    def combine(self, key: int, call: Call, place: int) -> None:
        operation, recv = call.operation, call.recv
        if operation == BARRIER:
            return
        flat = recv.reshape(-1)
        if operation in (ALLGATHER, SPLIT):
            np.concatenate(self.inline_arrays(key, recv.dtype, call.contribution.size), out=flat)
        else:
            start = sum(call.counts[:place]) if operation == REDUCE_SCATTER else 0
            _sum_in_order(self.inline_arrays(key, recv.dtype, recv.size, start), flat)

    def inline_arrays(self, key: int, dtype: np.dtype, count: int, start: int = 0) -> list[np.ndarray]:
        """Return `count` elements, from element `start`, of each rank's inline array, in the group's order; valid until `leave`."""
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

    def take(self, key: int, readers: list[tuple[memoryview, memoryview]], dtype: np.dtype, count: int) -> np.ndarray:
        """Return the slot for a collective, as an array to be written at once, after its earlier readers have finished."""
        half = key >> 1 & 1
        before, earlier = self._readers[half]
        polls = 0
        for page, row in earlier:
            while page[LEFT_KEY] < before and row[KEY] == before:
                polls += 1
                sched_yield() if polls < 2000 else time.sleep(1e-4)
                if progress_state.interrupt_pending:
                    raise_interrupt()
        self._readers[half] = key, readers
        return np.frombuffer(self._mine[half], dtype, count)

    def forget(self, key: int) -> None:
        if self._readers[key >> 1 & 1][0] == key:
            self._readers[key >> 1 & 1] = 0, []


@cache
def _slot_writer(board: Board) -> _SlotWriter:
    return _SlotWriter(board)


class _LeaderExchange:
    """A collective in which a leader takes part for its machine: the call, and the buffers and the request of the all-gather."""

    def __init__(self, n: int):
        size = HEADER_BYTES + MACHINE_BYTES
        self.out, self.into = np.zeros(size, np.uint8), np.empty((n, size), np.uint8)
        self.header, self.headers = self.out[:HEADER_BYTES].view(np.int64), self.into[:, :HEADER_BYTES].view(np.int64)
        self.call: Call | None = None
        self.request: MPI.Request | None = None
        self.inline = self.done = False

    def agrees(self) -> bool:
        """Return whether the ranks of all machines make the same call."""
        signatures = self.headers[:, :RENEWALS_WORD]  # to compare bytes takes a fraction of what comparing arrays takes
        return not self.header[1] and signatures.tobytes() == self.header[:RENEWALS_WORD].tobytes() * len(self.into)


HEADER_BYTES = 64  # of a leader's message: key, number of signatures that follow (0: all are the same), signature, renewals
# Bytes of its inline data: the sum of its machine's arrays, or the arrays themselves, or the signatures (32 bytes each). With more, the
# message would not be eager: it would take longer, and a leader would depend on MPI calls that another makes after its own part.
MACHINE_BYTES = 4096


class MachinesRendezvous(BoardRendezvous):
    """Rendezvous of a group on several machines: on the status board of each, and by an all-gather between their leaders.

    A leader waits until all ranks of its machine have announced the call, and exchanges the call with the other leaders. It sends the sum
    of its machine's arrays, or all of them, along. For the ranks of its machine, it writes the result to its slot, and the verdict to its
    entry in the ring: the key if all ranks agree, the negative key if they differ. Then all signatures are on its page of the next context.

    One all-gather is in flight at a time. A leader that cancelled a collective may have started an all-gather for it; the others find its
    old key in the result when they take part, and every leader whose own key is not there starts another one.

    Parameters
    ----------
    board, members, context
        As for `Rendezvous`; the next context has to be left free.
    comm : MPI.Comm
        A communicator of the group; collective over it.
    """

    MAX_POLLS = 200

    def __init__(self, board: Board, members: tuple[int, ...], context: int, comm: MPI.Comm):
        machines = {board.machines[r]: [] for r in members}
        for place, rank in enumerate(members):
            machines[board.machines[rank]].append(place)
        self._everyone, self._places = members, list(machines.values())
        super().__init__(board, tuple(members[place] for place in machines[board.machines[board.rank]]), context)
        leader = self._members[0]
        self._leads, self._leader_page, self._leader_slots = leader == board.rank, board.page(leader, context), board.slots[leader]
        self._table = board.page(leader, context + 1)[: 1 + 4 * len(members)]
        if not self._leads:
            self._readers = [reader for reader, (rank, _) in zip(self._readers, self._others, strict=True) if rank == leader]
        self._leaders = comm.Split(0 if self._leads else MPI.UNDEFINED, comm.Get_rank())
        self._largest = max(len(places) for places in self._places)
        self._open: dict[int, _LeaderExchange] = {}  # by key, in ascending order
        self._spare: list[_LeaderExchange] = []

    def inlines(self, call: Call) -> bool:
        if call.operation == BARRIER:
            return self.inlines_barrier
        if not TOTAL_STORE_ORDER or call.recv.dtype.num not in SUMMABLE_DTYPES:
            return False
        if call.operation in (ALLGATHER, SPLIT):
            return call.contribution.nbytes * self._largest <= MACHINE_BYTES
        return call.detail % 16 == SUM and call.contribution.nbytes <= MACHINE_BYTES

    def arrive(self, key: int, call: Call, inline: bool, blocking: bool, renewals: int) -> None:
        if self._leads:
            exchange = self._spare.pop() if self._spare else _LeaderExchange(len(self._places))
            exchange.call, exchange.inline, exchange.done = call, inline and call.operation != BARRIER, False
            self._open[key] = exchange
        super().arrive(key, call, inline and not self._leads, blocking, renewals)

    def _advance(self) -> None:
        """Advance the all-gather of the first collective that is not complete; on a leader."""
        for key, exchange in self._open.items():
            if exchange.done:
                continue
            if exchange.request is None:
                # Twice: a rank that is interrupted meanwhile withdraws its announcement before it changes its array.
                if not (super().is_complete(key) and self._pack(key, exchange) and super().is_complete(key)):
                    return
                exchange.request = self._leaders.Iallgather(exchange.out, exchange.into)
            if not exchange.request.Test():
                return
            if not exchange.agrees() and not (exchange.headers[:, 0] == key).all():
                exchange.request = self._leaders.Iallgather(exchange.out, exchange.into)
                return
            self._publish(key, exchange)

    def _pack(self, key: int, exchange: _LeaderExchange) -> bool:
        """Write the message of this machine, and return True."""
        call, body = exchange.call, exchange.out[HEADER_BYTES:]
        different = super().signatures(key)
        signature = (0, 0, 0, 0) if different else call.signature
        _ENTRY_STRUCT.pack_into(exchange.out, 0, key, len(different or ()), *signature, super().renewals(key))
        if different:
            table = [different[rank] for rank in self._members]
            body[: 32 * len(table)].view(np.int64)[...] = np.array(table, np.int64).reshape(-1)
        elif exchange.inline:
            given = call.contribution.reshape(-1)
            arrays = [given, *self.inline_arrays(key, given.dtype, given.size)[1:]]
            if call.operation in (ALLGATHER, SPLIT):
                np.concatenate(arrays, out=body[: given.nbytes * len(arrays)].view(given.dtype))
            else:
                _sum_in_order(arrays, body[: given.nbytes].view(given.dtype))
        return True

    def _publish(self, key: int, exchange: _LeaderExchange) -> None:
        """Write the result and the verdict for the ranks of this machine."""
        entry, agrees = ENTRY_WORDS * (1 + key % RING_ENTRIES), exchange.agrees()
        if not agrees:
            words = self._all_signatures(exchange).reshape(-1).tolist()
            self._table[:] = array("q", [hash((key, *words)), *words])
        elif exchange.inline:
            self._write_result(key, exchange)
        self._page[entry + RENEWALS_WORD] = max(exchange.headers[:, RENEWALS_WORD].tolist())
        self._page[entry + VERDICT_WORD] = key if agrees else -key
        exchange.done = True

    def _write_result(self, key: int, exchange: _LeaderExchange) -> None:
        """Write the sum of the machines' arrays, or all ranks' arrays in the group's order, to this leader's slot."""
        given, bodies = exchange.call.contribution, exchange.into[:, HEADER_BYTES:]
        if exchange.call.operation not in (ALLGATHER, SPLIT):
            total = self._slots.take(key, self._readers, given.dtype, given.size)
            _sum_in_order(bodies[:, : given.nbytes].view(given.dtype), total)
            return
        result = self._slots.take(key, self._readers, given.dtype, len(self._everyone) * given.size).reshape(-1, given.size)
        for body, places in zip(bodies, self._places, strict=True):
            result[places] = body[: given.nbytes * len(places)].view(given.dtype).reshape(len(places), -1)

    def _all_signatures(self, exchange: _LeaderExchange) -> np.ndarray:
        """Return the signatures of all ranks in the group's order."""
        found = np.empty((len(self._everyone), 4), np.int64)
        for header, message, places in zip(exchange.headers, exchange.into, self._places, strict=True):
            table = message[HEADER_BYTES : HEADER_BYTES + 32 * int(header[1])].view(np.int64).reshape(-1, 4)
            found[places] = table if len(table) else header[2:RENEWALS_WORD]
        return found

    def is_complete(self, key: int) -> bool:
        if self._leads:
            self._advance()
        return abs(self._leader_page[ENTRY_WORDS * (1 + key % RING_ENTRIES) + VERDICT_WORD]) == key

    def spin_until_agreed(self, key: int, polls: range) -> bool:
        page, entry = self._leader_page, ENTRY_WORDS * (1 + key % RING_ENTRIES) + VERDICT_WORD
        for _ in range(self.MAX_POLLS):
            if self._leads:
                self._advance()
            if page[entry] == key:
                return True
            if page[entry] == -key or progress_state.interrupt_pending:
                break
            sched_yield()
        return False

    def _verdict(self, key: int) -> int:
        return self._leader_page[ENTRY_WORDS * (1 + key % RING_ENTRIES) + VERDICT_WORD]

    def signatures(self, key: int) -> dict[int, Signature] | None:
        if self._verdict(key) == key:
            return None
        deadline = time.monotonic() + VISIBILITY_SECONDS
        while True:
            check, *words = self._table.tolist()
            if check == hash((key, *words)) or time.monotonic() > deadline:  # later: a nonblocking collective, and another one failed since
                return {rank: tuple(words[4 * i : 4 * i + 4]) for i, rank in enumerate(self._everyone)}

    def renewals(self, key: int) -> int:
        return self._leader_page[ENTRY_WORDS * (1 + key % RING_ENTRIES) + RENEWALS_WORD]

    def combine(self, key: int, call: Call, place: int) -> None:
        if call.operation != BARRIER:
            recv = call.recv
            start = sum(call.counts[:place]) if call.operation == REDUCE_SCATTER else 0
            recv.reshape(-1)[...] = np.frombuffer(self._leader_slots[key >> 1 & 1], recv.dtype, recv.size, start * recv.itemsize)

    def leave(self, key: int) -> None:
        super().leave(key)
        if exchange := self._open.pop(key, None):
            exchange.call = exchange.request = None
            self._spare.append(exchange)

    def cancel(self, key: int) -> None:
        if (exchange := self._open.pop(key, None)) and not exchange.done:
            progress_state.abandoned.append((progress_state.epoch, exchange))  # MPI may still write to its buffers
        super().cancel(key)

    def missing(self, key: int) -> list[int]:
        return [r for r in self._everyone if self.board.page(r, self._context)[ARRIVED_KEY] < key]


def _sum_in_order(arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Add flat arrays from the first to the last, so that all ranks get the same result to the last bit."""
    first, *more = arrays
    if not more:
        out[...] = first
        return
    np.add(first, more[0], out)
    for term in more[1:]:
        np.add(out, term, out)

"""How the ranks of a group meet before a collective, and how they wait for its end.

Nothing here blocks for ever. Before a collective, every rank of the group puts its call on the
status board; the collective itself runs in MPI's non-blocking form. Each wait can be
interrupted, and ends with a sentence when a rank of the group can no longer come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib import traffic
from course_lib.collectives import apart, explain, mailbox, pending, relayed, starts
from course_lib.collectives import board as status
from course_lib.collectives import calls as known
from course_lib.collectives.base import of_ranks
from course_lib.collectives.begins import Begins
from course_lib.collectives.board import COMPUTING, KEY, SIGNATURE, STATE, WAITING, Board, open_board
from course_lib.collectives.errors import DeadlockError, MismatchError
from course_lib.collectives.knocks import Knocks
from course_lib.collectives.pending import LIMIT, PATIENCE, SPINS, now, someone_left
from course_lib.collectives.relayed import RelayedGroup
from course_lib.collectives.slots import IN_ORDER, SharedExchange, sched_yield
from course_lib.collectives.watch import Watch
from course_lib.interrupts import interrupts_wait


def group(members: tuple[int, ...], on_board: bool = True, limit: float = LIMIT) -> Group | RelayedGroup:
    """The one group with these world ranks in this order, and, where there is no board, this limit; the first call is collective."""
    if apart.line:
        return relayed.group(members)
    board = open_board() if on_board else None
    return _group(members, board, LIMIT if board else limit)


class Group(Begins):
    """Some ranks that call collectives together.

    Parameters
    ----------
    members : tuple of int
        World ranks, in the group's order.
    board : Board or None
        Without one, waits end after `limit` seconds.
    """

    def __init__(self, members: tuple[int, ...], board: Board | None, limit: float = LIMIT):
        self.members, self.board = members, board
        self.mask = status.mask(members) if board else 0
        self.limit, self._hash = limit, hash(members) & 0xFFFFFF
        self._round, self._key, self._call, self._signature, self._epoch = -1, 0, None, 0, now.epoch
        self.counts, self.unstarted = traffic.counters(members), []
        # Yielding after each look costs a little; do it at once only where ranks share cores.
        spare_cores = len(members) <= (os.cpu_count() or 1)
        self._first_turn, self._eager_tests = (-100, 400) if spare_cores else (0, 1)
        if board:
            mailbox.open_box(board)
            me = status.SEEN + board.rank
            others = [r for r in members if r != board.rank]
            self._others = [board.rows[r] for r in others]
            self._seen_me = [(board.rows[r], me) for r in others]
            self._seen = [status.SEEN + r for r in others]
        near = not board or board.near(members)
        self._knocks = None if near else Knocks(board, members)
        self._make()
        self.shared = SharedExchange(board, members) if board and near else None

    def _make(self) -> None:
        """Have MPI make the communicator: nothing ends that call, so all must be here, and stay."""
        self._hash, usual = hash((-1, *self.members)) & 0xFFFFFF, self._hash
        if self.board:
            self.meet(known.SPLIT, -1, 0, 0)
        with interrupts_wait():
            if self.board:  # whoever was interrupted before this line does not come
                self.meet(known.SPLIT, -1, 0, 0)
            self._clean = of_ranks(self.members)
            self.mpi = self._clean.Dup()
            if self._knocks:
                self._knocks.open(self._clean.Dup())
        self._hash, self._round = usual, -1

    def __str__(self) -> str:
        return explain.group_name(self.members, MPI.COMM_WORLD.Get_size())

    def meet(self, operation: int, dtype: int, count: int, detail: int, shown: np.ndarray | None = None) -> None:
        """Wait until every rank of the group makes this same call; each puts the array that it has `shown` into shared memory before.

        Raises
        ------
        DeadlockError
            A rank of the group can no longer come.
        MismatchError
            All came, but their operation, dtype, count or detail differ.
        """
        board = self.board
        if board is None:
            return self._meet_by_message(operation, dtype, count, detail)
        key = self.next_key()
        mine, call = board.mine, (operation, dtype, count, detail)
        if call != self._call or board.last is not self:
            board.last, self._call, self._signature = self, call, hash(call)
            mine[status.MEMBERS] = self.mask
            mine[status.OPERATION] = operation
            mine[status.DTYPE] = dtype
            mine[status.COUNT] = count
            mine[status.DETAIL] = detail
            mine[SIGNATURE] = self._signature
        if not IN_ORDER:  # a row's key may be seen before its signature: an earlier call's must not fit
            mine[SIGNATURE] = self._signature = hash((call, key))
        if shown is not None:
            self.shared.put(key, shown)
        mine[KEY] = key
        try:
            matched = self._all_come(key)
        except BaseException:
            if self._knocks:
                self._knocks.withdraw(key)
            raise
        word, said = (key, "") if matched else (-key, self.different(key))
        for place in self._seen:
            mine[place] = word
        if not matched:
            self._all_know(key)
            raise MismatchError(said)
        self.fresh()
        if self.unstarted:
            starts.begin_all(self)

    def _all_come(self, key: int) -> bool:
        """Wait until all have come to the call with this key; whether they make the same call."""
        if knocks := self._knocks:
            knocks.come(key)
        turns, since = self._first_turn, 0.0
        while True:
            for row in self._others:
                if row[KEY] != key:
                    break
            else:
                for row in self._others:
                    if row[SIGNATURE] != self._signature:
                        return self._same(key)
                return True
            if knocks and knocks.all_here(key, self._signature):
                return True
            turns += 1
            if turns < 0:
                continue
            for row, me in self._seen_me:
                if abs(row[me]) == key:
                    return row[me] == key
            if turns % 64 == 0:  # turns are long where many ranks share a core
                since = since or time.monotonic()
                if turns >= SPINS or time.monotonic() - since > PATIENCE:
                    self._wait_long(key)
                    continue
            sched_yield()

    def next_key(self) -> int:
        """The key of the next call: the same on all ranks of the group, and of no other call: cell, group, number."""
        if self._round != self.board.round:
            self._round = self.board.round
            self._key = (self._round & 0xFFF) << 50 | self._hash << explain.NUMBER_BITS
        self._key += 1
        return self._key

    def exchange(self, call: tuple[int, int, int, int], send: np.ndarray, read: Callable, *where: object) -> None:
        """A collective in shared memory, the meeting included; see `slots`."""
        before = self._key
        try:
            self.meet(*call, send)
            read(self._key, *where)
        except BaseException:
            if self._key != before:
                self.shared.withdraw(self._key)
            raise
        finally:
            self.shared.leave(self._key)

    def count(self, operation: str, payload: int) -> None:
        """Add a call to this rank's traffic."""
        entry = self.counts[operation]
        entry[0] += 1
        entry[1] += payload

    def _same(self, key: int) -> bool:
        """Whether all ranks made this call; one that has gone on to its next call left word of how it saw this one."""
        for row, me in self._seen_me:
            if row[SIGNATURE] != self._signature and abs(row[me]) != key:
                time.sleep(0.001)  # on some processors, another rank's words may arrive late
            if abs(row[me]) == key:
                return row[me] == key
            if row[SIGNATURE] != self._signature:
                return False
        return True

    def _wait_long(self, key: int) -> None:
        """The patient half of `meet`: pause, and look whether this rank waits for nobody."""
        board, watch, pause = self.board, Watch(self.board), 5e-5
        board.say(explain.where())
        board.mine[STATE] = WAITING
        if self._knocks:
            board.hosts.poke()  # some processors show a word late, and then none was the last
        while True:
            watch.listen()
            here = all(row[KEY] == key for row in self._others) or (self._knocks and self._knocks.all_here(key, self._signature))
            if here or any(abs(row[me]) == key for row, me in self._seen_me):
                board.mine[STATE] = COMPUTING
                return
            if any(board.notices.found(r, key) for r in self.members if r != board.rank):
                raise MismatchError(self.different(key))  # there it has another call
            pause = 5e-5 if now.attend() else pause  # who sends to this rank waits for that, or finds that it does not receive
            board.mine[STATE] = WAITING  # also after a message was read
            if said := watch.nobody_comes():
                raise DeadlockError(said)
            if now.open and pending.go_on():
                sched_yield()
            else:
                time.sleep(pause)
                pause = min(pause * 1.5, 2e-3)

    def different(self, key: int) -> str:
        """What is said where the ranks make different calls with this key."""
        return explain.different(self.board, self.members, key)

    def _all_know(self, key: int) -> None:
        """Wait until all have found that their calls differ: a rank that goes on shows another call."""
        if self._knocks:
            self.board.hosts.poke()
        deadline = time.monotonic() + explain.ALL_SAID
        while time.monotonic() < deadline and not all(abs(row[me]) == key for row, me in self._seen_me):
            time.sleep(1e-3)  # those that have not found it yet need the cores

    def _meet_by_message(self, *call: int) -> None:
        """Meet without a board: exchange the calls over MPI, with a plain time limit."""
        mine, all_calls = np.array(call, np.int64), np.empty((len(self.members), 4), np.int64)
        self.fresh()
        request = self.mpi.Iallgather(mine, all_calls)
        self.finish(request, call[0])
        calls: dict[str, list[int]] = {}
        for r, other in zip(self.members, all_calls.tolist(), strict=True):
            calls.setdefault(explain.describe(*other), []).append(r)
        if len(calls) > 1:
            raise MismatchError(explain.mismatch(calls, str(self)))

    def fresh(self) -> None:
        """After a transfer was abandoned: a new MPI communicator, from one never used otherwise."""
        if self._epoch != now.epoch:
            self.mpi, request = self._clean.Idup()
            self._epoch = now.epoch
            self.finish(request, 0)

    def finish(self, request: MPI.Request, operation: int) -> None:
        """Wait for a posted transfer (the request keeps its buffers alive).

        Raises
        ------
        DeadlockError
            A rank left in the middle of it (it was interrupted, or its process died).
        """
        test, left = request.Test, self._eager_tests
        try:
            while not test():
                left -= 1
                if left < 0:
                    self._finish_slowly(test, operation)
                    return
        except BaseException:
            now.left_behind.append((now.epoch, request))
            raise

    def _finish_slowly(self, test: Callable[[], bool], operation: int) -> None:
        turns, deadline = 0, None
        while not test():
            sched_yield()
            turns += 1
            if now.open:
                pending.go_on()
            if turns % SPINS == 0:
                seconds = someone_left(self.board, self.members) if self.board else self.limit
                deadline = (deadline or time.monotonic() + seconds) if seconds else None
                if deadline and time.monotonic() > deadline:
                    raise DeadlockError(self._too_late(operation))

    def _too_late(self, operation: int) -> str:
        name, me = known.OPERATIONS[operation] or "the renewal", self.members[self.mpi.Get_rank()]
        what = f"{name} on {self}"
        return explain.left_alone(me, what) if self.board else explain.too_late(me, what, self.limit)


_group = cache(Group)

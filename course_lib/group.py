"""How the ranks of a group meet before a collective, and how they wait for its end.

Nothing here blocks for ever. Before a collective, every rank of the group puts its call on the
status board; the collective itself runs in MPI's non-blocking form. Each wait can be
interrupted, and ends with a sentence when a rank of the group can no longer come.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib import board as status
from course_lib import traffic, wording
from course_lib.board import COMPUTING, KEY, SIGNATURE, STATE, WAITING, Board, open_board

NUMBER_BITS = 26
SPINS = 2000  # turns without a pause; a long wait then leaves the core to ranks that compute
SURE = 0.25  # seconds that a deadlock must be seen unchanged
LEFT = 2.0  # seconds for a transfer to end after one of its ranks has left
OPERATIONS = ["", "Allreduce", "Allgather", "Reduce_scatter", "Split", "Barrier"]

DTYPES = {np.dtype(c).num: np.dtype(c).name for c in "?bBhHiIlLqQefdgFDG"}
REDUCTIONS = ["", "SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "your own"]

sched_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class CollectiveError(RuntimeError):
    """A collective could not be carried out; the message names the ranks and the usual cause."""


class DeadlockError(CollectiveError):
    """A rank waits for another one that can no longer come."""


class MismatchError(CollectiveError):
    """The ranks of a group make different calls."""


_epoch = 0
_left_behind: list = []  # abandoned requests; MPI may still write to their buffers


def renew(epoch: int) -> None:
    """Make every group take a fresh MPI communicator at its next call, when `epoch` is new."""
    global _epoch
    _epoch = epoch


def abandoned() -> bool:
    """Whether a transfer was abandoned since the last `renew`: then MPI's channels need it."""
    return any(epoch == _epoch for epoch, _ in _left_behind)


@cache
def base() -> MPI.Comm:
    """A duplicate of the world that nobody else uses; the first call is collective."""
    return MPI.COMM_WORLD.Dup()


@cache
def group(members: tuple[int, ...], on_board: bool = True) -> Group:
    """The one group with these world ranks in this order; the first call is collective."""
    return Group(members, open_board() if on_board else None)


class Group:
    """Some ranks, in order, that call collectives together.

    Parameters
    ----------
    members : tuple of int
        World ranks; the position is the rank within the group.
    board : Board or None
        None: waits end after `limit` seconds instead.
    """

    def __init__(self, members: tuple[int, ...], board: Board | None):
        self.members, self.board = members, board
        self.mask = sum(1 << r for r in members) if board else 0
        self.limit = 60.0
        self._hash = hash(members) & 0xFFFFFF
        self._round, self._key = -1, 0
        self._clean = base().Create_group(base().Get_group().Incl(members))
        self._epoch, self.mpi = _epoch, self._clean.Dup()
        self.counts = traffic.counters(members)
        # Yielding after each look costs a little; do it at once only where ranks share cores.
        spare_cores = len(members) <= (os.cpu_count() or 1)
        self._first_turn, self._eager_tests = (-100, 400) if spare_cores else (0, 1)
        if board:
            me = status.SEEN + board.rank
            others = [r for r in members if r != board.rank]
            self._others = [board.rows[r] for r in others]
            self._seen_me = [(board.rows[r], me) for r in others]
            self._seen = [status.SEEN + r for r in others]

    def __str__(self) -> str:
        return group_name(self.members)

    def meet(self, operation: int, dtype: int, count: int, detail: int) -> None:
        """Wait until every rank of the group makes this same call.

        Raises
        ------
        DeadlockError
            A rank of the group can no longer come.
        MismatchError
            All came, but their operation, dtype, count or detail differ.
        """
        board = self.board
        if board is None:
            self._meet_by_message(operation, dtype, count, detail)
            return
        if self._round != board.round:
            self._round = board.round
            # The same on all ranks of the group, and of no other call: cell, group, number.
            self._key = (self._round & 0xFFF) << 50 | self._hash << NUMBER_BITS
        self._key = key = self._key + 1
        mine = board.mine
        signature = hash((operation, dtype, count, detail))
        if board.last is not self or mine[SIGNATURE] != signature:
            board.last = self
            mine[status.MEMBERS] = self.mask
            mine[status.OPERATION] = operation
            mine[status.DTYPE] = dtype
            mine[status.COUNT] = count
            mine[status.DETAIL] = detail
            mine[SIGNATURE] = signature
        mine[STATE] = WAITING
        mine[KEY] = key
        matched, turns = None, self._first_turn
        while matched is None:
            for row in self._others:
                if row[KEY] != key:
                    break
            else:
                matched = self._same(signature)
                break
            turns += 1
            if turns < 0:
                continue
            for row, me in self._seen_me:
                if abs(row[me]) == key:
                    matched = row[me] == key
            if turns == SPINS:
                self._wait_long(key)
            else:
                sched_yield()
        word = key if matched else -key
        for place in self._seen:
            mine[place] = word
        if not matched:
            self._raise_mismatch(key)
        mine[STATE] = COMPUTING
        if self._epoch != _epoch:
            self._fresh()

    def _same(self, signature: int) -> bool:
        for row in self._others:
            if row[SIGNATURE] != signature:
                time.sleep(0.001)  # on some processors, another rank's words may arrive late
                if row[SIGNATURE] != signature:
                    return False
        return True

    def _wait_long(self, key: int) -> None:
        """The patient half of `meet`: pause, and look whether this rank waits for nobody."""
        board, before, since = self.board, None, 0.0
        board.say(where())
        pause, others = 5e-5, [r for r in self.members if r != board.rank]
        while True:
            if all(row[status.KEY] == key for row in self._others):
                return
            if any(abs(row[me]) == key for row, me in self._seen_me):
                return
            rows = board.snapshot()
            stuck = board.stuck(rows)
            picture = [(r.rank, r.state, r.key) for r in rows if self.mask >> r.rank & 1] if stuck else None
            if not any(r.rank == board.rank for r in stuck) or picture != before:
                before, since = picture, time.monotonic()
            elif time.monotonic() - since > SURE:
                board.mine[status.STATE] = status.GAVE_UP
                time.sleep(SURE)  # let the others see the same picture
                raise DeadlockError(_explain(board, others))
            time.sleep(pause)
            pause = min(pause * 1.5, 2e-3)

    def _raise_mismatch(self, key: int) -> None:
        calls: dict[str, list[int]] = {}
        for r in self.members:
            row = self.board.rows[r]
            if row[status.KEY] == key:
                call = describe(*(row[i] for i in (status.OPERATION, status.DTYPE, status.COUNT, status.DETAIL)))
                calls.setdefault(call, []).append(r)
        raise MismatchError(_mismatch(calls, self))

    def _meet_by_message(self, *call: int) -> None:
        """Meet without a board: exchange the calls over MPI, with a plain time limit."""
        mine, all_calls = np.array(call, np.int64), np.empty((len(self.members), 4), np.int64)
        self._fresh()
        request = self.mpi.Iallgather(mine, all_calls)
        self.finish(request, call[0])
        calls: dict[str, list[int]] = {}
        for r, other in zip(self.members, all_calls.tolist()):
            calls.setdefault(describe(*other), []).append(r)
        if len(calls) > 1:
            raise MismatchError(_mismatch(calls, self))

    def _fresh(self) -> None:
        """After a transfer was abandoned: a new MPI communicator, from one never used otherwise."""
        if self._epoch != _epoch:
            self.mpi, request = self._clean.Idup()
            self._epoch = _epoch
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
            _left_behind.append((_epoch, request))
            raise

    def _finish_slowly(self, test: Callable[[], bool], operation: int) -> None:
        turns, deadline = 0, None
        while not test():
            sched_yield()
            turns += 1
            if turns % SPINS == 0:
                now = time.monotonic()
                if self.board is None:
                    deadline = deadline or now + self.limit
                elif self._someone_left():
                    deadline = deadline or now + LEFT
                if deadline and now > deadline:
                    raise DeadlockError(self._too_late(operation))

    def _someone_left(self) -> bool:
        rows = self.board.rows
        now = rows[self.board.rank][status.ROUND]
        left = (status.FINISHED, status.RAISED, status.GONE, status.GAVE_UP)
        return any(rows[r][status.STATE] in left and rows[r][status.ROUND] >= now for r in self.members)

    def _too_late(self, operation: int) -> str:
        name = OPERATIONS[operation] or "the renewal"
        me = self.members[self.mpi.Get_rank()]
        if self.board:
            return f"rank {me} was left alone in the middle of {name} on {self}: another rank was interrupted."
        return (
            f"rank {me} waited {self.limit:g} s in {name} on {self} ({where()}), and not all ranks of the group came. "
            "Every rank of the group must make the same call: look for an if on the rank around it. "
            "(These ranks share no status board, so what the others do is not known.)"
        )


def group_name(members: tuple[int, ...]) -> str:
    """A group as messages name it: world{0–7}, group{2, 3}."""
    name = "world" if len(members) == MPI.COMM_WORLD.Get_size() else "group"
    return f"{name}{{{wording.spans(members)}}}"


def where() -> str:
    """The place in the student's code that called a collective, such as "cell [5], line 7"."""
    frame = sys._getframe(1)
    home = os.path.dirname(__file__)
    while frame.f_back and os.path.dirname(frame.f_code.co_filename) == home:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"


def describe(operation: int, dtype: int, count: int, detail: int) -> str:
    """A call in words, such as "Allreduce of 6 float32 (op SUM)"."""
    name = OPERATIONS[operation]
    if dtype < 0:
        return name
    reduction = f" (op {REDUCTIONS[detail % 16]})" if detail else ""
    return f"{name} of {count} {DTYPES.get(dtype, 'numbers')}{reduction}"


def _mismatch(calls: dict[str, list[int]], where_: Group) -> str:
    ordered = sorted(calls.items(), key=lambda item: (-len(item[1]), item[1]))
    said = "; ".join(f"{wording.ranks(who)}: {what}" for what, who in ordered)
    names = {what.split(" ")[0] for what in calls}
    if len(names) > 1:
        hint = "All ranks of a group must call the same collective: look for an if on the rank."
    elif len({what.split(" ")[2] for what in calls if " of " in what}) > 1:
        hint = "The count must be the same on all ranks: look at the shape of the array on each rank, and at its divisor."
    elif len({what.split(" ")[3] for what in calls if " of " in what}) > 1:
        hint = "The dtype must be the same on all ranks: np.empty and np.zeros make float64 unless dtype= is given."
    else:
        hint = "All ranks must pass the same op."
    return f"the ranks of {where_} make different calls. {said}. {hint}"


def _explain(board: Board, others: list[int]) -> str:
    """Who waits where, and why nobody comes; the same words on every stuck rank."""
    rows = board.snapshot()
    waits: dict[str, list[int]] = {}
    reasons: dict[str, list[int]] = {}
    for row in rows:
        if row.state in (status.WAITING, status.GAVE_UP) and row.round == board.round:
            members = tuple(r for r in range(board.size) if row.members >> r & 1)
            place = board.text(row.rank)
            call = f"{OPERATIONS[row.operation]} #{row.key % (1 << NUMBER_BITS)} on {group_name(members)}" + (
                f" ({place})" if place else ""
            )
            waits.setdefault(call, []).append(row.rank)
        elif row.round < board.round:
            reasons.setdefault("was not asked to run this cell", []).append(row.rank)
        elif row.state == status.FINISHED:
            reasons.setdefault("has finished the cell without it", []).append(row.rank)
        elif row.state == status.RAISED:
            reasons.setdefault(f"has raised {board.text(row.rank) or 'an error'}", []).append(row.rank)
        elif row.state == status.GONE:
            reasons.setdefault("has ended", []).append(row.rank)
    parts = [f"{wording.ranks(w)} wait{'s' if len(w) == 1 else ''} in {c}" for c, w in waits.items()]
    for reason, who in reasons.items():
        if len(who) > 1:
            reason = reason.replace("has ", "have ", 1).replace("was ", "were ", 1)
        parts.append(f"{wording.ranks(who)} {reason}")
    if any(reason.startswith("has raised") for reason in reasons):
        hint = "Mend that error first."
    elif len(waits) > 1:
        hint = "They wait for each other: all ranks of a group must make the same calls in the same order."
    else:
        hint = "Every rank of the group must make the call, the same number of times: look for an if on the rank, or a loop of another length, around it."
    return "; ".join(parts) + ". " + hint

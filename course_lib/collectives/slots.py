"""Small exchanges in memory that all ranks of a machine see: one meeting, and no message.

An all-reduce by messages is a meeting, on the board, and then a transfer, in which the ranks wait for each other once more. Here
each rank puts its array into a slot of its own before the meeting; when all have come, each reads what it needs from the slots: all
for an all-gather, the sum for an all-reduce, its part of the sum for a reduce-scatter. Sums go in the order of the ranks, so that all
get the same to the last bit.

A rank has two slots, for calls with even and odd numbers. It writes to one again when nobody reads it any more: those who were to
read it have left that call, as they say on the board, or have gone on to another one, as their row shows.
"""

from __future__ import annotations

import os
import time
from functools import cache

import numpy as np

from course_lib.collectives.board import FILLED, KEY, SLOT, Board
from course_lib.collectives.notices import IN_ORDER

MOST = 1 << 20  # bytes that a rank reads at most; where it would be more, parts that travel in a ring are faster
sched_yield = getattr(os, "sched_yield", lambda: time.sleep(0))
_NUMBERS = frozenset(np.dtype(c).num for c in "bBhHiIlLqQfdgFDG")


class Slots:
    """The slots of this process: what it has put there, and who has yet to read it.

    Parameters
    ----------
    board : Board
    """

    def __init__(self, board: Board):
        self.board = board
        self._count = 0
        self._readers: list[tuple[int, int, list[memoryview]]] = [(0, 0, []), (0, 0, [])]  # of each slot: number, call, their rows

    def free(self, half: int) -> None:
        """Wait until nobody reads this slot any more."""
        number, key, rows = self._readers[half]
        mine, turns = self.board.left + self.board.rank, 0
        for row in rows:
            while row[mine] < number and row[KEY] == key:  # in that call, and reading
                turns += 1
                sched_yield() if turns < 2000 else time.sleep(1e-4)
        self.forget(half)

    def forget(self, half: int) -> None:
        """Nobody is to read this slot."""
        self._readers[half] = (0, 0, [])

    def filled(self, half: int, key: int, rows: list[memoryview]) -> None:
        """Say that an array is there, for these ranks in this call."""
        self._count += 1
        self.board.mine[FILLED + half] = self._count
        self._readers[half] = self._count, key, rows


@cache
def _slots_of(board: Board) -> Slots:
    return Slots(board)


class SharedExchange:
    """Sums and gathers of one group.

    Parameters
    ----------
    board : Board
    members : tuple of int
        World ranks, in the group's order.
    """

    def __init__(self, board: Board, members: tuple[int, ...]):
        self._slots = _slots_of(board)
        self._mine, self._members = board.mine, members
        self._others = [(board.rows[r], board.left + r) for r in members if r != board.rank]
        self._rows = [row for row, _ in self._others]
        self._me = members.index(board.rank)
        self._slot, self._most = (SLOT, MOST) if IN_ORDER and len(members) > 1 else (-1, -1)  # -1: not even an empty array
        self._halves = [[board.slots[r][h * SLOT : (h + 1) * SLOT] for r in members] for h in (0, 1)]

    def suits(self, send: np.ndarray, read: int) -> bool:
        """Whether such arrays, of which a rank reads so many bytes, go this way: the same answer on all ranks that make the same call."""
        return send.nbytes <= self._slot and read <= self._most and send.dtype.num in _NUMBERS

    def put(self, key: int, array: np.ndarray) -> None:
        """Put this rank's array into its slot, for the call with this key."""
        half = key & 1
        self._slots.free(half)
        np.frombuffer(self._halves[half][self._me], array.dtype, array.size)[...] = array.reshape(-1)
        self._slots.filled(half, key, self._rows)

    def add_up(self, key: int, out: np.ndarray, start: int = 0) -> None:
        """The sum of what all have put there, from element `start` on, as far as `out` has room."""
        first, second, *more = self._views(key, out.dtype, out.size, start)
        flat = out.reshape(-1)
        np.add(first, second, flat)
        for view in more:
            np.add(flat, view, flat)

    def collect(self, key: int, out: np.ndarray) -> None:
        """What all have put there, one after the other."""
        count = out.size // len(self._members)
        np.concatenate(self._views(key, out.dtype, count), out=out.reshape(-1))

    def _views(self, key: int, dtype: np.dtype, count: int, start: int = 0) -> list[np.ndarray]:
        # Made anew for each call: nothing that a rank keeps is to count as an array of the student's.
        return [np.frombuffer(slot, dtype, count, start * dtype.itemsize) for slot in self._halves[key & 1]]

    def withdraw(self, key: int) -> None:
        """The call has failed here: who has not come will not read this rank's array."""
        self._slots.forget(key & 1)

    def leave(self, key: int) -> None:
        """Say that this rank reads no more."""
        for row, place in self._others:
            self._mine[place] = row[FILLED + (key & 1)]

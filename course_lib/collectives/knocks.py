"""Word between machines that all ranks of a group there have come to a call, by messages of MPI.

The mirrors (see `hosts`) show that, too, with all that a rank does. But they are processes of their own, to be woken on cores that the
ranks may need. So the first rank of a group on each machine sends the first ones on the others a knock. One that is lost, or late, or that
nobody sends as the ranks make different calls, does no harm: what the mirrors show comes, and says who does what.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib.collectives import board as status
from course_lib.collectives.board import KEY, SIGNATURE, STATE, WAITING, Board


class Knocks:
    """Those of one group.

    Parameters
    ----------
    board : Board
        With hosts.
    members : tuple of int
        World ranks on several machines, in the group's order.
    """

    def __init__(self, board: Board, members: tuple[int, ...]):
        self._board, self._members, self._sent = board, members, ()
        self._beside = [board.rows[r] for r in members if r != board.rank and board.near((r,))]
        self._firsts = {board.hosts.of[r]: r for r in reversed(members)}  # of each machine
        self._first, self._open, self._leads = self._firsts[board.hosts.mine], False, False
        self._me = status.SEEN + board.rank

    def open(self, comm: MPI.Comm) -> None:
        """Have a communicator of the group, for this alone; until then, the mirrors are woken."""
        self._leads = self._first == self._board.rank
        others = [self._members.index(r) for r in self._firsts.values() if self._leads and r != self._first]
        # Persistent requests: an interrupt between any two lines finds and leaves them whole.
        words = [(np.zeros(3, np.int64), np.zeros(3, np.int64)) for _ in others]
        self._out = [(comm.Send_init(out, other), out) for (out, _), other in zip(words, others, strict=True)]
        self._in = [(comm.Recv_init(came, other), came) for (_, came), other in zip(words, others, strict=True)]
        self._heard: list[tuple[int, ...]] = [()] * len(others)
        for request, _ in self._in:
            request.Start()
        self._open = True

    def come(self, key: int) -> None:
        """This rank has come; if it is the last one on its machine, and the one that would knock is not looking, wake the mirror."""
        looking = self._open and self._board.rows[self._first][STATE] != WAITING
        if not looking and all(row[KEY] == key or abs(row[self._me]) == key for row in self._beside):
            self._board.hosts.poke()  # who has come to no avail is shown at the next beat

    def agree(self, key: int, signature: int) -> bool:
        """Whether all ranks of the group have come to the call with this key and make the same one, as far as this rank hears of it.

        Knocks, once all on this machine have.
        """
        if not self._leads:
            return False
        call = (self._board.round, key, signature)
        if self._sent != call:
            if any(row[KEY] != key or row[SIGNATURE] != signature for row in self._beside):
                return False
            for request, word in self._out:
                if request.Test():  # else the last one is still on its way: nobody takes it
                    word[:] = call
                    request.Start()
            self._sent = call
        for i, (request, word) in enumerate(self._in):
            while request.Test():
                self._heard[i] = tuple(word.tolist())
                request.Start()
        return all(heard == call for heard in self._heard)

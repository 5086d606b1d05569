"""Word between machines that all ranks of a group there have come to a call, by messages of MPI.

The mirrors (see `hosts`) show that, too, with all that a rank does. But they are processes of their own, to be woken on cores that the
ranks may need. So the first rank of a group on each machine sends the first ones on the others a knock. Where one is lost, or not sent as
the ranks make different calls, what the mirrors show comes, and says who does what.

A knock may come before what the mirrors show of the time before it: before the start of a collective that does not block, see `meeting`.
"""

from __future__ import annotations

import atexit
from collections import deque

import numpy as np
from mpi4py import MPI

from course_lib.collectives import board as status
from course_lib.collectives.board import KEY, SIGNATURE, STATE, WAITING, Board

Call = tuple[int, int, int]  # round, key (negative: nobody is there any more) and signature
KEPT = 4  # knocks of a machine: it may be one call ahead


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
        self._board, self._members, self._me = board, members, status.SEEN + board.rank
        self._beside = [board.rows[r] for r in members if r != board.rank and board.near((r,))]
        self._firsts = {board.hosts.of[r]: r for r in reversed(members)}  # of each machine
        self._first = self._firsts[board.hosts.mine]
        self._open = self._leads = False
        self._sent: Call | None = None
        self._out: list[tuple[MPI.Prequest, np.ndarray]] = []
        self._in: list[tuple[MPI.Prequest, np.ndarray, deque[Call]]] = []

    def open(self, comm: MPI.Comm) -> None:
        """Have a communicator of the group, for this alone; until then, the mirrors are woken."""
        self._open, self._leads = True, self._first == self._board.rank
        for rank in self._firsts.values():
            if self._leads and rank != self._first:
                # Persistent requests: an interrupt between any two lines finds and leaves them whole.
                out, came, other = np.zeros(3, np.int64), np.zeros(3, np.int64), self._members.index(rank)
                self._out.append((comm.Send_init(out, other), out))
                self._in.append((comm.Recv_init(came, other), came, deque(maxlen=KEPT)))
                self._in[-1][0].Start()
        atexit.register(self._close)

    def _close(self) -> None:
        """The process ends: MPI complains of a receive that is left."""
        self._leads = False
        for request, *_ in self._in:
            if not request.Test():
                request.Cancel()
                request.Wait()
            request.Free()

    def come(self, key: int) -> None:
        """This rank has come; if it is the last one on its machine, and the one that would knock is not looking, wake the mirror."""
        looking = self._open and self._board.rows[self._first][STATE] != WAITING
        if not looking and all(row[KEY] == key or abs(row[self._me]) == key for row in self._beside):
            self._board.hosts.poke()  # who has come to no avail is shown at the next beat

    def all_here(self, key: int, signature: int) -> bool:
        """Knock, once all ranks of this machine are in the call with this key; whether all other machines have.

        False on ranks that do not lead, and where calls differ.
        """
        if not self._leads:
            return False
        call = (self._board.round, key, signature)
        if any(row[KEY] != key or row[SIGNATURE] != signature for row in self._beside):
            if any(row[KEY] != key and abs(row[self._me]) != key for row in self._beside):
                self.withdraw(key)  # one has left
            return False
        if self._sent != call and self._send(call):
            self._sent = call
        for request, word, heard in self._in:
            while request.Test():
                round_, key_, signature_ = word.tolist()
                if key_ > 0:
                    heard.append((round_, key_, signature_))
                elif (round_, -key_, signature_) in heard:
                    heard.remove((round_, -key_, signature_))
                request.Start()
        return self._sent == call and all(call in heard for *_, heard in self._in)

    def withdraw(self, key: int) -> None:
        """A rank of this machine has left the call with this key without the others."""
        if self._sent and self._sent[1] == key and self._send((self._sent[0], -key, self._sent[2])):
            self._sent = None

    def _send(self, call: Call) -> bool:
        if not all(request.Test() for request, _ in self._out):  # MPI has yet to take the last one
            return False
        for request, word in self._out:
            word[:] = call
            request.Start()
        return True

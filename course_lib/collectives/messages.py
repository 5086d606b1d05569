"""Messages from one rank to another: `Send`, `Recv`, `Sendrecv` and those that do not block; see `communicator`."""

from __future__ import annotations

import zlib

import numpy as np
from mpi4py import MPI

from course_lib import memory, traffic
from course_lib.collectives import apart, buffers, explain, lanes, mailbox, pending
from course_lib.collectives.calls import LARGEST_TAG
from course_lib.collectives.errors import MismatchError
from course_lib.collectives.nonblocking import Request

ANY_SOURCE, ANY_TAG, PROC_NULL = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.PROC_NULL
MOST_LANES = 256  # that a communicator keeps


class Sent(Request):
    """A message on its way through the relay, which has it at once; MPI may read the array until `Wait`, so it must not have changed."""

    def __init__(self, group: object, step: object, array: np.ndarray):
        super().__init__(group, step)
        self._array, self._sum, self._place = array, _sum_of(array), explain.where()

    def _over(self) -> object:
        step, array, self._array = super()._over(), self._array, None
        if _sum_of(array) != self._sum:
            raise MismatchError(f"the array that this rank began to send by Isend ({self._place}) was changed before its Wait.")
        return step


def _sum_of(array: np.ndarray) -> int:
    return zlib.crc32(memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B"))


class Messages:
    """The part of `Communicator` that sends to one rank, and receives from one."""

    def Send(self, buf: np.ndarray, dest: int, tag: int = 0) -> None:
        """Send an array to one rank; returns when the array may be changed again.

        As in MPI, a small array is on its way at once, and a larger one waits for its receiver.

        Parameters
        ----------
        buf : numpy.ndarray
        dest : int
            A rank of the group.
        tag : int
            A number that the receiver can ask for.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong on this rank.
        DeadlockError
            The receiver can no longer come.
        """
        self._wait(self._sending(buf, dest, tag, "Send"))

    def Recv(self, buf: np.ndarray, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: MPI.Status | None = None) -> None:
        """Wait for an array from one rank.

        Parameters
        ----------
        buf : numpy.ndarray
            Receives it: the same size and dtype as what is sent.
        source : int
            A rank of the group; any by default.
        tag : int
            The number that it was sent with; any by default.
        status : MPI.Status, optional
            Gets the source and the tag.

        Raises
        ------
        TypeError, ValueError
            An argument is wrong on this rank.
        MismatchError
            The message has another size or dtype.
        DeadlockError
            Nobody can send it any more.
        """
        self._wait(self._receiving(buf, source, tag, "Recv"), status)

    def Sendrecv(
        self,
        sendbuf: np.ndarray,
        dest: int,
        sendtag: int = 0,
        recvbuf: np.ndarray | None = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: MPI.Status | None = None,
    ) -> None:
        """Send an array to one rank and receive one from another, or the same, at once: so a ring of ranks does not wait for itself.

        Parameters
        ----------
        sendbuf, recvbuf : numpy.ndarray
            Two arrays that share no memory.
        dest, source : int
            Ranks of the group.
        sendtag, recvtag, status
            As for `Send` and `Recv`.

        Raises
        ------
        TypeError, ValueError, MismatchError, DeadlockError
            As for `Send` and `Recv`.
        """
        if status is None and sendtag == recvtag and type(dest) is int is type(source) and self._ready(sendbuf, recvbuf):
            exchange, group = self._lanes.get((dest, source, sendtag)) or self._lane(dest, source, sendtag), self._group
            left = exchange(sendbuf, recvbuf) if exchange else None
            if left is not None:
                pending.now.used = True
                group.count("Send", sendbuf.nbytes)
                if memory.held is not None:
                    memory.held.exchanged(sendbuf, recvbuf)
                if left:
                    pending.add(left[1])
                    for step in left:
                        group.wait(step)
                return
        if type(sendbuf) is type(recvbuf) is np.ndarray:
            buffers.distinct(sendbuf, recvbuf, "Sendrecv")
        sending = self._sending(sendbuf, dest, sendtag, "Sendrecv")
        receiving = self._receiving(recvbuf, source, recvtag, "Sendrecv")
        if sending:
            pending.add(sending)
        self._wait(receiving, status)
        self._wait(sending)

    def _lane(self, dest: int, source: int, tag: int) -> lanes.Exchange | None:
        """The fast way from and to these ranks; None where there is none, or where an argument is wrong."""
        n = self._size
        if not (self._group.board and 0 <= dest < n and 0 <= source < n and type(tag) is int and 0 <= tag <= LARGEST_TAG):
            return None
        if self._group.board.hosts:  # other machines are to see each notice
            return None
        if len(self._lanes) == MOST_LANES:
            self._lanes.clear()
        self._lanes[dest, source, tag] = found = self._group.lane(self.ranks[dest], self.ranks[source], tag)
        return found

    def Isend(self, buf: np.ndarray, dest: int, tag: int = 0) -> Request:
        """Start to send an array, and go on; it may not be changed before ``Wait()``. Parameters as for `Send`."""
        step = self._sending(buf, dest, tag, "Isend")
        if step and apart.line:
            step.what = f"Wait of {step.what}"
            pending.add(step)
            return Sent(self._group, step, buf)
        return self._started(step)

    def Irecv(self, buf: np.ndarray, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive an array, and go on; it may not be read before ``Wait()``. Parameters as for `Recv`."""
        return self._started(self._receiving(buf, source, tag, "Irecv"))

    def _sending(self, buf: np.ndarray, dest: int, tag: int, where: str) -> mailbox.Sending | None:
        array = self._array(buf, "sendbuf" if where == "Sendrecv" else "buf", where)
        self._is_rank(dest, "dest", where, PROC_NULL)
        _is_tag(tag, "sendtag" if where == "Sendrecv" else "tag", where)
        if dest == PROC_NULL:
            return _with_nobody(f"the dest of {where}")
        group = self._group
        step = group.sending(self.ranks[dest], tag, array, where)
        pending.now.used = True
        group.count("Send", array.nbytes)
        if memory.held is not None:
            memory.held.exchanged(array)
        return step

    def _receiving(self, buf: np.ndarray | None, source: int, tag: int, where: str) -> mailbox.Receiving | None:
        array = self._array(buf, "recvbuf", where)
        self._is_rank(source, "source", where, PROC_NULL, ANY_SOURCE)
        _is_tag(tag, "recvtag" if where == "Sendrecv" else "tag", where, ANY_TAG)
        if source == PROC_NULL:
            return _with_nobody(f"the source of {where}")
        pending.now.used = True
        step = self._group.receiving(self.ranks if source == ANY_SOURCE else (self.ranks[source],), tag, array, where)
        if memory.held is not None:
            memory.held.exchanged(array)
        return step

    def _wait(self, step: mailbox.Sending | mailbox.Receiving | None, status: MPI.Status | None = None) -> None:
        if step:
            self._group.wait(step)
            if status is not None:
                status.source, status.tag = self.ranks.index(step.message.source), step.message.tag

    def _started(self, step: mailbox.Sending | mailbox.Receiving | None) -> Request:
        if step:
            step.what = f"Wait of {step.what}"
            pending.add(step)
        return Request(self._group, step)

    def _is_rank(self, rank: object, name: str, where: str, *also: int) -> None:
        if not isinstance(rank, (int, np.integer)) or isinstance(rank, bool) or not (0 <= rank < self._size or rank in also):
            raise ValueError(f"{where}: {name} must be a rank of the group, 0 to {self._size - 1}; got {buffers.shown(rank)}.")


def _with_nobody(what: str) -> None:
    """Take note of a legal message of which nothing comes: often, it is meant for a neighbour that an end of a line has not."""
    if traffic.to_nobody:
        traffic.to_nobody(what)


def _is_tag(tag: object, name: str, where: str, *also: int) -> None:
    if not isinstance(tag, (int, np.integer)) or isinstance(tag, bool) or not (0 <= tag <= LARGEST_TAG or tag in also):
        raise ValueError(f"{where}: {name} must be a whole number from 0 to {LARGEST_TAG}; got {buffers.shown(tag)}.")

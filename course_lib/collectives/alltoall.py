"""Each rank sends a part of its array to each other rank; see `communicator`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.collectives import buffers
from course_lib.collectives.calls import ALLREDUCE, ALLTOALL, ALLTOALLV
from course_lib.collectives.errors import MismatchError


class AllToAll:
    """The part of `Communicator` in which all ranks send to all."""

    def Alltoall(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> None:
        """Cut each rank's array into one part a rank; rank r gets the parts number r of all, in rank order.

        Parameters
        ----------
        sendbuf, recvbuf : numpy.ndarray
            The same size and dtype on all ranks, n equal parts. With shape ``(n, ...)``, ``sendbuf[r]`` goes to rank r, and ``recvbuf[r]``
            is what rank r sent.

        Raises
        ------
        TypeError, ValueError
            A buffer is wrong on this rank.
        CollectiveError
            The ranks do not make the same call, or not all of them come.
        """
        send, recv = (sendbuf, recvbuf) if self._ready(sendbuf, recvbuf) else self._check(sendbuf, recvbuf, "Alltoall")
        if send is MPI.IN_PLACE:
            raise ValueError("Alltoall: MPI.IN_PLACE is not supported here; send from one array, receive into another.")
        if send.size % self._size:
            raise ValueError(
                f"Alltoall: sendbuf has {send.size} elements (shape {send.shape}), which {self._size} ranks cannot share equally."
            )
        buffers.size(recv, send.size, send, "each rank gets as much as it sends", "Alltoall")
        group = self._group
        group.meet(ALLTOALL, recv.dtype.num, send.size, 0)
        group.finish(group.mpi.Ialltoall(send, recv), ALLTOALL)
        group.count("Alltoall", send.nbytes)
        if memory.held is not None:
            memory.held.exchanged(send, recv)

    def Alltoallv(self, sendbuf: Sequence, recvbuf: Sequence) -> None:
        """The same with parts of any size.

        Parameters
        ----------
        sendbuf : [numpy.ndarray, counts] or [numpy.ndarray, (counts, displacements)]
            How many elements go to each rank, and where in the array they begin; one after the other by default.
        recvbuf : the same
            How many elements come from each rank, and where they go.

        Raises
        ------
        TypeError, ValueError
            A buffer or its counts are wrong on this rank.
        CollectiveError
            The ranks do not make the same call, not all of them come, or what one sends is not what the other expects.
        """
        n = self._size
        send, out, starts = self._cut(sendbuf, "sendbuf")
        recv, into, places = self._cut(recvbuf, "recvbuf")
        buffers.same_dtype(send, recv, "Alltoallv")
        buffers.distinct(send, recv, "Alltoallv")
        group, told, come = self._group, np.array(out, np.int64), np.empty(n, np.int64)
        group.meet(ALLTOALL, told.dtype.num, n, 16 * (recv.dtype.num + 1))  # how much comes, so that no rank gets more than it has room for
        self._host.finish(self._host.mpi.Ialltoall(told, come), ALLTOALL)  # counts are in the host's memory, also beside arrays on GPUs
        wrong = np.array([come.tolist() != into], np.int64)
        anywhere = np.empty_like(wrong)
        group.meet(ALLREDUCE, wrong.dtype.num, 1, 1)
        self._host.finish(self._host.mpi.Iallreduce(wrong, anywhere), ALLREDUCE)
        if anywhere[0]:
            raise MismatchError(self._uneven(come.tolist(), into))
        group.meet(ALLTOALLV, recv.dtype.num, n, 0)
        group.finish(group.mpi.Ialltoallv([send, (out, starts)], [recv, (into, places)]), ALLTOALLV)
        group.count("Alltoallv", (sum(out) - out[self._rank]) * send.itemsize)
        if memory.held is not None:
            memory.held.exchanged(send, recv)

    def _uneven(self, come: list[int], into: list[int]) -> str:
        for r, (sent, expected) in enumerate(zip(come, into, strict=True)):
            if sent != expected:
                return (
                    f"Alltoallv: rank {self.ranks[self._rank]} expects {expected} elements from rank {self.ranks[r]}, which sends {sent}. "
                    "What rank a sends to b must be what b expects from a: exchange the counts with Alltoall first."
                )
        return "Alltoallv: on another rank, what comes is not what is expected; no rank has received anything."

    def _cut(self, value: object, what: str) -> tuple[np.ndarray, list[int], list[int]]:
        """The array, and the counts and displacements of its parts."""
        if not isinstance(value, (list, tuple)) or len(value) < 2:
            raise TypeError(f"Alltoallv: {what} must be [array, counts]; got {buffers.shown(value)}.")
        value = list(value[:-1]) if isinstance(value[-1], MPI.Datatype) else list(value)
        array, counts, *more = value
        if not more and isinstance(counts, (list, tuple)) and len(counts) == 2 and not np.isscalar(counts[0]):
            counts, *more = counts
        array = self._array(array, what, "Alltoallv")
        counts = [int(c) for c in counts]
        starts = [int(s) for s in more[0]] if more else [sum(counts[:i]) for i in range(len(counts))]
        if len(counts) != self._size or len(starts) != self._size or min(*counts, *starts, 0) < 0:
            raise ValueError(f"Alltoallv: {what} needs {self._size} counts, one for each rank, 0 or more; got {counts}.")
        if any(start + count > array.size for start, count in zip(starts, counts, strict=True)):
            needed = max(map(sum, zip(starts, counts, strict=True)))
            raise ValueError(f"Alltoallv: {what} has {array.size} elements, and its counts {counts} need {needed}.")
        return array, counts, starts

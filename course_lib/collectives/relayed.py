"""A group whose collectives go through the relay; it stands in for `meeting.Group` where ranks are kept apart.

The relay sees that all make the same call, does what MPI would do, counts, and finds who waits in vain. Each exchange is over when it
returns: the request of a non-blocking one has nothing left to do.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib import traffic
from course_lib.collectives import apart, errors, explain
from course_lib.collectives.calls import REDUCTIONS

_OWN = len(REDUCTIONS) - 1


class Done:
    """The request of an exchange that is over."""

    def Test(self) -> bool:
        """Whether it has ended."""
        return True


class RelayedGroup:
    """Some ranks, in order, that call collectives together; the methods are those of `meeting.Group` and of its MPI communicator.

    Parameters
    ----------
    members : tuple of int
        World ranks.
    """

    board = shared = None

    def __init__(self, members: tuple[int, ...]):
        self.members, self.mpi, self.limit = members, self, 60.0
        self.counts = traffic.counters(members)
        self._rank, self._call, self._number = members.index(apart.rank), (), 0

    def __str__(self) -> str:
        return explain.group_name(self.members, apart.size)

    def meet(self, *call: int) -> None:
        """Note which call this is: operation, dtype, count and detail."""
        self._call = tuple(map(int, call))  # NumPy's numbers cannot be sent

    def finish(self, request: Done, operation: int) -> None:
        """Nothing is left to wait for."""

    def count(self, operation: str, payload: int) -> None:
        """Add a call to this rank's traffic, as this process sees it."""
        entry = self.counts[operation]
        entry[0] += 1
        entry[1] += payload

    def Ibarrier(self) -> Done:
        """All ranks come."""
        self._exchange(None)
        return Done()

    def Iallreduce(self, send: np.ndarray, recv: np.ndarray, op: MPI.Op = MPI.SUM) -> Done:
        """As MPI's."""
        send = recv if send is MPI.IN_PLACE else send
        self._put(recv, self._reduced(self._exchange(send), send, op))
        return Done()

    def Iallgather(self, send: np.ndarray, recv: np.ndarray) -> Done:
        """As MPI's."""
        if send is MPI.IN_PLACE:
            count = recv.size // len(self.members)
            send = recv.reshape(-1)[self._rank * count : (self._rank + 1) * count]
        self._put(recv, self._exchange(send))
        return Done()

    def Ireduce_scatter(self, send: np.ndarray, recv: np.ndarray, recvcounts: list[int], op: MPI.Op = MPI.SUM) -> Done:
        """As MPI's."""
        data = self._reduced(self._exchange(send, counts=recvcounts), send, op)
        if self._call[3] % 16 == _OWN:
            start = sum(recvcounts[: self._rank])
            data = np.frombuffer(data, send.dtype)[start : start + recv.size].tobytes()
        self._put(recv, data)
        return Done()

    def Ibcast(self, array: np.ndarray, root: int) -> Done:
        """As MPI's."""
        data = self._exchange(array if self._rank == root else None)
        if self._rank != root:
            self._put(array, data)
        return Done()

    def Iscatter(self, send: np.ndarray | None, recv: np.ndarray, root: int) -> Done:
        """As MPI's."""
        self._put(recv, self._exchange(send if self._rank == root else None))
        return Done()

    def Igather(self, send: np.ndarray, recv: np.ndarray | None, root: int) -> Done:
        """As MPI's."""
        data = self._exchange(send)
        if self._rank == root:
            self._put(recv, data)
        return Done()

    def _exchange(self, send: np.ndarray | None, **more: object) -> bytes:
        """One call through the relay: what comes back for this rank."""
        self._number += 1
        number = [hash(self.members), self._number]
        header = {"call": number, "members": self.members, "what": self._call, "place": explain.where(), **more}
        apart.line.send(header, b"" if send is None else memoryview(np.ascontiguousarray(send).reshape(-1)).cast("B"))
        while True:
            answer, data = apart.line.receive()
            if answer.get("answer") != number:
                continue  # of a call that was broken off
            if "error" in answer:
                raise getattr(errors, answer["error"])(answer["message"])
            return data

    def _reduced(self, data: bytes, send: np.ndarray, op: MPI.Op) -> bytes:
        """The relay knows MPI's own operations; for others it sends what all ranks gave."""
        if self._call[3] % 16 != _OWN:
            return data
        parts = np.frombuffer(data, send.dtype).reshape(len(self.members), -1).copy()
        for part in parts[1:]:
            op.Reduce_local(parts[0], part)  # MPI's order: in, and what is both in and out
            parts[0] = part
        return parts[0].tobytes()

    @staticmethod
    def _put(recv: np.ndarray, data: bytes) -> None:
        recv.reshape(-1)[:] = np.frombuffer(data, recv.dtype)


@cache
def group(members: tuple[int, ...]) -> RelayedGroup:
    """The one group with these world ranks in this order."""
    return RelayedGroup(members)

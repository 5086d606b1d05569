"""Collectives that are started now and waited for later; see `communicator`."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.collectives import buffers
from course_lib.collectives.averaging import averaged
from course_lib.collectives.calls import IALLREDUCE, reduction_code
from course_lib.collectives.meeting import Group


class NonBlocking:
    """The part of `Communicator` that does not wait."""

    def Iallreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray, op: MPI.Op = MPI.SUM) -> Request:
        """Start an all-reduce, and go on; parameters as for `Allreduce`.

        All ranks must have come before it starts. Neither array may be touched before ``Wait()``.

        Returns
        -------
        Request
        """
        send, recv = (sendbuf, recvbuf) if self._ready(sendbuf, recvbuf) else self._check(sendbuf, recvbuf, "Iallreduce")
        if send is not MPI.IN_PLACE and recv.size != send.size:
            buffers.size(recv, send.size, send, "an all-reduce keeps the size", "Iallreduce")
        group = self._group
        group.meet(IALLREDUCE, recv.dtype.num, recv.size, reduction_code(op))
        request = Request(group, group.mpi.Iallreduce(send, recv, op), IALLREDUCE)
        group.count("Allreduce", recv.nbytes)
        if memory.held is not None:
            memory.held.exchanged(send, recv)
        return request

    def averaged(self, like: np.ndarray, count: int, shared: bool = True):
        """An array of `count` zeros whose mean over the ranks can be taken; collective. See `averaging`."""
        return averaged(self, like, count, shared)


class Request:
    """A transfer that has been started."""

    def __init__(self, group: Group, request: MPI.Request, operation: int):
        self._group, self._request, self._operation = group, request, operation

    def Test(self) -> bool:
        """Whether it has ended; also lets it go on."""
        if self._request is not None and self._request.Test():
            self._request = None
        return self._request is None

    def Wait(self) -> None:
        """Wait until it has ended."""
        if self._request is not None:
            self._group.finish(self._request, self._operation)
            self._request = None

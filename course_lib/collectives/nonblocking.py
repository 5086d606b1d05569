"""Collectives that are started now and waited for later; see `communicator`.

A start does not wait for the other ranks: it leaves a notice of its call, and the transfer begins once all ranks of the group have left
theirs and the calls are the same. So two groups may start theirs in different orders, as MPI allows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from course_lib import memory
from course_lib.collectives import buffers, pending
from course_lib.collectives.averaging import averaged
from course_lib.collectives.calls import IALLGATHER, IALLREDUCE, IREDUCE_SCATTER, OPERATIONS, reduction_code


class NonBlocking:
    """The part of `Communicator` that does not wait."""

    def Iallreduce(self, sendbuf: np.ndarray, recvbuf: np.ndarray, op: MPI.Op = MPI.SUM) -> Request:
        """Start an all-reduce, and go on; parameters as for `Allreduce`. Neither array may be touched before ``Wait()``.

        Returns
        -------
        Request
        """
        send, recv = self._buffers(sendbuf, recvbuf, "Iallreduce")
        if send is not MPI.IN_PLACE and recv.size != send.size:
            buffers.size(recv, send.size, send, "an all-reduce keeps the size", "Iallreduce")
        call = (IALLREDUCE, recv.dtype.num, recv.size, reduction_code(op))
        return self._start(call, lambda mpi: mpi.Iallreduce(send, recv, op), send, recv, recv.nbytes)

    def Iallgather(self, sendbuf: np.ndarray, recvbuf: np.ndarray) -> Request:
        """Start an all-gather, and go on; parameters as for `Allgather`. Neither array may be touched before ``Wait()``.

        Returns
        -------
        Request
        """
        send, recv = self._buffers(sendbuf, recvbuf, "Iallgather")
        count = self._gathered(send, recv, "Iallgather")
        call = (IALLGATHER, recv.dtype.num, count, 0)
        return self._start(call, lambda mpi: mpi.Iallgather(send, recv), send, recv, recv.nbytes)

    def Ireduce_scatter(
        self, sendbuf: np.ndarray, recvbuf: np.ndarray, recvcounts: list[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> Request:
        """Start a reduce-scatter, and go on; parameters as for `Reduce_scatter`. Neither array may be touched before ``Wait()``.

        Returns
        -------
        Request
        """
        send, recv = self._buffers(sendbuf, recvbuf, "Ireduce_scatter")
        counts = self._parts(send, recv, recvcounts, "Ireduce_scatter")
        call = (IREDUCE_SCATTER, recv.dtype.num, send.size, reduction_code(op) + (hash(tuple(counts)) & 0xFFFFFF) * 16)
        return self._start(call, lambda mpi: mpi.Ireduce_scatter(send, recv, counts, op), send, recv, send.nbytes, not all(counts))

    def _buffers(self, sendbuf: object, recvbuf: object, where: str) -> tuple:
        return (sendbuf, recvbuf) if self._ready(sendbuf, recvbuf) else self._check(sendbuf, recvbuf, where)

    def _start(
        self, call: tuple[int, int, int, int], begin: Callable, send: object, recv: np.ndarray, payload: int, empty: bool = False
    ) -> Request:
        step = self._group.starting(call, begin, empty or not call[2])
        self._group.count(OPERATIONS[call[0]].removeprefix("I").capitalize(), payload)
        if memory.held is not None:
            memory.held.exchanged(send, recv)
        pending.add(step)
        return Request(self._group, step)

    def averaged(self, like: np.ndarray, count: int, shared: bool = True):
        """An array of `count` zeros whose mean over the ranks can be taken; collective. See `averaging`."""
        return averaged(self, like, count, shared)


class Request:
    """What has been started: a message, or a collective.

    Parameters
    ----------
    group : Group
    step : pending.Step or None
        None where there is nothing to do.
    """

    def __init__(self, group: object, step: object):
        self._group, self._step = group, step
        pending.now.requests += step is not None

    def __getattr__(self, name: str):
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("wait", "test", "waitall"):
            raise AttributeError(f"a Request has {name.capitalize()}, with a capital letter, as the call that it comes from.")
        raise AttributeError(f"a Request has Wait(), Test() and Waitall(requests), and no {name}.")

    def _over(self) -> object:
        """The step, which is waited for now."""
        step, self._step = self._step, None
        pending.now.requests -= 1
        return step

    def Test(self) -> bool:
        """Whether it has ended; also lets it go on."""
        if self._step is not None:
            pending.go_on()
            if self._group.test(self._step):
                self._over()
        return self._step is None

    def Wait(self) -> None:
        """Wait until it has ended.

        Raises
        ------
        CollectiveError
            It cannot end, or the ranks do not make the same call.
        """
        if self._step is not None:
            self._group.wait(self._over())

    @staticmethod
    def Waitall(requests: list[Request]) -> None:
        """Wait until all of them have ended."""
        for request in requests:
            request.Wait()

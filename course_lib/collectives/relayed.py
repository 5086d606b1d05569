"""A group whose collectives go through the relay; it stands in for `meeting.Group` where ranks are kept apart.

The relay sees that all make the same call, does what MPI would do, counts, and finds who waits in vain. An exchange that blocks is over
when it returns; messages and what does not block end when their answer has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib import traffic
from course_lib.collectives import apart, errors, explain, pending
from course_lib.collectives.begun import Begun, answers, keep, unanswered
from course_lib.collectives.calls import OPERATIONS, RECV, REDUCTIONS, SEND
from course_lib.collectives.mailbox import Message

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
        self._rank, self._call, self._number, self._name = members.index(apart.rank), (), 0, hash(members)

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

    def Ialltoall(self, send: np.ndarray, recv: np.ndarray) -> Done:
        """As MPI's."""
        self._put(recv, self._exchange(send))
        return Done()

    def Ialltoallv(self, send: list, recv: list) -> Done:
        """As MPI's."""
        (array, (counts, starts)), (into, (expected, places)) = send, recv
        flat = array.reshape(-1)
        parts = [flat[start : start + count] for start, count in zip(starts, counts, strict=True)]
        data = np.frombuffer(self._exchange(np.concatenate(parts), counts=counts), array.dtype)
        out, begin = into.reshape(-1), 0
        for place, count in zip(places, expected, strict=True):
            out[place : place + count] = data[begin : begin + count]
            begin += count
        return Done()

    def sending(self, dest: int, tag: int, array: np.ndarray, what: str) -> Begun:
        """A message to a world rank."""
        call = self._call_out((SEND, array.dtype.num, array.size, tag), array, **{"with": [dest]})
        return Begun(self.members, call, lambda *_: None, f"{what} to rank {dest}{explain.tagged(tag)}")

    def receiving(self, sources: tuple[int, ...], tag: int, array: np.ndarray, what: str) -> Begun:
        """A message from one of these world ranks."""
        place = explain.where()

        def done(step: Begun, answer: dict, data: bytes) -> Exception | None:
            dtype, count = answer.get("sent", (array.dtype.num, array.size))
            step.message = Message(answer["source"], 0, 0, 0, answer["tag"], dtype, count)
            if "sent" in answer:
                return errors.MismatchError(f"rank {apart.rank}, {explain.unfit(array, step.message, place)}")
            self._put(array, data)
            return None

        call = self._call_out((RECV, array.dtype.num, array.size, tag), None, **{"with": list(sources)})
        whom = f"rank {sources[0]}" if len(sources) == 1 else "any rank"
        return Begun(self.members, call, done, f"{what} from {whom}{explain.tagged(tag)}")

    def starting(self, call: tuple[int, int, int, int], begin: Callable, empty: bool = False) -> Begun:
        """A collective that does not block: `begin` is given a group, on which the call is made."""
        name = OPERATIONS[call[0]]
        start = _Start(self, call)
        begin(start)

        def done(step: Begun, answer: dict, data: bytes) -> None:
            put, start.put = start.put, None  # it knows `start`: what it was given is to go now, and not when circles are looked for
            put(data)

        return Begun(self.members, start.name, done, f"{name} on {self}")

    def test(self, step: Begun) -> bool:
        """Whether a step has ended."""
        return step.test()

    def wait(self, step: Begun) -> None:
        """Wait until a step has ended."""
        try:
            step.wait()
        finally:
            pending.now.open.pop(step, None)

    def _call_out(self, what: tuple, send: np.ndarray | None, **more: object) -> tuple[int, int]:
        """Make a call of the relay; its name."""
        self._number += 1
        call = (self._name, self._number)
        header = {"call": call, "members": self.members, "what": [int(n) for n in what], "place": explain.where(), **more}
        unanswered.add(call)
        apart.line.send(header, b"" if send is None else memoryview(np.ascontiguousarray(send).reshape(-1)).cast("B"))
        return call

    def _exchange(self, send: np.ndarray | None, **more: object) -> bytes:
        """One call through the relay: what comes back for this rank."""
        call = self._call_out(self._call, send, **more)
        while call not in answers:
            keep(apart.line.receive())
        answer, data = answers.pop(call)
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


class _Start(RelayedGroup):
    """The same group for one call that does not block: what is sent goes out, and what comes is put where it belongs later."""

    def __init__(self, group: RelayedGroup, call: tuple[int, int, int, int]):
        self._group, self._call, self.members, self._rank = group, tuple(map(int, call)), group.members, group._rank
        self.name: tuple[int, int] = (0, 0)
        self.put: Callable[[bytes], None] | None = None

    def _exchange(self, send: np.ndarray | None, **more: object) -> bytes:
        self.name = self._group._call_out(self._call, send, start=True, **more)
        raise _Later

    def Iallreduce(self, send: np.ndarray, recv: np.ndarray, op: MPI.Op = MPI.SUM) -> None:
        """As MPI's; likewise the others."""
        given = recv if send is MPI.IN_PLACE else send
        self._later(super().Iallreduce, send, recv, op)
        self.put = lambda data: self._put(recv, self._reduced(data, given, op))

    def Iallgather(self, send: np.ndarray, recv: np.ndarray) -> None:
        self._later(super().Iallgather, send, recv)
        self.put = lambda data: self._put(recv, data)

    def Ireduce_scatter(self, send: np.ndarray, recv: np.ndarray, recvcounts: list[int], op: MPI.Op = MPI.SUM) -> None:
        self._later(super().Ireduce_scatter, send, recv, recvcounts, op)
        start = sum(recvcounts[: self._rank])

        def put(data: bytes) -> None:
            found = self._reduced(data, send, op)
            if self._call[3] % 16 == _OWN:
                found = np.frombuffer(found, send.dtype)[start : start + recv.size].tobytes()
            self._put(recv, found)

        self.put = put

    @staticmethod
    def _later(call: Callable, *arguments: object) -> None:
        with contextlib.suppress(_Later):
            call(*arguments)


class _Later(Exception):
    """What is sent has gone out; the answer comes later."""


@cache
def group(members: tuple[int, ...]) -> RelayedGroup:
    """The one group with these world ranks in this order."""
    return RelayedGroup(members)

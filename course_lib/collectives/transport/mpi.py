"""The transport of students' ranks: MPI, in its non-blocking forms only, so that every wait can be interrupted and has an end."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib import wording
from course_lib.collectives import buffers, diagnostics, shared_memory
from course_lib.collectives.calls import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    ALLTOALLV,
    BARRIER,
    BCAST,
    BLOCKING_FORM,
    GATHER,
    OPERATIONS,
    REDUCE_SCATTER,
    SCATTER,
    SPLIT,
    Call,
)
from course_lib.collectives.deadlock.board import MAX_CONTEXTS, open_board
from course_lib.collectives.errors import CollectiveError, DeadlockError, MismatchError
from course_lib.collectives.progress import engine
from course_lib.collectives.progress.operations import Operation, WaitCondition, progress, progress_state, raise_interrupt
from course_lib.collectives.progress.point_to_point import Endpoint, ReceiveOperation, SendOperation
from course_lib.collectives.progress.rendezvous import INLINE_OPERATIONS, AllgatherRendezvous, BoardRendezvous, combine
from course_lib.collectives.transport import IncomingMessage, OutgoingMessage
from course_lib.interrupts import defer_interrupts

COMMUNICATOR_SECONDS = 60.0  # seconds to make a communicator of one of MPI's own, whose ranks nobody watches
PostFunction = Callable[[MPI.Comm, Call], object]  # begins a transfer; returns its request

POST_FUNCTIONS: dict[int, PostFunction] = {
    ALLREDUCE: lambda comm, call: comm.Iallreduce(call.send, call.recv, call.op),
    ALLGATHER: lambda comm, call: comm.Iallgather(call.send, call.recv),
    REDUCE_SCATTER: lambda comm, call: comm.Ireduce_scatter(call.send, call.recv, call.counts, call.op),
    SPLIT: lambda comm, call: comm.Iallgather(call.send, call.recv),
    BARRIER: lambda comm, call: comm.Ibarrier(),
    BCAST: lambda comm, call: comm.Ibcast(call.recv, call.root),
    SCATTER: lambda comm, call: comm.Iscatter(call.send, call.recv, call.root),
    GATHER: lambda comm, call: comm.Igather(call.send, call.recv, call.root),
    ALLTOALL: lambda comm, call: comm.Ialltoall(call.send, call.recv),
    ALLTOALLV: lambda comm, call: comm.Ialltoallv(
        [call.send, (call.counts, call.starts)], [call.recv, (call.recv_counts, call.recv_starts)]
    ),
}


class MpiTransport:
    """A group of ranks that MPI connects; see `Transport`.

    Parameters
    ----------
    members : tuple of int
        World ranks, in the group's order.
    comm : MPI.Comm
        A communicator of these that nobody else uses; making this object is collective, and cannot be interrupted.
    context : int
        The group's number, which no other group of one of these ranks has.

    Attributes
    ----------
    message_comm : MPI.Comm
        Carries messages, and no collective but such as make another communicator.
    """

    check = staticmethod(buffers.checked_array)

    def __init__(self, members: tuple[int, ...], comm: MPI.Comm, context: int):
        board = open_board()
        self.members, self.rank, self.host, self._board = members, members.index(board.rank), self, board
        self.message_comm, self._data, self._epoch = comm, comm.Dup(), progress_state.epoch
        self._next, self._renewal, self._renewal_epoch, self._renewals = self._data, MPI.REQUEST_NULL, progress_state.epoch, 0
        self._endpoint = Endpoint(comm, members, board, context)
        if set(members) <= set(board.local):
            self.rendezvous = BoardRendezvous(board, members, context)
        else:
            self.rendezvous = AllgatherRendezvous(board, members, context, comm.Dup())
        self.queued: deque[NonblockingCollective] = deque()
        progress_state.reset_hooks.append(self._reset)
        # Yielding after each look costs a little; do it at once only where ranks share cores.
        self._spins = (100, 400) if len(members) <= (os.cpu_count() or 1) else (0, 1)
        self._polls = tuple(range(spins + 1) for spins in self._spins)

    def __str__(self) -> str:
        return diagnostics.group_name(self.members, self._board.size)

    def run(self, call: Call, post: PostFunction | None = None, second_phase: bool = False) -> None:
        """Carry out a collective; `post` begins its transfer where that is not MPI's, `second_phase` continues the one before."""
        rendezvous = self.rendezvous
        inline = post is None and call.operation in INLINE_OPERATIONS and rendezvous.inlines(call)
        key = rendezvous.second_phase_key() if second_phase else rendezvous.next_key()
        if self.queued:  # MPI wants the same order on all ranks
            engine.wait(_AnnouncementWait(self, key, call), self._spins[0])
        try:
            rendezvous.arrive(key, call, inline, True, self._renewals)
            agreed = rendezvous.spin_until_agreed(key, self._polls[0])
            if not agreed and not rendezvous.is_complete(key):
                engine.wait(_ArrivalWait(self, key, call), 0)
        except BaseException:
            rendezvous.cancel(key)
            raise
        try:
            if self.queued:
                engine.wait(_QueueWait(self), self._spins[1])
            if not agreed and (different := rendezvous.signatures(key)):
                raise MismatchError(diagnostics.mismatch(different, str(self)))
            if inline:
                combine(rendezvous, key, call, self.rank)
                return
            while self._epoch != progress_state.epoch and not self.renew_communicator(key):
                engine.wait(_TransferWait(self, self._renewal, "the renewal"), self._spins[1])
            request = (post or POST_FUNCTIONS[call.operation])(self._data, call)
            for _ in self._polls[1]:
                if request.Test():
                    return
            engine.wait(_TransferWait(self, request, OPERATIONS[call.operation], call), 0)
        finally:
            rendezvous.leave(key)

    def start(self, call: Call, post: PostFunction | None = None) -> NonblockingCollective:
        started = NonblockingCollective(self, call, post or POST_FUNCTIONS[BLOCKING_FORM[call.operation]])
        self.post_queued()
        return started

    def send(self, array: np.ndarray, dest: int, tag: int, call_name: str) -> SendOperation:
        return SendOperation(self._endpoint, array, dest, tag, call_name)

    def receive(self, array: np.ndarray, sources: tuple[int, ...], tag: int, call_name: str) -> ReceiveOperation:
        return ReceiveOperation(self._endpoint, array, sources, tag, call_name)

    def exchange(self, outgoing: OutgoingMessage | None, incoming: IncomingMessage | None, call_name: str) -> tuple[int, int] | None:
        endpoint, polls = self._endpoint, self._polls[1]
        request = endpoint.send(*outgoing) if outgoing else None
        found = endpoint.try_receive(*incoming, polls) if incoming else None
        arrived = not incoming or (found and found[0].Test())
        if arrived and (not request or request.Test()):
            return found and found[1]
        sending = SendOperation(endpoint, *outgoing, call_name, request) if request else None
        if sending:
            progress_state.in_flight[sending] = None  # whatever becomes of the receive, MPI still reads the array
        if not arrived:
            receiving = ReceiveOperation(endpoint, *incoming, call_name, found)
            engine.wait(receiving, polls.stop)
            found = None, receiving.received
        if sending:
            engine.wait(sending, polls.stop)
        return found and found[1]

    def wait(self, operation: Operation) -> None:
        engine.wait(operation, self._spins[1])

    def test(self, operation: Operation) -> bool:
        progress()
        return operation.advance()

    def synchronize(self) -> None:
        pass

    def _reset(self) -> None:
        """Let go of what was started and has not begun: it was in a cell that failed."""
        for started in reversed(self.queued):
            started.error = started.error or CollectiveError("this was begun in a cell that failed or was interrupted, and is lost.")
            if started.announced:
                self.rendezvous.cancel(started.key)
        self.queued.clear()

    def post_queued(self) -> None:
        """Announce and begin what was started, in order, as far as can be: in a group, MPI wants the same order on all ranks."""
        rendezvous = self.rendezvous
        for started in self.queued:
            if not started.announced:
                if not rendezvous.has_room(started.key):
                    break
                started.announced = True  # before it is so: an interrupt may come between the two
                rendezvous.arrive(started.key, started.call, False, False, self._renewals)
        while self.queued:
            first = self.queued[0]
            if not first.announced or not rendezvous.is_complete(first.key):
                return
            if different := rendezvous.signatures(first.key):
                first.error = MismatchError(diagnostics.mismatch(different, str(self)))
            elif not self.renew_communicator(first.key):
                return
            else:
                self._board.resume()
                first.request = first.post(self._data, first.call)
            self.queued.popleft()
            rendezvous.leave(first.key)

    def renew_communicator(self, key: int) -> bool:
        """Renew the communicator where it is of an earlier epoch; return whether that is done.

        All ranks have come to the collective with this key.

        A rank that was interrupted may have begun fewer duplications than the others, and MPI matches them in their order.
        """
        if self._epoch != progress_state.epoch:
            if self._renewal_epoch != progress_state.epoch:
                wanted = self.rendezvous.renewals(key) + 1
                while self._renewals < wanted:
                    self._next, self._renewal = self.message_comm.Idup()
                    self._renewals += 1
                self._renewal_epoch = progress_state.epoch
            if not self._renewal.Test():
                return False
            self._data, self._epoch = self._next, progress_state.epoch
        return True

    def split(self, color: int, key: int) -> MpiTransport | None:
        n = len(self.members)
        wishes = np.empty((n, 2), np.int64)
        self.run(Call(SPLIT, send=np.array([color, key], np.int64), recv=wishes))
        with defer_interrupts():  # MPI makes a communicator in a call that nothing can end; who was interrupted before this does not come
            if progress_state.interrupt_pending:
                raise_interrupt()
            self.run(Call(SPLIT), POST_FUNCTIONS[BARRIER], second_phase=True)
            if color == MPI.UNDEFINED:
                return None
            chosen = sorted((r for r in range(n) if wishes[r, 0] == color), key=lambda r: (wishes[r, 1], r))
            return _transport(tuple(self.members[r] for r in chosen))


class _GroupOperation(Operation):
    """Base of the operations of a group."""

    def __init__(self, transport: MpiTransport):
        super().__init__(transport.members)
        self._transport = transport

    def is_matched(self) -> bool:
        return False

    def describe(self) -> str:
        return diagnostics.call_site()


class _ArrivalWait(_GroupOperation):
    """The wait for all ranks to come to a blocking collective."""

    def __init__(self, transport: MpiTransport, key: int, call: Call):
        super().__init__(transport)
        self._key, self._operation, self._complete = key, call.operation, transport.rendezvous.is_complete

    def advance(self) -> bool:
        return self._complete(self._key)

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(self._operation, self.members, self._key)


class _TransferWait(_GroupOperation):
    """The wait for a transfer that has begun."""

    def __init__(self, transport: MpiTransport, request: object, name: str, keep: object = None):
        super().__init__(transport)
        self._name, self._request, self._keep = name, request, keep

    def advance(self) -> bool:
        return self._request.Test()

    def is_matched(self) -> bool:
        return True

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(0, self.members)

    def describe(self) -> str:
        return f"{self._name} on {self._transport}"


class _AnnouncementWait(_GroupOperation):
    """The wait until all that was started in the group before is announced, and there is room for one more."""

    def __init__(self, transport: MpiTransport, key: int, call: Call):
        super().__init__(transport)
        self._key, self._operation = key, call.operation

    def advance(self) -> bool:
        self._transport.post_queued()
        return all(s.announced for s in self._transport.queued) and self._transport.rendezvous.has_room(self._key)

    def wait_condition(self) -> WaitCondition:
        queued = self._transport.queued
        return queued[0].wait_condition() if queued else WaitCondition(self._operation, self.members, self._key)


class _QueueWait(_GroupOperation):
    """The wait until all that was started in the group before has begun: all ranks have come to it."""

    def advance(self) -> bool:
        self._transport.post_queued()
        return not self._transport.queued

    def is_matched(self) -> bool:
        return True

    def wait_condition(self) -> WaitCondition:
        return self._transport.queued[0].wait_condition()


class NonblockingCollective(_GroupOperation):
    """A collective that does not block: its transfer begins once all ranks have come to the same call, and those before it have begun."""

    collective = True

    def __init__(self, transport: MpiTransport, call: Call, post: PostFunction):
        super().__init__(transport)
        self.call, self.post, self.key = call, post, transport.rendezvous.next_key()
        self.request: object | None = None
        self.announced = False
        transport.queued.append(self)

    def advance(self) -> bool:
        if self.request is None and self.error is None:
            self._transport.post_queued()
        return self.error is not None or (self.request is not None and self.request.Test())

    def is_matched(self) -> bool:
        """Return whether all ranks have come: its transfer goes on, or waits for a new communicator, which all make."""
        if self.request is not None or self.error is not None:
            return True
        first = self._first()
        return first.announced and self._transport.rendezvous.is_complete(first.key)

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(self.call.operation, self.members, detail=self._first().key)

    def _first(self) -> NonblockingCollective:
        """Return the first operation that must begin, at last this one."""
        return self._transport.queued[0] if self._transport.queued else self

    def describe(self) -> str:
        first, behind = self._first(), ""
        if first is not self and (missing := self._transport.rendezvous.missing(first.key)):
            behind = f"; {wording.ranks(missing)} did not begin the {OPERATIONS[first.call.operation]} before it"
        name = OPERATIONS[self.call.operation]
        return f"{name} #{diagnostics.call_number(self.key)} on {self._transport} ({diagnostics.call_site()}{behind})"


@cache
def base_comm() -> MPI.Comm:
    """A duplicate of the world that nobody else uses; the first call is collective."""
    shared_memory.unlink_mapped_files()
    return MPI.COMM_WORLD.Dup()


@cache
def world() -> MpiTransport:
    """All ranks; the first call is collective."""
    open_board()
    return _transport(tuple(range(base_comm().Get_size())))


@cache
def _transport(members: tuple[int, ...]) -> MpiTransport:
    """The one transport of these world ranks in this order; all of them make the first call together."""
    comm = base_comm().Create_group(base_comm().Get_group().Incl(members))
    return MpiTransport(members, comm, _agree_on_context(comm))


_contexts = [0]  # the number for this rank's next group


def _agree_on_context(comm: MPI.Comm) -> int:
    """A number for a new group that no other group of one of its ranks has; collective, as in MPI."""
    mine, agreed = np.array(_contexts, np.int64), np.empty(1, np.int64)
    comm.Allreduce(mine, agreed, MPI.MAX)
    _contexts[0] = int(agreed[0]) + 1
    if agreed[0] >= MAX_CONTEXTS:
        raise CollectiveError(
            f"there are {MAX_CONTEXTS} groups of different ranks, and there can be no more. Does a loop make new ones? "
            "ranks.restart(rerun=True) begins anew."
        )
    return int(agreed[0])


def of_communicator(comm: MPI.Comm) -> MpiTransport:
    """A transport for the ranks of a communicator of MPI's own; all of these make this call.

    Raises
    ------
    DeadlockError
        Not all of them make it within a minute.
    """
    inside = comm.Get_group()
    members = tuple(inside.Translate_ranks(None, MPI.COMM_WORLD.Get_group()))
    everyone = world()
    if members == everyone.members:
        return everyone
    request, deadline = comm.Ibarrier(), time.monotonic() + COMMUNICATOR_SECONDS
    while not request.Test():
        progress()
        engine.sched_yield()
        if time.monotonic() > deadline:
            raise DeadlockError(diagnostics.too_late(f"Communicator(comm) ({diagnostics.call_site()})", COMMUNICATOR_SECONDS))
    with defer_interrupts():
        return _transport(members)

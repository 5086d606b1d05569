"""MPI transport, used on students' ranks: nonblocking MPI calls only, so that every wait can be interrupted and cannot hang.

A blocking collective (`MpiTransport.run`) has three stages:

1. Rendezvous: this rank announces its call, and waits until all ranks of the group have announced theirs (`_ArrivalWait`). A mismatch
   raises here, before MPI is involved.
2. Nonblocking collectives of the group that were started earlier are posted first (`_QueueWait`), as MPI requires the same order on all
   ranks; after an interrupted cell, the group's MPI communicator is renewed.
3. Transfer: MPI's nonblocking form is posted and polled (`_TransferWait`). Small arrays have travelled with the rendezvous already, and
   need no transfer.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from functools import cache

import numpy as np
from mpi4py import MPI

from course_lib.collectives import buffers, calls, diagnostics, shared_memory
from course_lib.collectives.calls import BLOCKING_FORM, OPERATIONS, Call
from course_lib.collectives.deadlock.board import open_board
from course_lib.collectives.deadlock.layout import MAX_CONTEXTS
from course_lib.collectives.errors import CollectiveError, DeadlockError, MismatchError
from course_lib.collectives.progress import engine
from course_lib.collectives.progress.operations import Operation, WaitCondition, progress, progress_state, raise_interrupt
from course_lib.collectives.progress.point_to_point import Endpoint, ReceiveOperation, SendOperation
from course_lib.collectives.progress.rendezvous import INLINE_OPERATIONS, BoardRendezvous, MachinesRendezvous
from course_lib.collectives.transport import IncomingMessage, OutgoingMessage, split_members
from course_lib.utils import wording
from course_lib.utils.interrupts import defer_interrupts

COMMUNICATOR_SECONDS = 60.0  # timeout for wrapping an MPI communicator, where no status board watches the ranks' arrival
PostFunction = Callable[[MPI.Comm, Call], object]  # posts a transfer and returns its request: an object with Test()

POST_FUNCTIONS: dict[int, PostFunction] = {
    calls.ALLREDUCE: lambda comm, call: comm.Iallreduce(call.send, call.recv, call.op),
    calls.ALLGATHER: lambda comm, call: comm.Iallgather(call.send, call.recv),
    calls.REDUCE_SCATTER: lambda comm, call: comm.Ireduce_scatter(call.send, call.recv, call.counts, call.op),
    calls.SPLIT: lambda comm, call: comm.Iallgather(call.send, call.recv),
    calls.BARRIER: lambda comm, call: comm.Ibarrier(),
    calls.BCAST: lambda comm, call: comm.Ibcast(call.recv, call.root),
    calls.SCATTER: lambda comm, call: comm.Iscatter(call.send, call.recv, call.root),
    calls.GATHER: lambda comm, call: comm.Igather(call.send, call.recv, call.root),
    calls.ALLTOALL: lambda comm, call: comm.Ialltoall(call.send, call.recv),
    calls.ALLTOALLV: lambda comm, call: comm.Ialltoallv(
        [call.send, (call.counts, call.starts)], [call.recv, (call.recv_counts, call.recv_starts)]
    ),
}


class MpiTransport:
    """Transport over MPI for one group of ranks; implements `Transport`. Creating it is collective, and cannot be interrupted.

    Parameters
    ----------
    members : tuple of int
        World ranks, in the group's order.
    comm : MPI.Comm
        A communicator of these ranks, used for nothing else.
    context : int
        The group's context id, see `progress.rendezvous`; unique among the groups of each of these ranks.

    Attributes
    ----------
    message_comm : MPI.Comm
        Carries the group's messages; its only collectives are those that create communicators.
    rendezvous : Rendezvous
    queued : deque of NonblockingCollective
        Nonblocking collectives that were started but not posted to MPI yet, oldest first.
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
            self.rendezvous = MachinesRendezvous(board, members, context, comm)
        self.queued: deque[NonblockingCollective] = deque()
        progress_state.reset_hooks.append(self._reset)
        # Polls before the first sched_yield, in a rendezvous and in a transfer; yielding has a cost, so do it early only on shared cores.
        self._spins = (100, 400) if len(members) <= (os.cpu_count() or 1) else (0, 1)
        self._polls = tuple(range(spins + 1) for spins in self._spins)

    def __str__(self) -> str:
        return diagnostics.group_name(self.members, self._board.size)

    def run(self, call: Call, post: PostFunction | None = None, second_phase: bool = False) -> None:
        """Carry out a blocking collective.

        Parameters
        ----------
        call : Call
        post : PostFunction, optional
            Posts the transfer if it is not MPI's (NCCL).
        second_phase : bool
            Whether this is the second phase of the latest collective, and takes no new number; see `progress.rendezvous`.

        Raises
        ------
        MismatchError
            The ranks make different calls.
        DeadlockError
            Some rank can no longer make the call.
        """
        rendezvous = self.rendezvous
        inline = post is None and call.operation in INLINE_OPERATIONS and rendezvous.inlines(call)
        key = rendezvous.second_phase_key() if second_phase else rendezvous.next_key()
        if self.queued:  # MPI requires the same order on all ranks
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
                rendezvous.combine(key, call, self.rank)
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
        if arrived:
            if not request:
                return found and found[1]
            for _ in polls:
                if request.Test():
                    return found and found[1]
        sending = SendOperation(endpoint, *outgoing, call_name, request) if request else None
        if sending:
            progress_state.in_flight[sending] = None  # even if the receive fails, MPI still reads the array
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
        """Drop the collectives that were started but not posted, in a cell that failed."""
        for started in reversed(self.queued):
            started.error = started.error or CollectiveError("this was started in a cell that failed or was interrupted, and is lost.")
            if started.announced:
                self.rendezvous.cancel(started.key)
        self.queued.clear()

    def post_queued(self) -> None:
        """Announce the queued collectives, and post those at the head of the queue that all ranks have announced.

        MPI requires the same order of collectives on all ranks of a group, so a collective never overtakes an earlier one.
        """
        rendezvous = self.rendezvous
        for started in self.queued:
            if not started.announced:
                if not rendezvous.has_room(started.key):
                    break
                started.announced = True  # set first: an interrupt between the two lines must not announce it twice
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
        """Duplicate the group's MPI communicator if it is of an earlier epoch; return whether the current one is usable.

        Call it again until it returns True. All ranks must have announced the collective with this key, and with it their number of
        renewals: an interrupted rank may have started fewer duplications than the others, and MPI matches them by their order.
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
        wishes = np.empty((len(self.members), 2), np.int64)
        self.run(Call(calls.SPLIT, send=np.array([color, key], np.int64), recv=wishes))
        with defer_interrupts():  # MPI creates a communicator in a blocking call; a rank interrupted before this never enters phase two
            if progress_state.interrupt_pending:
                raise_interrupt()
            self.run(Call(calls.SPLIT), POST_FUNCTIONS[calls.BARRIER], second_phase=True)
            if color == MPI.UNDEFINED:
                return None
            return _transport(split_members(self.members, wishes, color))


class _GroupOperation(Operation):
    """Base class of a group's operations."""

    def __init__(self, transport: MpiTransport):
        super().__init__(transport.members)
        self._transport = transport

    def is_matched(self) -> bool:
        return False

    def describe(self) -> str:
        return diagnostics.call_site()


class _ArrivalWait(_GroupOperation):
    """Wait of a blocking collective until all ranks have entered it."""

    def __init__(self, transport: MpiTransport, key: int, call: Call):
        super().__init__(transport)
        self._key, self._operation, self._complete = key, call.operation, transport.rendezvous.is_complete

    def advance(self) -> bool:
        return self._complete(self._key)

    def is_matched(self) -> bool:
        """Return whether all ranks have entered it. Between machines, it then takes MPI calls of some of them, as a transfer does."""
        return not self._transport.rendezvous.missing(self._key)

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(self._operation, self.members, self._key)


class _TransferWait(_GroupOperation):
    """Wait for a transfer that has been posted; `keep`: an object whose buffers must stay alive."""

    def __init__(self, transport: MpiTransport, request: object, name: str, keep: object = None):
        super().__init__(transport)
        self._name, self._request, self._keep = name, request, keep

    def advance(self) -> bool:
        return self._request.Test()

    def is_matched(self) -> bool:
        return True

    def describe(self) -> str:
        return f"{self._name} on {self._transport}"


class _AnnouncementWait(_GroupOperation):
    """Wait until the group's earlier nonblocking collectives are announced, and the rendezvous has room for one more."""

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
    """Wait until the group's earlier nonblocking collectives are posted; all ranks have entered them already."""

    def advance(self) -> bool:
        self._transport.post_queued()
        return not self._transport.queued

    def is_matched(self) -> bool:
        return True


class NonblockingCollective(_GroupOperation):
    """A nonblocking collective: its transfer is posted once all ranks have started the same call, and the earlier ones are posted."""

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
        """Return whether all ranks have started the collective that is posted next: what is left needs no further call of theirs."""
        if self.request is not None or self.error is not None:
            return True
        first = self._first()
        rendezvous = self._transport.rendezvous
        return first.announced and (rendezvous.is_complete(first.key) or not rendezvous.missing(first.key))

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(self.call.operation, self.members, detail=self._first().key)

    def _first(self) -> NonblockingCollective:
        """Return the operation that must be posted next; this one, if the queue is empty."""
        return self._transport.queued[0] if self._transport.queued else self

    def describe(self) -> str:
        first, behind = self._first(), ""
        if first is not self and (missing := self._transport.rendezvous.missing(first.key)):
            behind = f"; {wording.ranks(missing)} did not start the {OPERATIONS[first.call.operation]} before it"
        name = OPERATIONS[self.call.operation]
        return f"{name} #{diagnostics.call_number(self.key)} on {self._transport} ({diagnostics.call_site()}{behind})"


@cache
def base_comm() -> MPI.Comm:
    """Return the course's own duplicate of the world, from which all other communicators are created; the first call is collective."""
    shared_memory.unlink_mapped_files()
    return MPI.COMM_WORLD.Dup()


@cache
def world() -> MpiTransport:
    """Return the transport of all ranks; the first call is collective."""
    open_board()
    return _transport(tuple(range(base_comm().Get_size())))


@cache
def _transport(members: tuple[int, ...]) -> MpiTransport:
    """Return the transport of these world ranks in this order, of which there is one; the first call is collective over them."""
    comm = base_comm().Create_group(base_comm().Get_group().Incl(members))
    several_machines = not set(members) <= set(open_board().local)
    return MpiTransport(members, comm, _agree_on_context(comm, 1 + several_machines))


_contexts = [0]  # the smallest context id that no group of this rank has


def _agree_on_context(comm: MPI.Comm, pages: int) -> int:
    """Agree on a context id for a new group, and reserve that many pages of the board, which no other group of any of its ranks has.

    It is the maximum of the ranks' next ids. Collective over the group.
    """
    mine, agreed = np.array(_contexts, np.int64), np.empty(1, np.int64)
    comm.Allreduce(mine, agreed, MPI.MAX)
    _contexts[0] = int(agreed[0]) + pages
    if _contexts[0] > MAX_CONTEXTS:
        raise CollectiveError(
            f"there are {MAX_CONTEXTS // pages} groups of different ranks, and there can be no more. Does a loop create new ones? "
            "ranks.restart(rerun=True) starts over."
        )
    return int(agreed[0])


def of_communicator(comm: MPI.Comm) -> MpiTransport:
    """Return a transport for the ranks of an MPI communicator; collective over them.

    Raises
    ------
    DeadlockError
        Not all of them make this call within a minute.
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

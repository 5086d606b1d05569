"""Messages from one rank to another by MPI. What has come is looked at before it is received, so what does not fit gets a sentence.

Each group sends on a communicator of MPI's of its own. The tag that MPI sees has the course's tag, the dtype and the epoch. A message is
taken out of MPI's queue by a matched probe (MPI 4.1, section 3.8.2) and received once a receive takes it; the status board counts what is
sent and what is taken, so that a rank with a message on its way to it is not taken for one that waits in vain.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib.collectives import diagnostics
from course_lib.collectives.calls import DTYPES, LARGEST_TAG, RECV, SEND, WILDCARD
from course_lib.collectives.deadlock.board import ACCEPTED_IDS, ACCEPTED_SLOTS, READ_COUNT, SENT_COUNT, STATE, Board
from course_lib.collectives.errors import MismatchError
from course_lib.collectives.progress.matching import Envelope, Matcher
from course_lib.collectives.progress.operations import Operation, WaitCondition, progress_state
from course_lib.collectives.snapshot import COMPUTING

ANY_SOURCE, ANY_TAG, BYTE = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.BYTE  # names found fast
DTYPE_BITS, TAG_BITS, EPOCHS = 5, LARGEST_TAG.bit_length(), 0x1FF
LARGEST_MPI_TAG = (EPOCHS + 1 << DTYPE_BITS + TAG_BITS) - 1
NUMBER_BITS = 40  # of a message's id: the number of those from a rank to another in a group, below the group's


class Endpoint:
    """The messages of one group, on one rank.

    Parameters
    ----------
    comm : MPI.Comm
        For these messages alone.
    members : tuple of int
        World ranks, in the group's order.
    board : Board
    context : int
        The group's number.

    Raises
    ------
    RuntimeError
        This MPI's tags are too small.
    """

    def __init__(self, comm: MPI.Comm, members: tuple[int, ...], board: Board, context: int):
        if comm.Get_attr(MPI.TAG_UB) < LARGEST_MPI_TAG:
            raise RuntimeError(
                f"expected an MPI whose tags go up to {LARGEST_MPI_TAG}; this one's end at {comm.Get_attr(MPI.TAG_UB)}. "
                "The course is tested with MPICH: pip install mpich."
            )
        self.comm, self.members, self.board = comm, members, board
        self.matcher: Matcher[Envelope, ReceiveOperation] = Matcher()
        self._local_rank = {rank: place for place, rank in enumerate(members)}
        self._id_base = context << NUMBER_BITS
        self._sent, self._taken = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
        self._status, self._mine = MPI.Status(), board.mine
        self._pairs = {rank: board.pair_offset(board.rank, rank) for rank in members}
        self._isend, self._improbe = comm.Isend, comm.Improbe
        progress_state.poll_hooks.append(self.poll)
        progress_state.reset_hooks.append(self._reset)

    # All of these are called where interrupts are deferred.

    def send(self, array: np.ndarray, dest: int, tag: int) -> MPI.Request:
        """Begin to send to a world rank."""
        self._sent[dest] += 1
        self._mine[self._pairs[dest] + SENT_COUNT] += 1
        return self._isend(array, self._local_rank[dest], _wire_tag(array, tag))

    def _reset(self) -> None:
        for message in self.matcher.clear():
            self.discard(message)

    def message_id(self, dest: int) -> int:
        """The id of the message that was sent last to a rank."""
        return self._id_base + self._sent[dest]

    def poll(self) -> bool:
        """Take what has come next; return whether there was anything."""
        if (handle := self._improbe(ANY_SOURCE, ANY_TAG, self._status)) is None:
            return False
        self._dispatch(*self._count_arrival(handle))
        return True

    def try_receive(
        self, array: np.ndarray, sources: tuple[int, ...], tag: int, polls: range
    ) -> tuple[MPI.Request, tuple[int, int]] | None:
        """Begin to receive what comes next, the short way: None where it is not here soon, or other messages or receives are about."""
        matcher, improbe, status = self.matcher, self._improbe, self._status
        if matcher.posted or matcher.unexpected:
            return None
        for _ in polls:
            if (handle := improbe(ANY_SOURCE, ANY_TAG, status)) is not None:
                taken = self._count_arrival(handle)
                _, source, wire_tag, nbytes, message_id = taken
                received_tag = wire_tag & LARGEST_TAG
                if wire_tag == _wire_tag(array, received_tag if tag == WILDCARD else tag) and nbytes == array.nbytes and source in sources:
                    self._mine[self._pairs[source] + ACCEPTED_IDS + message_id % ACCEPTED_SLOTS] = message_id
                    return handle.Irecv(array), (source, received_tag)
                self._dispatch(*taken)
                break
        return None

    def _count_arrival(self, handle: MPI.Message) -> tuple[MPI.Message, int, int, int, int]:
        """Count a message that has been taken out of MPI's queue; return it, its source, the tag that MPI sees, its bytes and its id."""
        status, mine = self._status, self._mine
        source = self.members[status.Get_source()]
        self._taken[source] = number = self._taken[source] + 1
        mine[STATE] = COMPUTING  # before the word goes that says why this rank need not wait, see `Board.resume`
        mine[self._pairs[source] + READ_COUNT] += 1
        return handle, source, status.Get_tag(), status.Get_count(BYTE), self._id_base + number

    def _dispatch(self, handle: MPI.Message, source: int, wire_tag: int, nbytes: int, message_id: int) -> None:
        """Give a message to the receive that takes it, or keep it."""
        dtype = wire_tag >> TAG_BITS & (1 << DTYPE_BITS) - 1
        message = Envelope(source, self.members, wire_tag & LARGEST_TAG, dtype, nbytes // DTYPES[dtype].itemsize, handle, message_id)
        if wire_tag >> DTYPE_BITS + TAG_BITS != progress_state.epoch & EPOCHS:
            self.discard(message)
        elif receive := self.matcher.arrive(message):
            receive.accept(message)

    @staticmethod
    def discard(message: Envelope) -> None:
        """Receive a message of an earlier epoch, for nobody: else its sender and MPI keep it."""
        scratch = bytearray(message.count * DTYPES[message.dtype].itemsize)
        progress_state.abandoned.append((progress_state.epoch - 1, message.content.Irecv([scratch, MPI.BYTE])))


def _wire_tag(array: np.ndarray, tag: int) -> int:
    """The tag that MPI sees."""
    return (progress_state.epoch & EPOCHS) << DTYPE_BITS + TAG_BITS | array.dtype.num << TAG_BITS | tag


class SendOperation(Operation):
    """A message that is being sent; `request` where it has begun."""

    def __init__(self, endpoint: Endpoint, array: np.ndarray, dest: int, tag: int, call_name: str, request: MPI.Request | None = None):
        self.members = endpoint.board.rank, dest
        self._endpoint, self._dest, self._tag, self.call_name, self._array = endpoint, dest, tag, call_name, array
        self._request = request or endpoint.send(array, dest, tag)
        self._message_id = endpoint.message_id(dest)

    def advance(self) -> bool:
        if self._request.Test():
            return True
        self._endpoint.poll()  # who sends to this rank waits for that
        return False

    def is_matched(self) -> bool:
        return self._endpoint.board.has_receive(self._dest, self._message_id)

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(SEND, (self._dest,), detail=self._message_id)

    def describe(self) -> str:
        return f"{self.call_name} to rank {self._dest}{diagnostics.tagged(self._tag)} ({diagnostics.call_site()})"


class ReceiveOperation(Operation):
    """A message that is wanted; a `matching.Receive`. `begun`: what `Endpoint.try_receive` has begun."""

    def __init__(
        self,
        endpoint: Endpoint,
        array: np.ndarray,
        sources: tuple[int, ...],
        tag: int,
        call_name: str,
        begun: tuple[MPI.Request, tuple[int, int]] | None = None,
    ):
        self.members = endpoint.board.rank, *sources
        self._endpoint, self._array, self.call_name = endpoint, array, call_name
        self.group, self.sources, self.tag = endpoint.members, sources, tag
        self._request, self.received = begun or (None, None)
        if not begun and (message := endpoint.matcher.post(self)):
            self.accept(message)

    def accept(self, message: Envelope) -> None:
        """Receive a message that this takes."""
        array, rank = self._array, self._endpoint.board.rank
        self.received = message.source, message.tag
        self._endpoint.board.accept(message.source, message.message_id)
        if message.dtype == array.dtype.num and message.count == array.size:
            self._request = message.content.Irecv(array)
        else:
            self.error = MismatchError(f"rank {rank}, {diagnostics.message_mismatch(array, message, diagnostics.call_site())}")
            self._endpoint.discard(message)

    def advance(self) -> bool:
        if self._request is None and self.error is None:
            self._endpoint.poll()
        return self._request.Test() if self._request is not None else self.error is not None

    def is_matched(self) -> bool:
        return self._request is not None

    def cancel(self) -> None:
        if self in self._endpoint.matcher.posted:
            self._endpoint.matcher.posted.remove(self)

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(RECV, self.sources)

    def describe(self) -> str:
        """Describe where it waits, and which message has come that it does not take."""
        whom = f"rank {self.sources[0]}" if len(self.sources) == 1 else "any rank"
        refused = self._endpoint.matcher.refused(self)
        lies = f"; rank {refused.source} has sent it {refused}, which this does not take" if refused else ""
        return f"{self.call_name} from {whom}{diagnostics.tagged(self.tag)} ({diagnostics.call_site()}{lies})"

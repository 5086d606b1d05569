"""Point-to-point messages over MPI, probed before they are received, so that a message that does not fit raises MismatchError.

Each group has an MPI communicator for its messages. The tag that MPI sees encodes the epoch, the dtype and the caller's tag. A message is
taken out of MPI's queue by a matched probe (MPI 4.1, section 3.8.2), matched here (`matching.Matcher`), and received by ``Message.Irecv``
once a receive takes it. Both sides count messages on the status board: a rank that has read fewer than were sent to it is not deadlocked.
"""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib.collectives import diagnostics
from course_lib.collectives.calls import DTYPES, LARGEST_TAG, RECV, SEND, WILDCARD
from course_lib.collectives.deadlock.board import Board
from course_lib.collectives.deadlock.layout import ACCEPTED_IDS, ACCEPTED_SLOTS, READ_COUNT, SENT_COUNT, STATE, pair_offset
from course_lib.collectives.errors import MismatchError
from course_lib.collectives.progress.matching import Envelope, Matcher
from course_lib.collectives.progress.operations import Operation, WaitCondition, progress_state
from course_lib.collectives.snapshot import COMPUTING, WAITING

ANY_SOURCE, ANY_TAG, BYTE = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.BYTE  # module globals: fewer attribute lookups
DTYPE_BITS, TAG_BITS, EPOCHS = 5, LARGEST_TAG.bit_length(), 0x1FF
LARGEST_MPI_TAG = (EPOCHS + 1 << DTYPE_BITS + TAG_BITS) - 1
StartedReceive = tuple[MPI.Request, tuple[int, int]]  # with the source (world rank) and the tag of its message
EPOCH_SHIFT = DTYPE_BITS + TAG_BITS
NUMBER_BITS = 40  # low bits of a message id: its number among those between two ranks of the group; the group's context is above


class _Peer:
    """Message counts with one rank of the group, this one's among them, and the places of that rank's words on the status board."""

    __slots__ = ("accepted_ids", "local_rank", "rank", "read_count", "sent", "sent_count", "taken")

    def __init__(self, rank: int, local_rank: int):
        pair = pair_offset(rank)
        self.rank, self.local_rank, self.sent, self.taken = rank, local_rank, 0, 0
        self.sent_count, self.read_count, self.accepted_ids = pair + SENT_COUNT, pair + READ_COUNT, pair + ACCEPTED_IDS


class Endpoint:
    """Endpoint of one group's messages on one rank; all methods are called with interrupts deferred.

    Parameters
    ----------
    comm : MPI.Comm
        The group's communicator for messages, used for nothing else.
    members : tuple of int
        World ranks, in the group's order.
    board : Board
    context : int
        The group's context id, see `progress.rendezvous`.

    Raises
    ------
    RuntimeError
        The tags of this MPI are too small.
    """

    def __init__(self, comm: MPI.Comm, members: tuple[int, ...], board: Board, context: int):
        if comm.Get_attr(MPI.TAG_UB) < LARGEST_MPI_TAG:
            raise RuntimeError(
                f"expected an MPI whose tags go up to {LARGEST_MPI_TAG}; this one's end at {comm.Get_attr(MPI.TAG_UB)}. "
                "The course is tested with MPICH: pip install mpich."
            )
        self.comm, self.members, self.board = comm, members, board
        self.matcher = Matcher()
        self._peers = [_Peer(rank, place) for place, rank in enumerate(members)]
        self._peer_of = {peer.rank: peer for peer in self._peers}
        self._id_base = context << NUMBER_BITS
        self._status, self._mine = MPI.Status(), board.mine
        self._isend, self._improbe = comm.Isend, comm.Improbe
        progress_state.poll_hooks.append(self.poll)
        progress_state.reset_hooks.append(self._reset)

    def send(self, array: np.ndarray, dest: int, tag: int) -> MPI.Request:
        """Start to send an array to a world rank."""
        peer = self._peer_of[dest]
        peer.sent += 1
        self._mine[peer.sent_count] += 1
        return self._isend(array, peer.local_rank, _wire_tag(array.dtype.num, tag))

    def _reset(self) -> None:
        for message in self.matcher.clear():
            self.discard(message)

    def message_id(self, dest: int) -> int:
        """Return the id of the latest message sent to a rank."""
        return self._id_base + self._peer_of[dest].sent

    def poll(self) -> bool:
        """Take the next arrived message out of MPI's queue and match it; return whether there was one."""
        if (handle := self._improbe(ANY_SOURCE, ANY_TAG, self._status)) is None:
            return False
        self._dispatch(handle, self._count_arrival())
        return True

    def try_receive(self, array: np.ndarray, sources: tuple[int, ...], tag: int, polls: range) -> StartedReceive | None:
        """Start a receive on the fast path: probe for the next message and receive it directly if it matches.

        Parameters
        ----------
        array : numpy.ndarray
            The receive buffer.
        sources : tuple of int
            World ranks.
        tag : int
            May be `calls.WILDCARD`.
        polls : range
            Number of probes.

        Returns
        -------
        StartedReceive or None
            The request, with the source (world rank) and tag of the message. None if the receive has to be posted (`ReceiveOperation`):
            other messages or receives are queued, no message has arrived, or the one that has does not match. That message has then been
            moved into the matcher, so None does not mean that nothing was taken out of MPI's queue.
        """
        matcher, improbe, status = self.matcher, self._improbe, self._status
        if matcher.posted or matcher.unexpected:
            return None
        dtype, nbytes = array.dtype.num, array.nbytes
        for _ in polls:
            if (handle := improbe(ANY_SOURCE, ANY_TAG, status)) is not None:
                peer, wire_tag = self._count_arrival(), status.Get_tag()
                received_tag = wire_tag & LARGEST_TAG
                expected = _wire_tag(dtype, received_tag if tag == WILDCARD else tag)
                if wire_tag == expected and status.Get_count(BYTE) == nbytes and peer.rank in sources:
                    self._mine[peer.accepted_ids + peer.taken % ACCEPTED_SLOTS] = self._id_base + peer.taken
                    return handle.Irecv(array), (peer.rank, received_tag)
                self._dispatch(handle, peer)
                break
        return None

    def _count_arrival(self) -> _Peer:
        """Count the message just taken out of MPI's queue, and return its sender."""
        mine = self._mine
        peer = self._peers[self._status.Get_source()]
        peer.taken += 1
        if mine[STATE] == WAITING:  # not one that has ended its cell and completes what it left open, nor a silent one
            mine[STATE] = COMPUTING  # before READ_COUNT grows, which until then showed that this rank need not wait: see `Board.resume`
        mine[peer.read_count] += 1
        return peer

    def _dispatch(self, handle: MPI.Message, peer: _Peer) -> None:
        """Match the message just taken: start its receive, queue it as unexpected, or discard it if it is of another epoch."""
        wire_tag, nbytes = self._status.Get_tag(), self._status.Get_count(BYTE)
        dtype = wire_tag >> TAG_BITS & (1 << DTYPE_BITS) - 1
        count, message_id = nbytes // DTYPES[dtype].itemsize, self._id_base + peer.taken
        message = Envelope(peer.rank, self.members, wire_tag & LARGEST_TAG, dtype, count, handle, message_id)
        if wire_tag >> EPOCH_SHIFT != progress_state.epoch & EPOCHS:
            self.discard(message)
        elif receive := self.matcher.arrive(message):
            receive.accept(message)

    def discard(self, message: Envelope) -> None:
        """Receive a message into a scratch buffer, so that its sender and MPI can release it.

        One of this rank's own is received to the end. Otherwise MPI would go on copying it behind the next cells' calls, and keep back what
        this rank has to acknowledge to the others: they would wait for it after this rank has left MPI.
        """
        scratch = bytearray(message.count * DTYPES[message.dtype].itemsize)
        request = message.content.Irecv([scratch, MPI.BYTE])
        if message.source == self.board.rank:
            request.Wait()
        else:
            progress_state.abandoned.append((progress_state.epoch - 1, request))


def _wire_tag(dtype: int, tag: int) -> int:
    """Return the tag that MPI sees: epoch, dtype and tag, from the high bits to the low."""
    return (progress_state.epoch & EPOCHS) << EPOCH_SHIFT | dtype << TAG_BITS | tag


class SendOperation(Operation):
    """A send in flight; `request`: that of a send which has been started already, else it is started here."""

    def __init__(self, endpoint: Endpoint, array: np.ndarray, dest: int, tag: int, call_name: str, request: MPI.Request | None = None):
        self.members = endpoint.board.rank, dest
        self._endpoint, self._dest, self._tag, self.call_name, self._array = endpoint, dest, tag, call_name, array
        self._request = request or endpoint.send(array, dest, tag)
        self._message_id = endpoint.message_id(dest)

    def advance(self) -> bool:
        if self._request.Test():
            return True
        self._endpoint.poll()  # two ranks that send to each other must both take messages
        return False

    def is_matched(self) -> bool:
        return self._endpoint.board.accepted(self._endpoint.board.rank, self._dest, self._message_id)

    def wait_condition(self) -> WaitCondition:
        return WaitCondition(SEND, (self._dest,), detail=self._message_id)

    def describe(self) -> str:
        return f"{self.call_name} to rank {self._dest}{diagnostics.tagged(self._tag)} ({diagnostics.call_site()})"


class ReceiveOperation(Operation):
    """A receive in flight; implements `matching.Receive`. `begun`: the result of `Endpoint.try_receive`, if not None."""

    def __init__(
        self, endpoint: Endpoint, array: np.ndarray, sources: tuple[int, ...], tag: int, call_name: str, begun: StartedReceive | None = None
    ):
        self.members = endpoint.board.rank, *sources
        self._endpoint, self._array, self.call_name = endpoint, array, call_name
        self.group, self.sources, self.tag = endpoint.members, sources, tag
        self._request, self.received = begun or (None, None)
        if not begun and (message := endpoint.matcher.post(self)):
            self.accept(message)

    def accept(self, message: Envelope) -> None:
        """Start to receive a message that matches this receive; if its dtype or count differs, complete with a MismatchError."""
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
        """Describe the call and its place in the student's code, with any message from its sources that does not match."""
        whom = f"rank {self.sources[0]}" if len(self.sources) == 1 else "any rank"
        refused = self._endpoint.matcher.refused(self)
        lies = f"; rank {refused.source} has sent {refused}, which does not match" if refused else ""
        return f"{self.call_name} from {whom}{diagnostics.tagged(self.tag)} ({diagnostics.call_site()}{lies})"

"""Coordinator of isolated ranks: does what MPI would do, detects deadlocks, and counts traffic.

The broker passes every call to it. It matches messages (`mailbox`), waits until all ranks have entered a collective (`rendezvous`),
computes the result (`reference_collectives`), and returns the answers to send. Its deadlock detector is that of ranks with a status board,
so the same mistake gets the same message.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from course_lib.collectives import diagnostics
from course_lib.collectives.calls import COLLECTIVES, DTYPES, IREDUCE_SCATTER, LARGEST_TAG, RECV, REDUCE_SCATTER, SEND, UNEVEN, WILDCARD
from course_lib.collectives.coordination.mailbox import EAGER_BYTES, Mailbox, PostedReceive
from course_lib.collectives.coordination.reference_collectives import ProtocolViolation, input_bytes, is_int_list, results
from course_lib.collectives.coordination.rendezvous import Arrival, ArrivalTable, CollectiveKey
from course_lib.collectives.coordination.traffic_counter import TrafficCounter
from course_lib.collectives.coordination.virtual_network import HeldFrame, VirtualNetwork
from course_lib.collectives.deadlock.detector import Detector, find_deadlocked, rank_mask
from course_lib.collectives.progress.matching import Envelope
from course_lib.collectives.snapshot import COMPUTING, DEADLOCKED, FINISHED, GONE, RAISED, WAITING, RankView, Snapshot

ISOLATED_CONFIRM_SECONDS = 0.2  # seconds for which a deadlock must be seen unchanged
MAX_NOTED_MESSAGES = 10_000  # messages recorded per rank and request
MAX_PENDING_OPERATIONS = 20_000  # operations in flight per rank

Answer = tuple[int, dict, bytes]  # a frame to a rank: the rank, header, payload


class PendingOperation(NamedTuple):
    """An operation in flight on a rank.

    Attributes
    ----------
    operation : int
        An index in `calls.OPERATIONS`.
    ranks : tuple of int
        The group of a collective, or the peers of a message.
    key : CollectiveKey or None
        None for a message.
    started : bool
        Whether the call returned at once on the rank.
    """

    operation: int
    ranks: tuple[int, ...]
    key: CollectiveKey | None
    started: bool = True


@dataclass
class RankState:
    """State of one rank since its latest request began.

    Attributes
    ----------
    state : int
        One of `collectives.snapshot`.
    round, targets : int
        Number of the request, and the mask of the ranks that were asked; see `RankView`.
    text : str
        The place where the rank waits, or the error that it raised.
    busy : bool
        Whether it has a request to do.
    waits : int or None
        Number of the call in which it waits.
    calls : dict of int to PendingOperation
        Operations in flight, by the number that the rank gave the call.
    received : dict of int to bool
        For large sends: True once the message has been received, False if the rank has asked before that.
    numbers : dict of tuple to int
        By group: twice the number of collectives in this request.
    deadlocked_in : PendingOperation or None
        The operation that failed with a DeadlockError.
    failed : (str, str) or None
        Name and message of the first error that the coordinator sent to the rank.
    traffic : TrafficCounter
    messages : list of (str, int, int)
        "to" or "from", the other rank, and the size in bytes; of a collective its name, -1 and 0.
    gates : list of tuple
        Gates that the rank has not reached yet, see `engine.traffic_gates`.
    """

    state: int = COMPUTING
    round: int = 0
    targets: int = 0
    text: str = ""
    busy: bool = False
    waits: int | None = None
    calls: dict[int, PendingOperation] = field(default_factory=dict)
    received: dict[int, bool] = field(default_factory=dict)
    numbers: dict[tuple[int, ...], int] = field(default_factory=lambda: defaultdict(int))
    deadlocked_in: PendingOperation | None = None
    failed: tuple[str, str] | None = None
    traffic: TrafficCounter = field(default_factory=TrafficCounter)
    messages: list[tuple[str, int, int]] = field(default_factory=list)
    gates: list[tuple[float, ...]] = field(default_factory=list)


class Coordinator:
    """Coordinates the calls of `size` ranks; runs in the broker's thread.

    Attributes
    ----------
    network : VirtualNetwork
        Carries the messages of `Messenger`.
    """

    def __init__(self, size: int):
        self.size, self.round, self.network = size, 0, VirtualNetwork(size)
        self._ranks = [RankState() for _ in range(size)]
        self._rendezvous, self._mailbox, self._detector = ArrivalTable(size), Mailbox(size), Detector(ISOLATED_CONFIRM_SECONDS)
        self._contexts: dict[tuple[int, ...], int] = {}  # the number of each group, by its ranks
        self._discard_messages = False  # a rank has failed: messages in flight must not match later receives

    def begin(
        self, rank: int, turn: int, targets: int, gates: list[tuple[float, float]] | None = None, keep: bool = False, alone: bool = True
    ) -> None:
        """Begin a request of a rank.

        Parameters
        ----------
        rank : int
        turn : int
            Number of the request; several ranks have the same.
        targets : int
            Mask of the ranks that are asked.
        gates : list, optional
            See `engine.traffic_gates`.
        keep : bool
            Whether to keep the arrays that the rank sends.
        alone : bool
            Whether messages in flight from earlier requests are discarded.
        """
        left = {number: call for number, call in self._ranks[rank].calls.items() if call.key is None}  # messages may outlive a request
        if turn > self.round and (alone or self._discard_messages):
            self._mailbox.clear()
            self._discard_messages = False
            for it in self._ranks:
                it.calls.clear()
            left = {}
        if turn > self.round:
            self.network.begin()
        self._mailbox.begin(rank)
        self._rendezvous.leave_all(rank)
        it = RankState(round=turn, targets=targets, busy=True, traffic=TrafficCounter(keep), gates=list(gates or []), calls=left)
        it.received = {number: told for number, told in self._ranks[rank].received.items() if number in left}
        self._ranks[rank] = it
        self.round = max(self.round, turn)

    # Records of a rank since `begin`.

    def sent(self, rank: int) -> list[list]:
        """Return a rank's traffic, with that of incomplete collectives: operation, ranks, calls, and payload in bytes."""
        return self._ranks[rank].traffic.entries(rank, self._rendezvous.of(rank))

    def buffered(self, rank: int) -> int:
        """Return the largest number of bytes that a rank had in flight to itself at any time."""
        return self._mailbox.buffered[rank]

    def waiting_bytes(self) -> int:
        """Return the bytes in messages and collectives that wait for other ranks."""
        waiting = (self._rendezvous, self._mailbox, self.network)
        return sum(part.waiting_bytes() for part in waiting)

    def messages(self, rank: int) -> list[tuple[str, int, int]]:
        """Return a rank's messages and collectives in order; see `RankState.messages`."""
        return self._ranks[rank].messages

    def unended(self, rank: int) -> int:
        """Count a rank's incomplete operations; a large send counts until the rank has waited for it or asked about it."""
        return sum(call.started for call in self._ranks[rank].calls.values())

    def arrays(self, rank: int) -> list[np.ndarray] | None:
        """Return the arrays that a rank has sent, flat and in order; None unless `begin` was told to keep them."""
        return self._ranks[rank].traffic.kept

    def failed(self, rank: int) -> tuple[str, str] | None:
        """Return name and message of the first error sent to a rank: it tells about other ranks, so nothing that follows it may count."""
        return self._ranks[rank].failed

    def gate(self, rank: int) -> tuple[float, ...]:
        """Pass a rank's next gate: return bytes sent, bytes required, the gate's number (0.0 if refused), and the limit if there is one."""
        if not self._ranks[rank].gates:
            raise ProtocolViolation("it asked for a gate that does not exist")
        needed, number, *most = self._ranks[rank].gates.pop(0)
        sent = sum(payload for _, members, _, payload in self.sent(rank) if len(members) > 1)  # to others
        return sent, needed, number if sent >= needed and sent <= min(most, default=sent) else 0.0, *most

    @property
    def busy(self) -> set[int]:
        """The ranks that have a request to do."""
        return {r for r, rank in enumerate(self._ranks) if rank.busy}

    def is_waiting(self, rank: int) -> bool:
        """Return whether a rank waits in a call."""
        return self._ranks[rank].waits is not None

    def any_waiting(self) -> bool:
        """Return whether any rank waits in a call."""
        return any(rank.waits is not None for rank in self._ranks)

    # Events.

    def finish(self, rank: int, raised: str) -> None:
        """End a rank's request; `raised`: the error and its place, empty if there was none."""
        it = self._ranks[rank]
        self._discard_messages |= bool(raised)
        if it.deadlocked_in and raised.startswith("DeadlockError"):
            it.state = DEADLOCKED  # it still shows the call in which it was deadlocked
        else:
            it.state, it.text = RAISED if raised else FINISHED, raised[:200]
        it.busy, it.waits = False, None
        self.network.note("replies", rank)

    def mark_gone(self, rank: int) -> None:
        """Mark a rank as ended: its process has exited, or it was dropped."""
        self._ranks[rank].waits, self._ranks[rank].state = None, GONE

    def revive(self, rank: int) -> None:
        """Undo `mark_gone`, for a rank that the scheduler had stopped."""
        if self._ranks[rank].state == GONE:
            self._ranks[rank].state = COMPUTING

    def call(self, rank: int, header: dict, payload: bytes) -> list[Answer]:
        """Handle a ``call`` frame; return the answers that are due now, to any ranks."""
        it = self._ranks[rank]
        if not it.busy:  # its bytes would be counted for no request
            raise ProtocolViolation("it called a collective when it had nothing to do")
        group, signature, place = self._checked(rank, header)
        number = _number(header.get("call"))
        if signature[0] in (SEND, RECV):
            return self._message(rank, number, header.get("peers"), group, signature, payload)
        it.numbers[group] += 2
        self._note(rank, COLLECTIVES[signature[0]], -1, 0)
        key = group, it.round << 32 | it.numbers[group]  # unique across requests
        cut = signature[0] in UNEVEN | {REDUCE_SCATTER, IREDUCE_SCATTER}
        said = {"signature": signature, "call": number, "counts": header.get("counts") if cut else None}
        if len(payload) != input_bytes(said, group.index(rank), len(group)):
            raise ProtocolViolation("it sent an array whose size differs from the announced one")
        self._rendezvous.arrive(rank, key, Arrival(said, payload))
        started = header.get("start") is True
        it.calls[number], it.deadlocked_in = PendingOperation(signature[0], group, key, started), None
        if not started:
            it.waits, it.state, it.text = number, WAITING, place
        found = self._rendezvous.pop_complete(key)
        return self._complete_collective(group, found) if found else []

    def wait(self, rank: int, call: object, place: object) -> list[Answer]:
        """Handle a ``wait`` frame: the rank blocks until one of its calls is complete."""
        it, number = self._ranks[rank], _number(call)
        if not it.busy:
            return []
        if number not in it.calls:  # answered already, or started in a request that failed
            said = "this was started in a cell that failed or was interrupted, and is lost: start it again."
            return [(rank, {"answer": number, "error": "CollectiveError", "message": said}, b"")]
        if answers := self.test(rank, call):
            return answers
        it.waits, it.state, it.text, it.deadlocked_in = number, WAITING, str(place)[:200], None
        return []

    def test(self, rank: int, call: object) -> list[Answer]:
        """Handle a ``test`` frame: answer a large send once it has been received."""
        it, number = self._ranks[rank], _number(call)
        received = number in it.calls and it.received.setdefault(number, False)
        return self._answer(rank, number) if received else []

    def _checked(self, rank: int, header: dict) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        members, signature = header.get("members"), header.get("signature")
        if not (is_int_list(members, 0, self.size) and len(set(members)) == len(members) and rank in members):
            raise ProtocolViolation("it called a collective on an invalid group")
        valid = is_int_list(signature, -1, 1 << 62) and len(signature) == 4
        if not (valid and (0 < signature[0] < len(COLLECTIVES) or signature[0] in (SEND, RECV))):
            raise ProtocolViolation("it made a call that does not exist")
        return tuple(members), tuple(signature), str(header.get("place", ""))[:200]

    # Point-to-point messages.

    def _message(self, rank: int, number: int, others: object, group: tuple, signature: tuple, payload: bytes) -> list[Answer]:
        """Handle a send or a receive."""
        operation, dtype, count, tag = signature
        known = is_int_list(others, 0, self.size) and len(set(others)) == len(others) and others and set(others) <= set(group)
        if not known or dtype not in DTYPES or count < 0 or not (0 <= tag <= LARGEST_TAG or (tag == WILDCARD and operation == RECV)):
            raise ProtocolViolation("it sent an invalid message")
        if operation == SEND and (len(others) != 1 or len(payload) != count * DTYPES[dtype].itemsize):
            raise ProtocolViolation("it sent a message whose size differs from the announced one")
        self._ranks[rank].calls[number], self._ranks[rank].deadlocked_in = PendingOperation(operation, tuple(others), None), None
        if len(self._ranks[rank].calls) > MAX_PENDING_OPERATIONS:
            raise ProtocolViolation("it has too many messages in flight")
        answers: list[Answer] = []
        if operation == RECV:
            pair = self._mailbox.post_receive(PostedReceive(rank, number, group, tuple(others), tag, dtype, count))
        else:
            self._ranks[rank].traffic.message(group, dtype, tag, payload, others == [rank])
            self._note(rank, "to", others[0], len(payload))
            pair = self._mailbox.send(Envelope(rank, group, tag, dtype, count, payload, number), others[0])
            if len(payload) <= EAGER_BYTES:
                answers += self._answer(rank, number)
        return answers + (self._deliver(*pair) if pair else [])

    def _deliver(self, sent: Envelope, wanted: PostedReceive) -> list[Answer]:
        """Answer a receive and, if due, the send that it has matched."""
        self._note(wanted.rank, "from", sent.source, len(sent.content))
        fits = (sent.dtype, sent.count) == (wanted.dtype, wanted.count)
        told = {"source": sent.source, "tag": sent.tag} | ({} if fits else {"sent": [sent.dtype, sent.count]})
        answers = self._answer(wanted.rank, wanted.message_id, told, sent.content if fits else b"")
        if len(sent.content) <= EAGER_BYTES or not self._ranks[sent.source].received.setdefault(sent.message_id, True):
            answers += self._answer(sent.source, sent.message_id)
        return answers

    def _note(self, rank: int, way: str, other: int, nbytes: int) -> None:
        if len(self._ranks[rank].messages) < MAX_NOTED_MESSAGES:
            self._ranks[rank].messages.append((way, other, nbytes))

    def _answer(self, rank: int, number: int, told: dict | None = None, data: bytes = b"") -> list[Answer]:
        """Complete a rank's operation and return its answer; empty if it was answered before. `told`: further keys of the header."""
        it = self._ranks[rank]
        it.received.pop(number, None)
        if it.calls.pop(number, None) is None:
            return []
        if it.waits == number:
            it.waits, it.state = None, COMPUTING
        return [(rank, {"answer": number, **(told or {})}, data)]

    # Messages with deadlines.

    def post(self, rank: int, header: dict, payload: bytes) -> None:
        """Handle a ``post`` frame."""
        to, messenger = header.get("post"), _number(header.get("messenger"))
        if type(to) is not int or not 0 <= to < self.size or not self._ranks[rank].busy:
            raise ProtocolViolation("it sent an invalid message")
        self._ranks[rank].traffic.message(tuple(range(self.size)), -1, 0, payload, to == rank)
        self._note(rank, "to", to, len(payload))
        self.network.post(rank, header, messenger, bytes(payload))

    def take(self, rank: int, header: dict) -> None:
        """Handle a ``take`` frame."""
        numbers, seconds = [_number(header.get(key)) for key in ("take", "messenger", "listen")], header.get("seconds")
        if type(seconds) is not float or not self._ranks[rank].busy:
            raise ProtocolViolation("it asked for a message in an invalid way")
        self.network.take(rank, *numbers, seconds)

    def advance(self) -> tuple[list[Answer], list[HeldFrame]]:
        """Advance the network if all ranks are blocked or done; see `VirtualNetwork.advance`."""
        present = [rank for rank in self._ranks if rank.round == self.round]
        if sum(1 << r for r, rank in enumerate(self._ranks) if rank.round == self.round) & present[0].targets != present[0].targets:
            return [], []  # one has not begun
        for r, rank in enumerate(self._ranks):
            if rank.busy and rank.waits is None and rank.state != GONE and not self.network.is_blocked(r):
                return [], []
        return self.network.advance()

    # Collectives.

    def _complete_collective(self, group: tuple[int, ...], found: list[Arrival]) -> list[Answer]:
        """Answer a collective that all ranks of its group have entered: with the results, or a MismatchError for all."""
        signatures, answers = [arrival.header["signature"] for arrival in found], []
        name = diagnostics.group_name(group, self.size)
        error, got = None, [b""] * len(group)
        if len(set(signatures)) > 1:
            error = "MismatchError", diagnostics.mismatch(dict(zip(group, signatures, strict=True)), name)
        else:
            try:
                got = results([arrival.payload for arrival in found], [arrival.header for arrival in found])
            except TypeError:  # NumPy's, such as for a bitwise operation on floats
                error = "CollectiveError", f"{diagnostics.describe(*signatures[0])}: this operation is not defined for this dtype."
        for i, (r, arrival, data) in enumerate(zip(group, found, got, strict=True)):
            if error:
                answers += self._fail(r, arrival.header["call"], *error)
            else:
                self._ranks[r].traffic.collective(group, arrival, i)
                answers += self._answer(r, arrival.header["call"], data=data)
        return answers

    def _fail(self, rank: int, number: int, name: str, message: str) -> list[Answer]:
        if self._ranks[rank].failed is None:
            self._ranks[rank].failed = name, message
        return self._answer(rank, number, {"error": name, "message": message})

    # Deadlocks.

    def snapshot(self) -> Snapshot:
        """Take a snapshot of all ranks."""
        return Snapshot(tuple(self._view(r, rank) for r, rank in enumerate(self._ranks)))

    def _view(self, r: int, rank: RankState) -> RankView:
        stands = rank.deadlocked_in if rank.waits is None else rank.calls[rank.waits]
        if stands is None or rank.state == COMPUTING:
            return RankView(r, rank.state, rank.round, rank.targets, text=rank.text)
        operation, others, key, _ = stands
        name, arrived = -1 - r, 0
        if key:
            name = self._contexts.setdefault(key[0], len(self._contexts) + 1) << 64 | key[1]
            arrived = rank_mask(set(others) - set(self._rendezvous.missing(key)))
        return RankView(r, rank.state, rank.round, rank.targets, name, operation, rank_mask({*others, r}), arrived, text=rank.text)

    def deadlocked(self, now: float) -> list[Answer]:
        """Detect deadlocks; return a DeadlockError for every deadlocked rank, with the same message, once it is confirmed."""
        if not self.any_waiting():
            return []
        snapshot = self.snapshot()
        found = find_deadlocked(snapshot)
        if not self._detector.is_confirmed(snapshot, found, now):
            return []
        for view in found:
            rank = self._ranks[view.rank]
            if refused := self._mailbox.refused(view.rank, rank.waits):
                rank.text = f"{rank.text.removesuffix(')')}; rank {refused.source} has sent {refused}, which does not match)"
        message, answers = diagnostics.deadlock(self.snapshot()), []
        for view in found:
            rank = self._ranks[view.rank]
            rank.deadlocked_in = rank.calls[rank.waits]
            if rank.deadlocked_in.key:
                self._rendezvous.leave(view.rank, rank.deadlocked_in.key)
            self._mailbox.forget(view.rank, rank.waits)
            answers += self._fail(view.rank, rank.waits, "DeadlockError", message)
        return answers


def _number(call: object) -> int:
    """Check the number that a rank gave one of its calls."""
    if type(call) is not int or abs(call) >= 1 << 63:
        raise ProtocolViolation("it made a call without a valid number")
    return call

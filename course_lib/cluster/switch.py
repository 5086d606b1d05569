"""Collectives without ranks: who has called what, what each gets, who waits in vain, and the bytes that each has sent.

The relay asks it about every call. It keeps the status board that ranks otherwise share (`collectives.board`), so that the same
mistakes give the same sentences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from course_lib.cluster.arrivals import Arrival, Arrivals
from course_lib.cluster.post import ANY, Notice, Post
from course_lib.cluster.results import DTYPES, Broken, brought, numbers_in, results
from course_lib.cluster.tally import Tally
from course_lib.cluster.words import Words
from course_lib.collectives import board as status
from course_lib.collectives import calls, explain
from course_lib.collectives.calls import LARGEST_TAG
from course_lib.collectives.watch import picture_of, sure

SURE = 0.2  # seconds that a deadlock must be seen unchanged
EAGER = 64  # bytes of a message that is on its way at once; MPI's number is larger, and nobody may rely on it
MOST_MESSAGES = 10_000  # of a rank in one request, that are noted

Answer = tuple[int, dict, bytes]  # to which rank


class Switch:
    """The collectives of `size` ranks."""

    def __init__(self, size: int):
        self.size = size
        self._board = Words(size)
        self._waiting: dict[int, dict] = {}  # what a rank that waits has called, as it said
        self._open: list[dict] = [{} for _ in range(size)]  # what each has begun and not ended: operation, members, key
        self._told = [{} for _ in range(size)]  # of a large message among these: has it been received (True), or asked about (False)?
        self._arrivals, self._post = Arrivals(size), Post(size)
        self._spoiled = False  # a rank has failed, and what is on its way must meet nothing new
        self._numbers: list[dict] = [defaultdict(int) for _ in range(size)]
        self._tally = [Tally() for _ in range(size)]
        self._messages: list[list[tuple[str, int, int]]] = [[] for _ in range(size)]
        self._gates: list[list[tuple[float, float]]] = [[] for _ in range(size)]
        self._picture, self._since = None, 0.0
        self._busy: set[int] = set()  # ranks that were asked for something
        self._failed: dict[int, tuple[str, str]] = {}
        for r in range(size):
            self._board.put(r, STATE=status.COMPUTING)

    def begin(
        self, rank: int, turn: int, targets: int, gates: list[tuple[float, float]] | None = None, keep: bool = False, alone: bool = True
    ) -> None:
        """A rank is asked to do something: in which turn, (a bit mask) with whom, with which `engine.gates`; keep what it sends?

        `alone`: no message of an earlier turn is to meet it.
        """
        if turn > self._board.round and (alone or self._spoiled):
            self._post.clear()
            self._spoiled = False
        self._post.begin(rank)
        self._gates[rank], self._tally[rank], self._messages[rank] = list(gates or []), Tally(keep), []
        self._busy.add(rank)
        self._waiting.pop(rank, None)
        self._open[rank].clear()
        self._told[rank].clear()
        self._arrivals.leave_all(rank)
        self._numbers[rank].clear()
        self._failed.pop(rank, None)
        self._board.round = max(self._board.round, turn)
        self._board.put(rank, "", STATE=status.COMPUTING, ROUND=turn, TARGETS=targets, KEY=0)

    def sent(self, rank: int) -> list[list]:
        """What a rank has sent since `begin`, to others who have not come, too: operation, ranks, calls and payload in bytes."""
        return self._tally[rank].entries(rank, self._arrivals.of(rank))

    def parked(self, rank: int) -> int:
        """The most bytes that a rank had at once, since `begin`, in messages to itself."""
        return self._post.parked[rank]

    def messages(self, rank: int) -> list[tuple[str, int, int]]:
        """The messages of a rank since `begin`, in their order: "to" or "from" which rank, and the bytes."""
        return self._messages[rank]

    def unended(self, rank: int) -> int:
        """How much that a rank has begun has not ended, so it has not waited for it; a large message that it sent, until it asks."""
        return len(self._open[rank])

    def arrays(self, rank: int) -> list[np.ndarray] | None:
        """What a rank has sent since `begin`, if it was to be kept; flat, the latest at the end."""
        return self._tally[rank].kept

    def failed(self, rank: int) -> tuple[str, str] | None:
        """The error that a rank got here since `begin`, name and message: it tells of other ranks, so what follows it cannot count."""
        return self._failed.get(rank)

    def gate(self, rank: int) -> tuple[float, ...]:
        """Bytes that a rank has sent, bytes that it must have sent for its next gate, the gate's number, and perhaps the most."""
        if not self._gates[rank]:
            raise Broken("it came to a gate where there is none")
        needed, number, *most = self._gates[rank].pop(0)
        sent = sum(payload for _, members, _, payload in self.sent(rank) if len(members) > 1)  # to others
        return sent, needed, number if sent >= needed and sent <= min(most, default=sent) else 0.0, *most

    def finish(self, rank: int, raised: str) -> None:
        """A rank has done what it was asked for, and has raised an error or (empty) not."""
        self._busy.discard(rank)
        self._waiting.pop(rank, None)
        self._spoiled |= bool(raised)
        if rank not in self._failed or self._board.rows[rank][status.STATE] == status.WAITING:  # else the board says where it gave up
            self._board.put(rank, raised[:200], STATE=status.RAISED if raised else status.FINISHED, KEY=0)

    def gone(self, rank: int) -> None:
        """A rank's process has ended."""
        self._waiting.pop(rank, None)
        self._board.put(rank, STATE=status.GONE, KEY=0)

    def back(self, rank: int) -> None:
        """A rank that counted as ended goes on."""
        if self._board.rows[rank][status.STATE] == status.GONE:
            self._board.put(rank, STATE=status.COMPUTING)

    @property
    def busy(self) -> set[int]:
        """The ranks that have not answered what they were asked for."""
        return self._busy

    def waits_in_a_call(self, rank: int) -> bool:
        """Whether a rank waits in a call."""
        return rank in self._waiting

    def call(self, rank: int, header: dict, payload: bytes) -> list[Answer]:
        """A rank calls a collective; the answers that are due now, to whom it may be."""
        if rank not in self._busy:  # its bytes would count for no request
            raise Broken("it called a collective when it had nothing to do")
        members, what, place = self._checked(rank, header)
        key, call = tuple(members), _name_of(header.get("call"))
        if what[0] in (calls.SEND, calls.RECV):
            return self._message(rank, header, key, what, payload)
        self._numbers[rank][key] += 1
        number = (hash(key) & 0xFFFFFF) << explain.NUMBER_BITS | self._numbers[rank][key]
        cut = what[0] in (calls.ALLTOALLV, calls.REDUCE_SCATTER, calls.IREDUCE_SCATTER)
        said = {"what": tuple(what), "call": call, "counts": header.get("counts") if cut else None}
        if len(payload) != brought(said, key.index(rank), len(key)):
            raise Broken("it sent an array of another size than it said")
        self._arrivals.come(rank, (key, number), Arrival(said, payload))
        operation, dtype, count, detail = what
        if header.get("start") is True:
            self._open[rank][call] = operation, key, number
        else:
            self._waiting[rank] = {"call": call, "key": (key, number)}
            words = dict(OPERATION=operation, DTYPE=dtype, COUNT=count, DETAIL=detail, MEMBERS=_mask(key), KEY=number, STATE=status.WAITING)
            self._board.put(rank, place, **words)
        found = self._arrivals.all_at((key, number))
        return self._meet(key, found) if found else []

    def wait(self, rank: int, call: object, place: object) -> list[Answer]:
        """A rank waits for the end of what it has begun."""
        found = self._open[rank].get(_name_of(call))
        if found and rank in self._busy:
            if answers := self.asks(rank, call):
                return answers
            operation, others, number = found
            self._waiting[rank] = {"call": _name_of(call), "key": (others, number) if number else None}
            words = dict(
                OPERATION=operation, DTYPE=-1, COUNT=0, DETAIL=0, MEMBERS=_mask(others) | 1 << rank, KEY=-1 - rank, STATE=status.WAITING
            )
            self._board.put(rank, str(place)[:200], **words)
        return []

    def asks(self, rank: int, call: object) -> list[Answer]:
        """A rank asks whether something that it has begun has ended."""
        name = _name_of(call)
        taken = name in self._open[rank] and self._told[rank].setdefault(name, False)
        return self._answered(rank, name, {}, b"") if taken else []

    def _message(self, rank: int, header: dict, group: tuple, what: list[int], payload: bytes) -> list[Answer]:
        """A message that is sent, or wanted."""
        call, (operation, dtype, count, tag) = _name_of(header.get("call")), what
        others = header.get("with")
        known = numbers_in(others, 0, self.size) and len(set(others)) == len(others) and others and set(others) <= set(group)
        if not known or dtype not in DTYPES or count < 0 or not (0 <= tag <= LARGEST_TAG or (tag == ANY and operation == calls.RECV)):
            raise Broken("it sent a message that is none")
        if operation == calls.SEND and (len(others) != 1 or len(payload) != count * DTYPES[dtype].itemsize):
            raise Broken("it sent a message of another size than it said")
        self._open[rank][call] = operation, tuple(others), 0
        notice = Notice(rank, call, group, tag, dtype, count, payload, tuple(others))
        if operation == calls.SEND:
            self._tally[rank].message(group, dtype, tag, payload, others == [rank])
            self._note(rank, "to", others[0], len(payload))
            pairs, answers = self._post.send(notice), []
            if len(payload) <= EAGER:
                answers += self._answered(rank, call, {}, b"")
        else:
            pairs, answers = self._post.want(notice), []
        for sent, wanted in pairs:
            self._note(wanted.rank, "from", sent.rank, len(sent.payload))
            fits = (sent.dtype, sent.count) == (wanted.dtype, wanted.count)
            told = {"source": sent.rank, "tag": sent.tag} | ({} if fits else {"sent": [sent.dtype, sent.count]})
            answers += self._answered(wanted.rank, wanted.call, told, sent.payload if fits else b"")
            if len(sent.payload) <= EAGER or not self._told[sent.rank].setdefault(sent.call, True):
                answers += self._answered(sent.rank, sent.call, {}, b"")
        return answers

    def _note(self, rank: int, way: str, other: int, nbytes: int) -> None:
        if len(self._messages[rank]) < MOST_MESSAGES:
            self._messages[rank].append((way, other, nbytes))

    def _answered(self, rank: int, call: tuple, told: dict, data: bytes) -> list[Answer]:
        """The answer to what a rank has begun, once."""
        if self._open[rank].pop(call, None) is None:
            return []
        if self._waiting.get(rank, {}).get("call") == call:
            self._waiting.pop(rank)
            self._board.put(rank, STATE=status.COMPUTING)
        return [(rank, {"answer": list(call), **told}, data)]

    def _checked(self, rank: int, header: dict) -> tuple[list[int], list[int], str]:
        members, what = header.get("members"), header.get("what")
        if not (numbers_in(members, 0, self.size) and len(set(members)) == len(members) and rank in members):
            raise Broken("it called a collective on a group that is none")
        known = (
            numbers_in(what, -1, 1 << 62)
            and len(what) == 4
            and (0 < what[0] < len(calls.COLLECTIVES) or what[0] in (calls.SEND, calls.RECV))
        )
        if not known:
            raise Broken("it called a collective that is none")
        return members, what, str(header.get("place", ""))[:200]

    def _meet(self, members: tuple[int, ...], found: list[Arrival]) -> list[Answer]:
        """All ranks of a group have come."""
        for r, (header, _) in zip(members, found, strict=True):
            if self._waiting.get(r, {}).get("call") == header["call"]:
                self._waiting.pop(r)
                self._board.put(r, STATE=status.COMPUTING)
            self._open[r].pop(header["call"], None)
        if len({header["what"] for header, _ in found}) > 1:
            said: dict[str, list[int]] = {}
            for r, (header, _) in zip(members, found, strict=True):
                said.setdefault(explain.describe(*header["what"]), []).append(r)
            message = explain.mismatch(said, explain.group_name(members, self.size))
            return [self._error(r, h["call"], "MismatchError", message) for r, (h, _) in zip(members, found, strict=True)]
        first = found[0][0]
        try:
            got = results([payload for _, payload in found], [header for header, _ in found])
        except TypeError:  # NumPy's: an operation on bits, of numbers that have none
            message = f"{explain.describe(*first['what'])}: this operation is not for these numbers."
            return [self._error(r, h["call"], "CollectiveError", message) for r, (h, _) in zip(members, found, strict=True)]
        for i, (r, arrival) in enumerate(zip(members, found, strict=True)):
            self._tally[r].collective(members, arrival, i)
        return [(r, {"answer": list(h["call"])}, data) for r, (h, _), data in zip(members, found, got, strict=True)]

    def waits(self) -> bool:
        """Whether some rank waits in a call."""
        return bool(self._waiting)

    def stuck(self, now: float) -> list[Answer]:
        """An error for every rank that waits for one that can no longer come, when that has been so for a moment: all say the same."""
        for rank, waits in self._waiting.items():
            if waits["key"] and self._board.rows[rank][status.KEY] < 0:  # only those who have not come yet
                self._board.put(rank, MEMBERS=_mask(self._arrivals.missing(waits["key"])) | 1 << rank)
        rows = self._board.snapshot() if self._waiting else []
        stuck = [row for row in self._board.stuck(rows) if row.rank in self._waiting] if rows else ()
        picture = picture_of(rows, stuck) if stuck else None
        if picture != self._picture:
            self._picture, self._since = picture, now
        if not stuck or now - self._since < sure(rows, stuck, SURE):
            return []
        for row in stuck:
            if lies := self._post.lies(row.rank, self._waiting[row.rank]["call"]):
                text = self._board.text(row.rank).removesuffix(")")
                self._board.put(row.rank, f"{text}; rank {lies.rank} has sent it {lies}, which this does not take)")
        message = explain.deadlock(self._board)
        answers = []
        for row in stuck:
            waits = self._waiting.pop(row.rank)
            self._open[row.rank].pop(waits["call"], None)
            if waits["key"]:
                self._arrivals.leave(row.rank, waits["key"])
            self._post.forget(row.rank, waits["call"])
            self._board.put(row.rank, STATE=status.GAVE_UP)
            answers.append(self._error(row.rank, waits["call"], "DeadlockError", message))
        return answers

    def _error(self, rank: int, call: tuple, name: str, message: str) -> Answer:
        self._failed.setdefault(rank, (name, message))
        return rank, {"answer": list(call), "error": name, "message": message}, b""


def _mask(ranks: Iterable[int]) -> int:
    return sum(1 << r for r in ranks)


def _name_of(call: object) -> tuple:
    """What a rank calls a call of its own: it is sent back with the answer."""
    if not isinstance(call, list) or len(call) != 2 or not all(type(n) is int and abs(n) < 1 << 63 for n in call):
        raise Broken("it called something without a name")
    return tuple(call)

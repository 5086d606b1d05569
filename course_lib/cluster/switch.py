"""Collectives without ranks: who has called what, what each gets, who waits in vain, and the bytes that each has sent.

The relay asks it about every call. It keeps the status board that ranks otherwise share (`collectives.board`), so that the same
mistakes give the same sentences.
"""

from __future__ import annotations

import struct
from collections import defaultdict

import numpy as np

from course_lib.collectives import board as status
from course_lib.collectives import calls, explain
from course_lib.collectives.board import Board

_REDUCE = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BXOR": np.bitwise_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
}
_DTYPES = {np.dtype(c).num: np.dtype(c) for c in "?bBhHiIlLqQefdgFDG"}

SURE = 0.2  # seconds that a deadlock must be seen unchanged
MOST_KEPT, MOST_ARRAYS = 64 << 20, 2000  # bytes and arrays of what a rank has sent, where that is kept
EMPTY, BARRIERS = 32, 256  # calls that carry nothing, in one request, that are not counted

Answer = tuple[int, dict, bytes]  # to which rank


class Broken(Exception):
    """A rank sent what the course's library never sends."""


class _Words(Board):
    """A board that only the switch writes to."""

    def __init__(self, size: int):
        self.size, self.rank, self.round, self.left = size, 0, 0, 0
        self.rows = [[0] * (status.SEEN + size) for _ in range(size)]
        self._said = [""] * size

    def text(self, rank: int) -> str:
        return self._said[rank]

    def put(self, rank: int, text: str | None = None, **words: int) -> None:
        """Write words of a rank's row, by their names."""
        for name, word in words.items():
            self.rows[rank][getattr(status, name)] = word
        if text is not None:
            self._said[rank] = text


class Switch:
    """The collectives of `size` ranks."""

    def __init__(self, size: int):
        self.size = size
        self._board = _Words(size)
        self._waiting: dict[int, tuple[dict, bytes]] = {}
        self._numbers: list[dict] = [defaultdict(int) for _ in range(size)]
        self._sent: list[dict] = [{} for _ in range(size)]
        self._gates: list[list[tuple[float, float]]] = [[] for _ in range(size)]
        self._kept: list[list[np.ndarray] | None] = [None] * size  # what each has sent, where somebody wants to look at it
        self._picture, self._since = None, 0.0
        self._busy: set[int] = set()  # ranks that were asked for something
        self._empty: list[dict] = [defaultdict(int) for _ in range(size)]  # calls that carried nothing, by operation
        self._failed: dict[int, tuple[str, str]] = {}
        for r in range(size):
            self._board.put(r, STATE=status.COMPUTING)

    def begin(self, rank: int, turn: int, targets: int, gates: list[tuple[float, float]] | None = None, keep: bool = False) -> None:
        """A rank is asked to do something: in which turn, (a bit mask) with whom, with which `engine.gates`; keep what it sends?"""
        self._gates[rank], self._kept[rank] = list(gates or []), [] if keep else None
        self._busy.add(rank)
        self._waiting.pop(rank, None)
        self._numbers[rank].clear()
        self._sent[rank], self._empty[rank] = {}, defaultdict(int)
        self._failed.pop(rank, None)
        self._board.round = max(self._board.round, turn)
        self._board.put(rank, "", STATE=status.COMPUTING, ROUND=turn, TARGETS=targets, KEY=0)

    def sent(self, rank: int) -> list[list]:
        """What a rank has sent since `begin`: operation, ranks, calls and payload in bytes."""
        return [[operation, list(members), *counts] for (members, operation), counts in self._sent[rank].items()]

    def arrays(self, rank: int) -> list[np.ndarray] | None:
        """What a rank has sent since `begin`, if it was to be kept; flat, the latest at the end."""
        return self._kept[rank]

    def failed(self, rank: int) -> tuple[str, str] | None:
        """The error that a rank got here since `begin`, name and message: it tells of other ranks, so what follows it cannot count."""
        return self._failed.get(rank)

    def gate(self, rank: int) -> tuple[float, float, float]:
        """Bytes that a rank has sent, bytes that it must have sent for its next gate, and then the gate's number."""
        if not self._gates[rank]:
            raise Broken("it came to a gate where there is none")
        needed, number = self._gates[rank].pop(0)
        sent = sum(payload for (members, _), (_, payload) in self._sent[rank].items() if len(members) > 1)  # to others
        return sent, needed, number if sent >= needed else 0.0

    def finish(self, rank: int, raised: str) -> None:
        """A rank has done what it was asked for, and has raised an error or (empty) not."""
        self._busy.discard(rank)
        self._waiting.pop(rank, None)
        if rank not in self._failed:  # then the board says where it waited
            self._board.put(rank, raised[:200], STATE=status.RAISED if raised else status.FINISHED, KEY=0)

    def gone(self, rank: int) -> None:
        """A rank's process has ended."""
        self._waiting.pop(rank, None)
        self._board.put(rank, STATE=status.GONE, KEY=0)

    def call(self, rank: int, header: dict, payload: bytes) -> list[Answer]:
        """A rank calls a collective; the answers that are due now, to whom it may be."""
        if rank not in self._busy:  # its bytes would count for no request
            raise Broken("it called a collective when it had nothing to do")
        members, what, place = self._checked(rank, header)
        key = tuple(members)
        self._numbers[rank][key] += 1
        number = (hash(key) & 0xFFFFFF) << explain.NUMBER_BITS | self._numbers[rank][key]
        self._waiting[rank] = {**header, "members": key, "what": what, "key": number}, payload
        operation, dtype, count, detail = what
        mask = sum(1 << r for r in key)
        words = dict(OPERATION=operation, DTYPE=dtype, COUNT=count, DETAIL=detail, MEMBERS=mask, KEY=number, STATE=status.WAITING)
        self._board.put(rank, place, **words)
        if all(r in self._waiting and self._waiting[r][0]["key"] == number for r in key):
            return self._meet(key)
        return []

    def _checked(self, rank: int, header: dict) -> tuple[list[int], list[int], str]:
        members, what = header.get("members"), header.get("what")
        if not (_numbers_in(members, 0, self.size) and len(set(members)) == len(members) and rank in members):
            raise Broken("it called a collective on a group that is none")
        if not (_numbers_in(what, -1, 1 << 62) and len(what) == 4 and 0 < what[0] < len(calls.OPERATIONS)):
            raise Broken("it called a collective that is none")
        return members, what, str(header.get("place", ""))[:200]

    def _meet(self, members: tuple[int, ...]) -> list[Answer]:
        """All ranks of a group have come."""
        found = [self._waiting.pop(r) for r in members]
        for r in members:
            self._board.put(r, STATE=status.COMPUTING)
        if len({tuple(header["what"]) for header, _ in found}) > 1:
            said: dict[str, list[int]] = {}
            for r, (header, _) in zip(members, found, strict=True):
                said.setdefault(explain.describe(*header["what"]), []).append(r)
            message = explain.mismatch(said, explain.group_name(members, self.size))
            return [self._error(r, h, "MismatchError", message) for r, (h, _) in zip(members, found, strict=True)]
        first = found[0][0]
        try:
            results = _results([payload for _, payload in found], [header for header, _ in found])
        except TypeError:  # NumPy's: an operation on bits, of numbers that have none
            message = f"{explain.describe(*first['what'])}: this operation is not for these numbers."
            return [self._error(r, h, "CollectiveError", message) for r, (h, _) in zip(members, found, strict=True)]
        operation = calls.OPERATIONS[first["what"][0]]
        for i, r in enumerate(members):
            carries = first["what"][2] > 0
            self._count(r, members, operation.removeprefix("I").capitalize(), _payload(first["what"], i, len(members)), carries)
            self._keep(r, first["what"][1], found[i][1])
        return [(r, {"answer": h["call"]}, data) for r, (h, _), data in zip(members, found, results, strict=True)]

    def _count(self, rank: int, members: tuple[int, ...], operation: str, nbytes: int | None, carries: bool) -> None:
        if not carries and len(members) > 1:
            kind = self._empty[rank]
            kind[operation] += 1
            if kind[operation] > (BARRIERS if operation == "Barrier" else EMPTY):  # who comes first, or at all, is news as well
                operation, nbytes = "Allgather", 8 * len(members)
        if nbytes is not None:
            entry = self._sent[rank].setdefault((members, operation), [0, 0])
            entry[0] += 1
            entry[1] += nbytes

    def _keep(self, rank: int, dtype: int, payload: bytes) -> None:
        """Keep what a rank has sent, where somebody wants to look at it and there is room."""
        kept = self._kept[rank]
        if kept is None or not payload or dtype not in _DTYPES or len(kept) == MOST_ARRAYS:
            return
        if sum(array.nbytes for array in kept) + len(payload) <= MOST_KEPT:
            kept.append(np.frombuffer(payload, _DTYPES[dtype]))

    def waits(self) -> bool:
        """Whether some rank waits in a call."""
        return bool(self._waiting)

    def stuck(self, now: float) -> list[Answer]:
        """An error for every rank that waits for one that can no longer come, when that has been so for a moment: all say the same."""
        rows = self._board.snapshot() if self._waiting else []
        stuck = self._board.stuck(rows) if rows else ()
        picture = [(row.rank, row.state, row.key) for row in rows] if stuck else None
        if picture != self._picture:
            self._picture, self._since = picture, now
        if not stuck or now - self._since < SURE:
            return []
        message = explain.deadlock(self._board)
        answers = []
        for row in stuck:
            header, _ = self._waiting.pop(row.rank)
            self._board.put(row.rank, STATE=status.GAVE_UP)
            answers.append(self._error(row.rank, header, "DeadlockError", message))
        return answers

    def _error(self, rank: int, header: dict, name: str, message: str) -> Answer:
        self._failed.setdefault(rank, (name, message))
        return rank, {"answer": header.get("call"), "error": name, "message": message}, b""


def _numbers_in(values: object, low: int, high: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and low <= v < high for v in values)


def _payload(what: tuple, i: int, n: int) -> int | None:
    """Bytes that member i of n sends, as `traffic` counts them; None for what is not counted."""
    operation, dtype, count, detail = what
    name = calls.OPERATIONS[operation]
    size = count * _DTYPES[dtype].itemsize if dtype >= 0 else 0
    if name in ("Barrier", "Split"):
        return None
    if name == "Allgather":
        return size * n
    if name in ("Allreduce", "Iallreduce", "Reduce_scatter") and detail % 16 == len(calls.REDUCTIONS) - 1:
        return size * n
    root = detail // 16 - 1
    if name == "Bcast":
        return size if (i - root) % n < n - 1 else 0
    if name == "Scatter":
        return size * (n - 1) if i == root else 0
    if name == "Gather":
        return 0 if i == root else size
    return size


def _results(payloads: list[bytes], headers: list[dict]) -> list[bytes]:
    """What each member gets."""
    n, (operation, dtype, count, detail) = len(payloads), headers[0]["what"]
    name = calls.OPERATIONS[operation]
    if name == "Barrier":
        return [b""] * n
    if name == "Split":
        return _split([struct.unpack("<qq", p) for p in _sized(payloads, [16] * n)])
    if dtype not in _DTYPES or count < 0:
        raise Broken("it sent numbers of no known kind")
    kind, size = _DTYPES[dtype], count * _DTYPES[dtype].itemsize
    if name in calls.ROOTED:
        root = detail // 16 - 1
        if not 0 <= root < n:
            raise Broken("it named a root that is none")
        if name == "Bcast":
            return [_sized([payloads[root]], [size])[0]] * n
        if name == "Scatter":
            (whole,) = _sized([payloads[root]], [size * n])
            return [whole[i * size : (i + 1) * size] for i in range(n)]
        whole = b"".join(_sized(payloads, [size] * n))
        return [whole if i == root else b"" for i in range(n)]
    parts = _sized(payloads, [size] * n)
    own = detail % 16 == len(calls.REDUCTIONS) - 1
    if name == "Allgather" or own:
        return [b"".join(parts)] * n
    if not 0 < detail % 16 < len(calls.REDUCTIONS):
        raise Broken("it reduces by an operation that is none")
    reduce, reduced = _REDUCE[calls.REDUCTIONS[detail % 16]], np.frombuffer(parts[0], kind).copy()
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            reduced = reduce(reduced, np.frombuffer(part, kind)).astype(kind, copy=False)
    if name != "Reduce_scatter":
        return [reduced.tobytes()] * n
    counts = headers[0].get("counts")
    if any(h.get("counts") != counts for h in headers) or not _numbers_in(counts, 0, count + 1) or len(counts) != n or sum(counts) != count:
        raise Broken("it cut a reduce-scatter in parts that do not fit")
    ends = np.cumsum(counts)
    return [reduced[end - c : end].tobytes() for c, end in zip(counts, ends, strict=True)]


def _split(wishes: list[tuple[int, int]]) -> list[bytes]:
    """Colors and keys, of which each rank learns no more than who is in its new group, and in which order."""
    order = {i: place for place, i in enumerate(sorted(range(len(wishes)), key=lambda i: (wishes[i][1], i)))}
    return [
        b"".join(
            struct.pack("<qq", color, order[i]) if other == color else struct.pack("<qq", ~color, 0) for i, (other, _) in enumerate(wishes)
        )
        for color, _ in wishes
    ]


def _sized(payloads: list[bytes], sizes: list[int]) -> list[bytes]:
    if [len(p) for p in payloads] != sizes:
        raise Broken("it sent an array of another size than it said")
    return payloads

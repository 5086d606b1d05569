"""The result of each collective on each rank, worked out in one process with NumPy, and the bytes that each rank sends for it."""

from __future__ import annotations

import struct

import numpy as np

from course_lib.collectives import calls
from course_lib.collectives.calls import DTYPES, OWN, REDUCING, REDUCTIONS, ROOTED

# Those that carry no array of the caller's.
_WITHOUT = {calls.BARRIER, calls.IBARRIER, calls.SPLIT}


class Broken(Exception):
    """A rank sent what the course's library never sends."""


def numbers_in(values: object, low: int, high: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and low <= v < high for v in values)


def payload(what: tuple, i: int, n: int) -> int | None:
    """Bytes that member i of n sends, as `traffic` counts them; None for what is not counted."""
    operation, dtype, count, detail = what
    name = calls.OPERATIONS[operation]
    size = count * DTYPES[dtype].itemsize if dtype >= 0 else 0
    if operation in _WITHOUT:
        return None
    if name in ("Allgather", "Iallgather"):
        return size * n
    if name == "Alltoallv":
        return None  # see `sent`: it goes by what came
    if operation in REDUCING and detail % 16 == OWN:
        return size * n
    root = detail // 16 - 1
    if name == "Bcast":
        return size if (i - root) % n < n - 1 else 0
    if name == "Scatter":
        return size * (n - 1) if i == root else 0
    if name == "Gather":
        return 0 if i == root else size
    return size


def brought(header: dict, i: int, n: int) -> int:
    """Bytes that come with the call of member i of n, by what it says.

    Raises
    ------
    Broken
        It says what makes no sense.
    """
    operation, dtype, count, detail = header["what"]
    name = calls.OPERATIONS[operation]
    if operation in _WITHOUT:
        if (dtype, count) != (-1, 0):
            raise Broken("it sent numbers where there are none")
        return 16 if name == "Split" else 0
    if dtype not in DTYPES or count < 0:
        raise Broken("it sent numbers of no known kind")
    size = count * DTYPES[dtype].itemsize
    if name == "Alltoallv":
        counts = header.get("counts")
        if not numbers_in(counts, 0, 1 << 40) or len(counts) != n:
            raise Broken("it cut an all-to-all in parts that do not fit")
        return sum(counts) * DTYPES[dtype].itemsize
    root = detail // 16 - 1
    if operation in ROOTED and not 0 <= root < n:
        raise Broken("it named a root that is none")
    if operation in REDUCING and not 0 < detail % 16 <= OWN:
        raise Broken("it reduces by an operation that is none")
    if name == "Bcast":
        return size if i == root else 0
    return size * n * (i == root) if name == "Scatter" else size


def to_others(header: dict, payload: bytes, i: int, n: int) -> bytes:
    """What of it goes to other members: not the part of an all-to-all or a scatter that is a member's own."""
    operation, dtype, _, detail = header["what"]
    name = calls.OPERATIONS[operation]
    if n == 1 or name == "Split" or (name == "Gather" and i == detail // 16 - 1):
        return b""
    if name in ("Alltoall", "Scatter") and payload:
        part = len(payload) // n
        return payload[: i * part] + payload[(i + 1) * part :]
    if name == "Alltoallv":
        counts = [c * DTYPES[dtype].itemsize for c in header["counts"]]
        return payload[: sum(counts[:i])] + payload[sum(counts[: i + 1]) :]
    return payload


def results(payloads: list[bytes], headers: list[dict]) -> list[bytes]:
    """What each member gets."""
    n, (operation, dtype, count, detail) = len(payloads), headers[0]["what"]
    name = calls.OPERATIONS[operation]
    if operation in (calls.BARRIER, calls.IBARRIER):
        return [b""] * n
    if name == "Split":
        return _split([struct.unpack("<qq", p) for p in payloads])
    kind, size = DTYPES[dtype], count * DTYPES[dtype].itemsize
    if name == "Alltoallv":
        return _all_to_all_v(payloads, headers, kind.itemsize)
    if name == "Alltoall":
        part = size // n
        return [b"".join(whole[i * part : (i + 1) * part] for whole in payloads) for i in range(n)]
    if operation in ROOTED:
        root = detail // 16 - 1
        if name == "Bcast":
            return [payloads[root]] * n
        if name == "Scatter":
            return [payloads[root][i * size : (i + 1) * size] for i in range(n)]
        whole = b"".join(payloads)
        return [whole if i == root else b"" for i in range(n)]
    if operation not in REDUCING or detail % 16 == OWN:  # an all-gather, or a reduction that only the ranks know
        return [b"".join(payloads)] * n
    (_, reduce), reduced = REDUCTIONS[detail % 16 - 1], np.frombuffer(payloads[0], kind).copy()
    with np.errstate(all="ignore"):
        for part in payloads[1:]:
            reduced = reduce(reduced, np.frombuffer(part, kind)).astype(kind, copy=False)
    if name not in ("Reduce_scatter", "Ireduce_scatter"):
        return [reduced.tobytes()] * n
    counts = headers[0].get("counts")
    if any(h.get("counts") != counts for h in headers) or not numbers_in(counts, 0, count + 1) or len(counts) != n or sum(counts) != count:
        raise Broken("it cut a reduce-scatter in parts that do not fit")
    ends = np.cumsum(counts)
    return [reduced[end - c : end].tobytes() for c, end in zip(counts, ends, strict=True)]


def _all_to_all_v(payloads: list[bytes], headers: list[dict], itemsize: int) -> list[bytes]:
    """Each rank's parts, one for each member in order, of as many numbers as its header says."""
    n, cut = len(payloads), []
    for whole, header in zip(payloads, headers, strict=True):
        counts = header["counts"]
        ends = np.cumsum(counts) * itemsize
        cut.append([whole[end - count * itemsize : end] for count, end in zip(counts, ends.tolist(), strict=True)])
    return [b"".join(parts[i] for parts in cut) for i in range(n)]


def _split(wishes: list[tuple[int, int]]) -> list[bytes]:
    """Colors and keys, of which each rank learns no more than who is in its new group, and in which order."""
    order = {i: place for place, i in enumerate(sorted(range(len(wishes)), key=lambda i: (wishes[i][1], i)))}
    return [
        b"".join(
            struct.pack("<qq", color, order[i]) if other == color else struct.pack("<qq", ~color, 0) for i, (other, _) in enumerate(wishes)
        )
        for color, _ in wishes
    ]

"""Reference implementation of the collectives in one process, with NumPy: the size of each rank's contribution, traffic, and results.

A call is a dict, as a rank described it: "signature" (operation, dtype, count, detail, see `calls.Call`) and, if parts differ in size,
"counts". Contributions and results are bytes.
"""

from __future__ import annotations

import struct

import numpy as np

from course_lib.collectives import calls
from course_lib.collectives.calls import BLOCKING_FORM, DTYPES, REDUCTIONS, USER_DEFINED


class ProtocolViolation(Exception):
    """A rank sent a frame that the course's library never sends."""


def is_int_list(values: object, low: int, high: int) -> bool:
    """Return whether a value from a rank is a list of integers in ``range(low, high)``."""
    return isinstance(values, list) and all(type(v) is int and low <= v < high for v in values)


def input_bytes(call: dict, i: int, n: int) -> int:
    """Return the size in bytes of the contribution of member i of n, according to its call.

    Raises
    ------
    ProtocolViolation
        The call is invalid.
    """
    rule, (_, dtype, count, _) = _rule(call), call["signature"]
    if not rule.has_payload:
        if (dtype, count) != (-1, 0):
            raise ProtocolViolation("it sent data with an operation that takes none")
    elif dtype not in DTYPES or count < 0:
        raise ProtocolViolation("it sent data of an unknown dtype")
    return rule.input_bytes(call, i, n)


def sent_bytes(call: dict, i: int, n: int) -> int | None:
    """Return the bytes that member i of n sends, as `traffic` counts them; None if the operation is not counted."""
    return _rule(call).sent_bytes(call, i, n)


def outgoing_data(call: dict, data: bytes, i: int, n: int) -> bytes:
    """Return the part of a member's contribution that goes to other members."""
    return _rule(call).outgoing_data(call, data, i, n) if n > 1 else b""


def results(payloads: list[bytes], said: list[dict]) -> list[bytes]:
    """Compute the result of each member; ``said[i]`` is the call of member i."""
    return _rule(said[0]).results(payloads, said)


class CollectiveRule:
    """The semantics of one collective; the default is that all members contribute arrays of the same size, and all get all of them."""

    has_payload = True  # whether the caller passes an array

    def input_bytes(self, call: dict, i: int, n: int) -> int:
        """See the function `input_bytes`."""
        return _size(call)

    def sent_bytes(self, call: dict, i: int, n: int) -> int | None:
        """See the function `sent_bytes`."""
        return _size(call)

    def outgoing_data(self, call: dict, data: bytes, i: int, n: int) -> bytes:
        """See the function `outgoing_data`."""
        return data

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        """See the function `results`."""
        return [b"".join(payloads)] * len(payloads)


class AllgatherRule(CollectiveRule):
    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return _size(call) * n


class BarrierRule(CollectiveRule):
    has_payload = False

    def input_bytes(self, call: dict, i: int, n: int) -> int:
        return 0

    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return 0  # a call all the same


class SplitRule(CollectiveRule):
    has_payload, wish = False, struct.Struct("<qq")  # color and key

    def input_bytes(self, call: dict, i: int, n: int) -> int:
        return self.wish.size

    def sent_bytes(self, call: dict, i: int, n: int) -> None:
        return None

    def outgoing_data(self, call: dict, data: bytes, i: int, n: int) -> bytes:
        return b""

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        """Return colors and keys from which each rank learns only the members of its new group and their order."""
        wishes = [self.wish.unpack(p) for p in payloads]
        order = {i: place for place, i in enumerate(sorted(range(len(wishes)), key=lambda i: (wishes[i][1], i)))}
        seen = [[(color, order[i]) if other == color else (~color, 0) for i, (other, _) in enumerate(wishes)] for color, _ in wishes]
        return [b"".join(self.wish.pack(*wish) for wish in row) for row in seen]


class AllreduceRule(CollectiveRule):
    def input_bytes(self, call: dict, i: int, n: int) -> int:
        if not 0 < call["signature"][3] % 16 <= USER_DEFINED:
            raise ProtocolViolation("it named a reduction that does not exist")
        return _size(call)

    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return _size(call) * (n if self.is_own(call) else 1)

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        if self.is_own(said[0]):
            return super().results(payloads, said)  # only the ranks can apply a user-defined reduction
        return self.parts(self.reduced(payloads, said[0]), said)

    def parts(self, reduced: np.ndarray, said: list[dict]) -> list[bytes]:
        """Divide the reduced array among the members."""
        return [reduced.tobytes()] * len(said)

    @staticmethod
    def is_own(call: dict) -> bool:
        """Return whether the reduction is user-defined."""
        return call["signature"][3] % 16 == USER_DEFINED

    @staticmethod
    def reduced(payloads: list[bytes], call: dict) -> np.ndarray:
        """Reduce all arrays, in rank order."""
        (_, dtype, _, detail) = call["signature"]
        (_, reduce), total = REDUCTIONS[detail % 16 - 1], np.frombuffer(payloads[0], DTYPES[dtype]).copy()
        with np.errstate(all="ignore"):
            for part in payloads[1:]:
                # Into a copy of a rank's bytes: the padding of long doubles in fresh memory would leak data of this process.
                reduce(total, np.frombuffer(part, DTYPES[dtype]), out=total, casting="unsafe")
        return total


class ReduceScatterRule(AllreduceRule):
    def parts(self, reduced: np.ndarray, said: list[dict]) -> list[bytes]:
        counts, n, whole = said[0].get("counts"), len(said), reduced.size
        same = all(call.get("counts") == counts for call in said)
        if not (same and is_int_list(counts, 0, whole + 1) and len(counts) == n and sum(counts) == whole):
            raise ProtocolViolation("it divided a reduce-scatter into parts that do not fit")
        return [reduced[end - c : end].tobytes() for c, end in zip(counts, np.cumsum(counts), strict=True)]


class RootedRule(CollectiveRule):
    def input_bytes(self, call: dict, i: int, n: int) -> int:
        if not 0 <= _root(call) < n:
            raise ProtocolViolation("it named a root that is not a rank of the group")
        return self.member_bytes(call, i, n)

    def member_bytes(self, call: dict, i: int, n: int) -> int:
        """Return the size in bytes of the contribution of member i of n."""
        return _size(call)


class BcastRule(RootedRule):
    def member_bytes(self, call: dict, i: int, n: int) -> int:
        return _size(call) if i == _root(call) else 0

    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return _size(call) if (i - _root(call)) % n < n - 1 else 0  # counted as on a ring: each rank but the last passes the array on

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        return [payloads[_root(said[0])]] * len(payloads)


class ScatterRule(RootedRule):
    def member_bytes(self, call: dict, i: int, n: int) -> int:
        return _size(call) * n if i == _root(call) else 0

    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return _size(call) * (n - 1) if i == _root(call) else 0

    def outgoing_data(self, call: dict, data: bytes, i: int, n: int) -> bytes:
        return _without(data, i, n)

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        size = _size(said[0])
        return [payloads[_root(said[0])][i * size : (i + 1) * size] for i in range(len(payloads))]


class GatherRule(RootedRule):
    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return 0 if i == _root(call) else _size(call)

    def outgoing_data(self, call: dict, data: bytes, i: int, n: int) -> bytes:
        return b"" if i == _root(call) else data

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        return [b"".join(payloads) if i == _root(said[0]) else b"" for i in range(len(payloads))]


class AlltoallRule(CollectiveRule):
    def outgoing_data(self, call: dict, data: bytes, i: int, n: int) -> bytes:
        return _without(data, i, n)

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        n, part = len(payloads), _size(said[0]) // len(payloads)
        return [b"".join(whole[i * part : (i + 1) * part] for whole in payloads) for i in range(n)]


class AlltoallvRule(CollectiveRule):
    def input_bytes(self, call: dict, i: int, n: int) -> int:
        if not is_int_list(call.get("counts"), 0, 1 << 40) or len(call["counts"]) != n:
            raise ProtocolViolation("it divided an all-to-all into parts that do not fit")
        return sum(call["counts"]) * DTYPES[call["signature"][1]].itemsize

    def sent_bytes(self, call: dict, i: int, n: int) -> int:
        return (sum(call["counts"]) - call["counts"][i]) * DTYPES[call["signature"][1]].itemsize  # without the rank's own part

    def outgoing_data(self, call: dict, data: bytes, i: int, n: int) -> bytes:
        parts = self.cut(call, data)
        return b"".join(parts[:i] + parts[i + 1 :])

    def results(self, payloads: list[bytes], said: list[dict]) -> list[bytes]:
        cut = [self.cut(call, data) for call, data in zip(said, payloads, strict=True)]
        return [b"".join(parts[i] for parts in cut) for i in range(len(cut))]

    @staticmethod
    def cut(call: dict, data: bytes) -> list[bytes]:
        """Divide a member's contribution into the parts for each member."""
        itemsize = DTYPES[call["signature"][1]].itemsize
        ends = np.cumsum(call["counts"]) * itemsize
        return [data[end - count * itemsize : end] for count, end in zip(call["counts"], ends.tolist(), strict=True)]


RULES: dict[int, CollectiveRule] = {
    calls.ALLREDUCE: AllreduceRule(),
    calls.ALLGATHER: AllgatherRule(),
    calls.REDUCE_SCATTER: ReduceScatterRule(),
    calls.SPLIT: SplitRule(),
    calls.BARRIER: BarrierRule(),
    calls.BCAST: BcastRule(),
    calls.SCATTER: ScatterRule(),
    calls.GATHER: GatherRule(),
    calls.ALLTOALL: AlltoallRule(),
    calls.ALLTOALLV: AlltoallvRule(),
}


def _rule(call: dict) -> CollectiveRule:
    return RULES[BLOCKING_FORM.get(call["signature"][0], call["signature"][0])]


def _size(call: dict) -> int:
    """Return the size in bytes of the array in a call's signature."""
    _, dtype, count, _ = call["signature"]
    return count * DTYPES[dtype].itemsize


def _root(call: dict) -> int:
    return call["signature"][3] // 16 - 1


def _without(data: bytes, i: int, n: int) -> bytes:
    """Return all of n equal parts but part i, the member's own."""
    part = len(data) // n
    return data[: i * part] + data[(i + 1) * part :]

"""Check of part 31's `gather_as` and `reduce_as`: values to the last bit, bytes, and masters that keep small steps."""

from __future__ import annotations

import numpy as np

from course_lib.autograd.mixed_precision import decode, encode
from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.cases.repetition import GROUP, KEPT, Call, in_turn
from course_lib.check.groups import GroupCheck
from course_lib.check.precision import contract
from course_lib.check.precision.on_ranks import call_exchange, call_steps
from course_lib.traffic import wire_bytes

# Halfway between two values of a format (ties to even), below float16's smallest, near its largest, and large ones.
EDGES = {
    "float32": [1 + 2.0**-20, 1e-30, 1e30, -1 / 3],
    "float16": [1 + 2.0**-11, 1 + 3 * 2.0**-11, 3e-6, 65503.0],
    "bfloat16": [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e-30, -1e30],
}
# A value of one rank, and of each other one: in the format, their sum is as if the others had sent nothing.
LOUD = {"float32": (2.0**22, 0.75), "float16": (2048.0, 0.5), "bfloat16": (256.0, 0.5)}
TINY = {"float32": 1e-30, "float16": 2.0**-24, "bfloat16": 1e-30}
LENGTHS = 33, 50  # of a shard: sent as float32, even between two ranks, it exceeds the limit
ROUNDED = "other rounding than `encode`'s: to the nearest number, in a tie to the even one; also of what is tiny or large"
CHANGED = "a value that changes on its way, such as NaN, an infinity or -0.0"


class PrecisionCheck(GroupCheck):
    """A `Check` of gathers and reductions in a format, in groups of the four ranks."""

    def everything(self) -> PrecisionCheck:
        """Check all that is asked of the exercise."""
        groups = {"float32": (4, 1), "float16": (4, 3, 2, 1), "bfloat16": (4, 3, 2)}
        for dtype, sizes in groups.items():
            if self.exercise == "gather_as":
                self.gathers(dtype, *sizes).masters(dtype, 4 if dtype == "float32" else 3)
            else:
                self.reduces(dtype, *sizes)
        return self.repeats()

    def gathers(self, dtype: str, *sizes: int) -> PrecisionCheck:
        """Check `gather_as`: the values of all ranks, rounded, in rank order; the bytes; the shard, which stays as it is."""
        for size in sizes:
            groups = self.groups(size)
            self.case, places = self._describe(groups, dtype), self.colors_and_keys(groups)
            (length,) = self.sizes(1, *LENGTHS)
            shards = self.random.standard_normal((4, 2, length)).astype(np.float32)
            for r in range(4):
                where = self.random.permutation(length)[:4]
                shards[r, 0, where] = self.random.permutation(EDGES[dtype])
            given = [dict(name="gather_as", arrays=list(shards[r]), dtype=dtype, place=places[r]) for r in range(4)]
            answers = self.call(call_exchange, given, show=self.show)
            for r, (found, after) in enumerate(answers):
                group = groups[places[r][0]]
                self._results_of_their_own(found, "gather_as", r)
                for turn, got in enumerate(found):
                    whole = np.concatenate([shards[s, turn] for s in group])
                    want = _rounded(whole, dtype)
                    own = np.repeat([s == r for s in group], length)
                    instead = {
                        "float32 values, not rounded": whole,
                        "this rank's shard, again and again": np.tile(shards[r, turn], len(group)),
                        "rounded, but for this rank's own part": np.where(own, whole, want),
                        "bit patterns, which are not decoded": encode(whole, dtype),
                    }
                    name = f"gather_as, call {turn + 1},"
                    edges = np.isin(whole, np.asarray(EDGES[dtype], np.float32))
                    cause = ROUNDED if _right_but_for(edges, got, want) else "another rank order"
                    self.array(got, want, name=name, rank=r, cause=cause, instead=instead, shape_cause="")
                cause = "rounding in place, or a result that shares memory with the shard: the master would lose its last bits"
                self.array(after, shards[r, 1], name="the shard, after the call,", rank=r, cause=cause)
                cause = f"values sent as float32; encoded as {dtype}, each takes 2 bytes" if dtype != "float32" else "values sent twice"
                self._cost("gather_as", [(length, dtype)] * 2, group, r, cause)
        self.covers("group sizes", "group order", "dtypes")
        return self

    def reduces(self, dtype: str, *sizes: int) -> PrecisionCheck:
        """Check `reduce_as`: the mean of what the ranks sent, added in float32; the bytes; the gradient, which stays as it is."""
        for size in sizes:
            groups = self.groups(size)
            places = self.colors_and_keys(groups)
            (length,) = self.sizes(1, *LENGTHS)
            drawn = self._gradients(dtype, groups, length)
            given = [dict(name="reduce_as", arrays=[drawn[name][r] for name in drawn], dtype=dtype, place=places[r]) for r in range(4)]
            self.case = self._describe(groups, dtype)
            answers = self.call(call_exchange, given, show=self.show)
            for r, (found, after) in enumerate(answers):
                group, me = groups[places[r][0]], places[r][1]
                self._results_of_their_own(found, "reduce_as", r)
                for (name, arrays), got in zip(drawn.items(), found, strict=True):
                    self.case = f"{self._describe(groups, dtype)}, {name}"
                    self._mean(got, [arrays[s] for s in group], dtype, me, r)
                cause = "rounding or dividing in place"
                self.array(after, given[r]["arrays"][-1], name="the gradient, after the call,", rank=r, cause=cause)
                cause = "float32 values, or " * (dtype != "float32") + "whole gradients: each rank needs only its part of the others'"
                self._cost("reduce_as", [(length, dtype)] * len(drawn), group, r, cause)
        self.covers("group sizes", "group order", "dtypes")
        return self

    def repeats(self) -> PrecisionCheck:
        """Check calls of both sizes and all formats in turn, on two communicators with the same ranks."""
        groups = self.groups(2)
        length, other = self.sizes(2, 2, 14)
        # (length, which communicator): the second has the same ranks, the last call is the first one with other values.
        turns = [(length, 0), (other, 1), (1, 0), (length, 1), (other, 0), (length, 0)]
        formats = ("float16", "bfloat16", "float32", "bfloat16", "float16", "float16")
        gathers = self.exercise == "gather_as"
        calls = []
        for (size, group), dtype, layout in zip(turns, formats, 2 * CONTIGUOUS, strict=True):
            count = size if gathers else 2 * size
            arrays = [self.special(count, dtype=np.float32, finite=not gathers) for _ in range(4)]
            calls.append(Call([[array, dtype, GROUP] for array in arrays], group, layout))
        self.case = f"{self.describe_groups(groups, np.float32)}, several calls in turn on two communicators"
        results = in_turn(self, self.exercise, calls, [groups, groups])
        case = self.case
        for number, (call, dtype, answers) in enumerate(zip(calls, formats, results, strict=True), 1):
            for r, got in enumerate(answers):
                group = next(group for group in groups if r in group)
                arrays = [call.arguments[s][0] for s in group]
                self.case = f"call {number} of {case}, {dtype}"
                if gathers:
                    want = _rounded(np.concatenate(arrays), dtype)
                    name = f"gather_as, call {number},"
                    cause = f"{CHANGED}; or {KEPT}"
                    self.array(got, want, name=name, rank=r, cause=cause, signed_zeros=True)
                else:
                    self._mean(got, arrays, dtype, group.index(r), r)
        for r in range(4):
            group = next(group for group in groups if r in group)
            sizes = [(size, dtype) for (size, _), dtype in zip(turns, formats, strict=True)]
            self._cost(self.exercise, sizes, group, r, "values sent twice")
        self.case = case
        self.covers("layouts", "sizes")
        return self

    def _cost(
        self,
        function: str,
        calls: list[tuple[int, str]],
        group: list[int],
        r: int,
        cause: str,
    ) -> None:
        """Check the bytes and the calls of rank r for these calls: lengths of a shard, and formats."""
        if function == "gather_as":
            operation, most_bytes, most_calls = "Allgather", contract.GATHER_BYTES, contract.GATHER_CALLS
        else:
            operation, most_bytes, most_calls = "Alltoall", contract.REDUCE_BYTES, contract.REDUCE_CALLS
        n = len(group)
        numbers = [wire_bytes(operation, n, n * length * _width(dtype)) for length, dtype in calls]
        moved = self.ranks.traffic[r]
        name = f"{function}, called {len(calls)} times,"
        self.sent(
            moved,
            sum(numbers) + len(calls) * most_bytes.number,
            name=name,
            rank=r,
            cause=cause,
            limit=most_bytes,
        )
        self.calls(
            moved,
            len(calls) * int(most_calls.number),
            group=group,
            name=name,
            rank=r,
            limit=most_calls,
        )
        self.requests_completed(self.ranks.unended[r], r)

    def _results_of_their_own(self, found: list, name: str, r: int) -> None:
        """Check that calls with other values do not all have the same result."""
        first, *others = found
        if isinstance(first, np.ndarray) and all(isinstance(one, np.ndarray) and one.tobytes() == first.tobytes() for one in others):
            cause = "a buffer that all calls share, or a result that is kept from the first call; return a new array"
            self.fail(f"in the end, the results of all calls of {name} on rank {r} are the same", cause)

    def _gradients(self, dtype: str, groups: list[list[int]], length: int) -> dict[str, dict[int, np.ndarray]]:
        """Draw gradients of all kinds, each ``(n * length,)`` on each rank of a group."""
        loud, low = LOUD[dtype]
        kinds = "usual gradients", "a rank with far larger gradients than the others", "tiny gradients", "an overflow on one rank"
        found: dict[str, dict[int, np.ndarray]] = {kind: {} for kind in kinds}
        for group in groups:
            n = len(group)
            speakers = self.random.permutation(np.arange(n * length) % n)  # each rank is the loud one somewhere in each part, nearly
            burst = self.random.permutation(n * length)[: n + 1]
            for i, r in enumerate(group):
                usual = self.random.standard_normal(n * length)
                noisy = np.where(speakers == i, loud * self.random.choice([-1, 1]), low)
                tiny = TINY[dtype] * self.random.integers(1, 3, n * length)
                over = usual.copy()
                over[burst] = [np.nan] + n * [1e5] if i == n - 1 else 1.0
                for kind, array in zip(kinds, (usual, noisy, tiny, over), strict=True):
                    found[kind][r] = array.astype(np.float32)
        return found

    def _mean(self, got: object, arrays: list[np.ndarray], dtype: str, me: int, r: int) -> None:
        """Check rank r's part of the mean of these gradients of its group, in which it is number `me`."""
        n = len(arrays)
        parts = [np.split(_rounded(array, dtype).astype(float), n)[me] for array in arrays]
        want = (np.sum(parts, axis=0) / n).astype(np.float32)
        beyond = ~np.isfinite(want)
        if isinstance(got, np.ndarray) and got.shape == want.shape and beyond.any():
            if np.isfinite(got[beyond]).any():
                self.fail(
                    f"reduce_as on rank {r} is finite where a rank's gradient is NaN, or beyond the largest {dtype}",
                    "values limited to the largest of the format, or a NaN left out: an overflow must show, so that the step is skipped",
                )
            want, got = np.where(beyond, np.float32(0), want), np.where(beyond, got.dtype.type(0), got)
        instead = {"the sum over the ranks, not the mean": n * want} if n > 1 else {}
        instead |= {f"what results when the sum is rounded to {dtype} after each rank": _summed_in(parts, dtype)} if n > 1 else {}
        instead["this rank's own gradient"] = parts[me]
        instead["the mean, but this rank's own part was not rounded"] = want + (np.split(arrays[me], n)[me] - parts[me]) / n
        instead["the mean of bit patterns, which are not decoded"] = np.mean([np.split(encode(a, dtype), n)[me] for a in arrays], axis=0)
        wrong_axis = "a sum along the wrong axis, or whole gradients instead of this rank's part"
        cause = "a sum in 16 bits, a division before the gradient is encoded, or tiny numbers that are set to 0"
        magnitude = float(np.max(np.sum(np.abs(np.where(beyond, 0, parts)), axis=0) / n))
        self.array(got, want, name="reduce_as", rank=r, rtol=1e-6, scale=magnitude, instead=instead, cause=cause, shape_cause=wrong_axis)

    def masters(self, dtype: str, *sizes: int) -> PrecisionCheck:
        """Check steps with SGD on float32 masters, each far smaller than the distance between two values of the format."""
        gap = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]  # between 1 and 2
        for size in sizes:
            groups = self.groups(size)
            self.case, places = f"{self._describe(groups, dtype)}, small steps", self.colors_and_keys(groups)
            (length,) = self.sizes(1, 5, 14)
            shards = self.random.uniform(1.25, 1.75, (4, length)).astype(np.float32)
            grads = (gap / 16 * self.random.integers(1, 4, (24, 4, length))).astype(np.float32)
            given = [dict(shard=shards[r].copy(), gradients=list(grads[:, r]), dtype=dtype, place=places[r]) for r in range(4)]
            answers = self.call(call_steps, given, show=self.show)
            for group in groups:
                masters = shards[group].copy()
                for step, own in enumerate(grads[:, group]):
                    want = _rounded(masters.ravel(), dtype)
                    for r in group:
                        cause = "masters that are rounded, or gathered values of an earlier step"
                        self.array(answers[r][0][step], want, name=f"what is gathered before step {step + 1}", rank=r, cause=cause)
                    masters = masters - own
                for r, want in zip(group, masters, strict=True):
                    cause = "a step that is added to rounded values, which swallow it"
                    self.array(answers[r][1], want, name="the master, in the end,", rank=r, rtol=1e-6, cause=cause)
        return self

    def _describe(self, groups: list[list[int]], dtype: str) -> str:
        return self.describe_groups(groups, np.float32).replace("float32", dtype)


def _right_but_for(places: np.ndarray, got: object, want: np.ndarray) -> bool:
    """Return whether all wrong values of an array are at these places."""
    return isinstance(got, np.ndarray) and got.shape == want.shape and bool(np.all(got[~places] == want[~places]))


def _width(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    return decode(encode(array.astype(np.float32), dtype), dtype)


def _summed_in(parts: list[np.ndarray], dtype: str) -> np.ndarray:
    """Mean of these arrays if each sum is rounded to the format."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total = _rounded(total + part, dtype)
    return total / np.float32(len(parts))

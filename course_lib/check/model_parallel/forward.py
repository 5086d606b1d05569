"""Checks of the forward pass of a model parallel layer (parts 03 and 04)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.cases.repetition import GROUP, KEPT, Call, in_turn
from course_lib.check.cases.values import are_special, same_values
from course_lib.check.groups import GroupCheck
from course_lib.check.model_parallel import contract, on_ranks
from course_lib.check.shuffled_ranks import ShuffledRanks
from course_lib.traffic import wire_bytes

CHANGED = "an in-place operation, or swapped buffers"
SPECIAL = "NaN, infinities, -0.0 or subnormal numbers that are turned into other numbers; pass them on as they are"
SPLIT = "an exchange, a Barrier or a Split: each waits until all ranks of its communicator have called it"
DTYPES = (np.float32, np.float64)
# For each rank of a group, from the arguments of all and its index, what a function returns.
Reference: TypeAlias = Callable[[list[np.ndarray], int], np.ndarray]


class LayerCheck(GroupCheck):
    """A `Check` of a layer on groups of the four ranks.

    A visible check shows what it compares, so its numbers are easy to read; a hidden one draws numbers, sizes and both dtypes.

    Attributes
    ----------
    places : ShuffledRanks
        The ranks in random order, for groups of consecutive places.
    """

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, ranks, show=show)
        self.places = ShuffledRanks(ranks, self.random, keep_order=show)

    def dtypes(self) -> tuple[type, ...]:
        """Return the dtypes to check."""
        return DTYPES[:1] if self.show else (*DTYPES, np.int32)

    def shapes(self, low: int, high: int) -> list[tuple[int, int]]:
        """Draw a batch and a width; then a batch of one, and a single column."""
        batch, width = self.sizes(2, low, high)
        return [(batch, width), (1, width), (batch, 1)]

    def draw(self, *shape: int, dtype: type = np.float64) -> np.ndarray:
        """Draw an array; for a visible check, numbers that count up."""
        if self.show:
            return np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        return (self.random.standard_normal(shape) * (100 if np.dtype(dtype).kind == "i" else 1)).astype(dtype)

    def turns(
        self,
        function: str,
        reference: Reference,
        *,
        by_index: bool = False,
        own_results: bool = True,
        rtol: float = 0.0,
        layouts: Sequence[str] = CONTIGUOUS,
    ) -> None:
        """Check calls of several sizes in turn, on two communicators with the same ranks.

        Parameters
        ----------
        by_index : bool
            Whether the function is given an index, and no communicator.
        own_results : bool
            Whether it must not return its argument.
        rtol : float
            0 for a function that only moves values, which are special ones then.
        """
        groups = self.groups(2)
        batch, width, other = self.sizes(3, 2, 9)
        turns = [
            ((batch, 2 * width), 0),
            ((batch, 2 * width), 1),
            ((batch, 2 * other), 1),
            ((1, 2 * width), 0),
            ((batch, 2 * width), 0),
            ((batch, 2), 1),
        ]
        places = self.colors_and_keys(groups)
        calls = []
        for number, (shape, comm) in enumerate(turns):
            draw = self.draw if rtol else self.special
            arrays = [draw(*shape, dtype=np.float64) for _ in range(4)]
            second = [places[r][1] if by_index else GROUP for r in range(4)]
            arguments = [[arrays[r], second[r], 2] for r in range(4)]
            calls.append(Call(arguments, comm, layouts[number % len(layouts)]))
        self.case = f"{self.describe_groups(groups, np.float64)}, several calls in turn"
        results = in_turn(self, function, calls, [groups, groups], own_results=own_results)
        for number, (call, answers) in enumerate(zip(calls, results, strict=True), 1):
            for r, got in enumerate(answers):
                color, index = places[r]
                arrays = [call.arguments[s][0] for s in groups[color]]
                want = reference(arrays, index)
                self.array(
                    got,
                    want,
                    name=f"call {number} of {function}",
                    rank=r,
                    cause=KEPT if rtol else usual_cause(got, want, KEPT),
                    rtol=rtol,
                    scale=float(np.max(np.abs(arrays))) if rtol else None,
                    contiguous=True,
                    signed_zeros=not rtol,
                )
        for r in range(4):
            self._calls(function, self.ranks.traffic[r], groups[places[r][0]], len(calls), r)
        if function in contract.NO_CALLS:
            self._alone(function, by_index)
        self.covers("layouts", "group order", "dtypes", "sizes", "group sizes")

    def _alone(self, function: str, by_index: bool) -> None:
        """Check that one rank of each group gets through a function that asks for nothing, without the others."""
        groups = self.groups(2)
        self.case = f"{self.describe_groups(groups, np.float64)}, one rank of each after the other"
        places = self.colors_and_keys(groups)
        for first in range(2):
            given = [
                {
                    "function": function,
                    "array": self.draw(2, 4),
                    "index": place[1] if by_index else None,
                    "place": place,
                    "calls": place[1] == first,
                }
                for place in places
            ]
            problem = f"{function} waits for other ranks, although it needs nothing from them"
            self.call(on_ranks.call_alone, given, explain={"Deadlock": (problem, SPLIT)}, show=self.show)

    def _calls(self, function: str, moved: list[tuple], group: list[int], times: int, rank: int) -> None:
        """Check how many calls of the communicator a rank has made when it called the function so often."""
        if function in contract.NO_CALLS:
            limit, most = contract.NO_CALLS[function], 0
        else:
            limit = contract.CALLS[function]
            most = times * int(limit.number)
        self.calls(moved, most, group=group, name=function, rank=rank, limit=limit)

    def silent(self, function: str, name: str, rank: int, cause: str) -> None:
        """Check that a rank has called no collective and sent no message, not even an empty one."""
        operations = sorted({operation for operation, *_ in self.places.traffic[rank]})
        if operations:
            problem = f"{name} on rank {rank} calls {', '.join(operations)}; no exchange is needed"
            self.fail(problem, cause, limit=contract.NO_CALLS[function])

    def cost(self, function: str, operation: str, size: int, nbytes: float, rank: int, cause: str) -> None:
        """Check that a rank of a group of `size` has sent what this collective sends for a full array of `nbytes`."""
        limit = contract.BYTES[function]
        most = wire_bytes(operation, size, nbytes) + limit.number
        moved = self.places.traffic[rank]
        self.sent(moved, most, name=function, rank=rank, cause=cause, limit=limit)
        self.requests_completed(self.places.unended[rank], rank)

    def unchanged(self, given: tuple[object, bool, bool], before: np.ndarray, rank: int) -> None:
        """Check that the function has not modified its argument, neither its values nor whether they can be written to.

        `given` is the array after the call, and its flag `writeable` before and after.
        """
        array, *writeable = given
        self.array(array, before, name="the argument, after the call,", rank=rank, cause=CHANGED)
        if writeable[0] != writeable[1]:
            was, became = ("writeable" if flag else "read-only" for flag in writeable)
            cause = "the flags of the argument itself, which belongs to the caller; set those of a copy or of a view"
            self.fail(f"the argument on rank {rank} is {became} after the call; expected {was}, as before", cause)


def usual_cause(got: object, want: np.ndarray, usual: str) -> str:
    """Return the usual cause of a wrong array that was only moved: another one if all wrong values are special ones."""
    if not isinstance(got, np.ndarray) or got.shape != want.shape or got.dtype != want.dtype:
        return usual
    wrong = ~same_values(got, want, signed_zeros=True)
    return SPECIAL if are_special(want[wrong]).all() else usual


class ForwardCheck(LayerCheck):
    """A `Check` of parts 03 and 04."""

    def gathered(self, function: str, *sizes: int) -> ForwardCheck:
        """Check a function that collects the columns of all ranks of a group, in groups of these sizes."""
        for size in sizes:
            for dtype in self.dtypes():
                for batch, width in [(3, 8 // size)] if self.show else self.shapes(2, 9):
                    self.case = f"mp_size {size}, a batch of {batch}, {width} columns on each rank, {np.dtype(dtype)}"
                    self._gathered(function, self.draw(-(-4 // size), batch, size * width, dtype=dtype), size)
        self.turns(function, lambda parts, _: np.concatenate(parts, axis=1))
        return self

    def _gathered(self, function: str, whole: np.ndarray, size: int) -> None:
        """Split `whole`, of shape (groups, batch, columns), among the ranks of each group, and expect all that the group has back."""
        parts = [np.ascontiguousarray(np.split(whole[r // size], size, axis=1)[r % size]) for r in range(4)]
        answers = self.places.call(on_ranks.collect, [dict(function=function, array=p, size=size) for p in parts], show=self.show)
        name = f"the result of {function}"
        for r, (got, given) in enumerate(answers):
            group = parts[r // size * size :][:size]
            want = np.concatenate(group, axis=1)
            known = {
                "the parts as MPI delivers them, one after the other": np.ravel(group).reshape(want.shape),
                "only this rank's own part": parts[r],
                "the parts stacked on top of each other": np.concatenate(group),
            }
            cause = "parts stacked on top of each other, or in the wrong order"
            self.unchanged(given, parts[r], r)
            self.array(got, want, name=name, rank=r, cause=cause, contiguous=True, instead=known)
            cause = "one all-gather of the parts is enough"
            self.cost(function, "Allgather", len(group), want.nbytes, r, cause)

    def own_columns(self, function: str, *sizes: int) -> ForwardCheck:
        """Check a function whose rank already has the input that its rows of the weight need."""
        for size in sizes:
            for dtype in self.dtypes():
                for batch, width in [(3, 4)] if self.show else self.shapes(2, 9):
                    self.case = f"mp_size {size}, a batch of {batch}, {width} columns on each rank, {np.dtype(dtype)}"
                    self._own_columns(function, list(self.draw(4, batch, width, dtype=dtype)), size)
        self.turns(function, lambda parts, i: parts[i], own_results=False)
        return self

    def _own_columns(self, function: str, parts: list[np.ndarray], size: int) -> None:
        given = [dict(function=function, array=part, size=size) for part in parts]
        for r, (got, after) in enumerate(self.places.call(on_ranks.collect, given, show=self.show)):
            how = dict(name="the input of fc2", rank=r)
            self.unchanged(after, parts[r], r)
            self.array(got, parts[r], cause="other columns than those of this rank's rows", contiguous=True, **how)
            self.silent(function, how["name"], r, cause="compare what a rank has with what it needs")
            self.requests_completed(self.places.unended[r], r)

    def summed(self, function: str, *sizes: int) -> ForwardCheck:
        """Check a function that adds up the partial outputs of a group's ranks."""
        for size in sizes:
            for dtype in self.dtypes():
                batch, width = (3, 4) if self.show else self.sizes(2, 5, 12)
                self._summed(function, size, batch, width, dtype)
            if not self.show:
                for batch, width in ((5, 7), (1, 7), (5, 1), (1, 1)):  # neither 2 nor 4 divides these
                    self._summed(function, size, batch, width, np.float64)
        self.turns(function, lambda terms, _: np.sum(terms, axis=0), rtol=1e-12)
        return self

    def _summed(self, function: str, size: int, batch: int, width: int, dtype: type) -> None:
        self.case = f"mp_size {size}, a batch of {batch}, {width} outputs, {np.dtype(dtype)}"
        terms, rtol = list(self.draw(4, batch, width, dtype=dtype)), 1e-5 if dtype == np.float32 else 1e-12
        answers = self.places.call(on_ranks.collect, [dict(function=function, array=t, size=size) for t in terms], show=self.show)
        for r, (got, given) in enumerate(answers):
            group = terms[r // size * size :][:size]
            total = sum(group)
            known = {"this rank's partial output": terms[r], "the sum over all ranks": sum(terms)}
            how = dict(name="the output of fc2", rank=r)
            self.unchanged(given, terms[r], r)
            scale = float(np.abs(group).max())
            self.array(got, total, cause="a sum over the wrong group", rtol=rtol, scale=scale, contiguous=True, instead=known, **how)
            padded = -(-total.size // len(group)) * len(group)  # some answers pad the array
            nbytes = padded * total.itemsize
            self.cost(function, "Allreduce", len(group), nbytes, r, "one all-reduce is enough")

    def layer(self, style: str, *sizes: int) -> ForwardCheck:
        """Compare a layer that uses both functions with the unsharded product; `style` is "naive" or "megatron"."""
        for size in sizes:
            batch, width, out = self.sizes(3, 2, 9)
            batch, out = (batch, size * out) if style == "naive" else (2 * batch + 1, 2 * out + 1)  # Megatron: no size divides these
            x, w = self.random.standard_normal((batch, size * width)), self.random.standard_normal((size * width, out))
            self.case = f"mp_size {size}, a batch of {batch}, a weight of shape {w.shape}"
            xs, ws = np.split(x, size, axis=1), np.split(w, size, axis=1 if style == "naive" else 0)
            parts = [dict(x=np.ascontiguousarray(xs[i]), w=np.ascontiguousarray(ws[i])) for i in range(size)]
            given = [dict(style=style, size=size, **parts[r % size]) for r in range(4)]
            for r, got in enumerate(self.places.call(on_ranks.forward, given, show=self.show)):
                self.array(got, x @ w, name="the output of the layer", rank=r, cause="see the checks of the two functions", rtol=1e-12)
        return self

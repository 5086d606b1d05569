"""Check of part 30's collectives: results against NumPy on one process, calls, messages, and steps.

With isolated ranks, messages and calls are those that the coordinator saw, and a `Send` of more than 64 bytes waits for its receive.
Without, as in a visible check, they are those of the ranks' traces.
"""

from __future__ import annotations

import numpy as np

from course_lib.check.cases.layouts import CONTIGUOUS
from course_lib.check.cases.repetition import GROUP, KEPT, SHARED, Call, in_turn
from course_lib.check.collectives import contract
from course_lib.check.collectives.messages import MessagesCheck
from course_lib.check.collectives.on_ranks import call_collective, call_virtually
from course_lib.check.collectives.reference import REDUCING, ROOTED, ROWS, wanted

REDUCTIONS = ("add", "minimum", "maximum", "multiply")  # NumPy's names of MPI's SUM, MIN, MAX and PROD
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = (*INTEGERS, "float32", "float64", "complex64", "complex128")
LENGTHS = 70, 90  # of a piece: more than 64 bytes of any dtype, so a Send waits for its receive
LARGE = 100_003  # elements: without isolation, a Send of as many waits for its receive
# Sizes of groups of virtual ranks, and the dtype and the op of each: four at a time.
LARGER_SIZES = ((5, 6, 7, 8), (9, 11, 16, 17))
LARGER_TREES = ((5, 6, 7, 8), (9, 10, 11, 12), (13, 14, 15, 16), (17,))
LARGER_CASES = (("float64", "add"), ("int32", "minimum"), ("float32", "maximum"), ("uint8", "multiply"))
# In turn: which communicator, the dtype, and the op, which must not depend on the order of special values.
TURNS = (
    (0, "float64", "maximum"),
    (1, "float32", "minimum"),
    (0, "int64", "add"),
    (1, "float64", "minimum"),
    (0, "int16", "multiply"),
    (0, "float64", "maximum"),
)
SPLIT = ("Split", -1, 0)  # as in `Ranks.messages`


class CollectivesCheck(MessagesCheck):
    """A `Check` of one of the student's collectives.

    Parameters
    ----------
    function : str
        "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "tree_broadcast" or "pairwise_all_to_all".
    ranks : Ranks
    cost : bool
        Whether messages and steps count, too.
    show : bool
    """

    def __init__(self, function: str, ranks, *, cost: bool = True, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.cost = cost

    def everything(self) -> CollectivesCheck:
        """Check all cases that a right answer must pass; only lengths, groups and values are drawn."""
        if self.show:
            self.run(4, LARGE)
        for size in (4, 3, 2, 1):
            (length,) = self.sizes(1, *LENGTHS)
            for count in (size * length, size * length + size - 1, 0, 1, size + 1, max(1, size - 1)):
                self.run(size, count, root=size - 1)
            if self.function == ROOTED:
                for root in range(size):
                    self.run(size, length, root=root)
            if self.function in REDUCING:
                for op in REDUCTIONS[1:]:
                    self.run(size, size * length + 1, op=op)
                self.run(size, ())
            if self.function != "ring_all_gather":
                self.run(size, (length, 5, 1))
        for i, dtype in enumerate(DTYPES):
            op = REDUCTIONS[i % 4] if dtype in INTEGERS else ("add", "multiply")[i % 2]
            (length,) = self.sizes(1, *LENGTHS)
            self.run(4, 4 * length - 1, dtype, op, root=i % 4)
        for sizes in LARGER_TREES if self.function == ROOTED else LARGER_SIZES:
            self.larger(*sizes)
        self.repeats()
        self.covers("dtypes", "sizes", "group order", "group sizes")
        return self

    def run(self, size: int, shape: int | tuple[int, ...], dtype: str = "float64", op: str = "add", root: int = 0) -> CollectivesCheck:
        """Check one call in groups of `size`: the result, the argument, the calls, the requests, and with `cost` the messages.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the argument; of `pairwise_all_to_all`, without the first dimension, which is the number of ranks.
        op : str
            One of `REDUCTIONS`.
        root : int
            A rank of a group of `size`; a smaller group has the remainder.
        """
        groups = self.groups(size)
        places = self.colors_and_keys(groups)
        arrays, arguments = [], []
        for place in places:
            n = len(groups[place[0]])
            x = self._draw(self._shape(shape, n), dtype)
            more = self._more(op, root % n)
            arrays.append(x)
            arguments.append(dict(function=self.function, x=x, more=more, place=place, watched=not self.ranks.isolated))
        described = self._describe(op, root)
        self.case = f"{self.describe_groups(groups, dtype)}, x of shape {arrays[0].shape}{described}"
        answers = self.call(call_collective, arguments, show=self.show)
        for group in groups:
            messages = []
            for r in group:
                seen = self.ranks.messages[r]
                messages.append(answers[r][3] if seen is None else seen[1:] if seen[:1] == [SPLIT] else seen)
            self._calls(messages, group, [self.ranks.unended[r] for r in group])
            given = [arrays[r] for r in group]
            self._results([answers[r][:3] for r in group], given, group, op, root % len(group), messages)
        return self

    def larger(self, *sizes: int) -> CollectivesCheck:
        """Check one call in groups of more ranks than there are, see `cases.virtual_group`.

        Parameters
        ----------
        sizes : int
            At most four; each rank runs a group of one of these sizes.
        """
        cases, arguments = [], []
        for i, n in enumerate(sizes):
            dtype, op = LARGER_CASES[i]
            (length,) = self.sizes(1, *LENGTHS)
            count = length if self.function == ROWS else n * length - 1
            arrays = [self._draw(self._shape(count, n), dtype) for _ in range(n)]
            root = (n // 2, n - 1, 1, 0)[i]
            cases.append((arrays, op, root))
            seed = int(self.random.integers(1 << 32))
            more = self._more(op, root)
            arguments.append(dict(function=self.function, arrays=arrays, more=more, seed=seed))
        nothing = dict(function=self.function, arrays=[], more=[], seed=0)
        arguments += [nothing] * (4 - len(sizes))
        self.case = ", ".join(f"a group of {n} virtual ranks on rank {r}" for r, n in enumerate(sizes))
        outcomes = self.call(call_virtually, arguments, show=self.show)
        for (arrays, op, root), of_group in zip(cases, outcomes, strict=False):
            group = list(range(len(arrays)))
            x = f"x of shape {arrays[0].shape}, {arrays[0].dtype}"
            self.case = f"a group of {len(arrays)} virtual ranks, {x}{self._describe(op, root)}"
            answers, messages, _, unended = zip(*of_group, strict=True)
            self._calls(list(messages), group, list(unended))
            self._results(list(answers), arrays, group, op, root, list(messages))
        self.covers("many ranks")
        return self

    def repeats(self) -> CollectivesCheck:
        """Check calls with several lengths and dtypes in turn, on two communicators with the same two ranks."""
        groups = self.groups(2)
        length, other = self.sizes(2, *LENGTHS)
        lengths = (length, other, 1, length, other, length)
        calls = []
        for i, (count, (comm, dtype, op)) in enumerate(zip(lengths, TURNS, strict=True)):
            shape = self._shape(count, 2)
            arrays = [self.special(*shape, dtype=dtype) for _ in range(4)]
            arguments = [[x, GROUP, *self._more(op, i % 2)] for x in arrays]
            calls.append(Call(arguments, comm, CONTIGUOUS[i % len(CONTIGUOUS)]))
        self.case = f"{self.describe_groups(groups, 'float64')}, several calls in turn on two communicators"
        results = in_turn(self, self.function, calls, [groups, groups])
        case = self.case
        for i, (call, (_, dtype, op)) in enumerate(zip(calls, TURNS, strict=True)):
            self.case = f"call {i + 1} of {case}, {dtype}{self._describe(op, i % 2)}"
            for group in groups:
                arrays = [call.arguments[r][0] for r in group]
                want = wanted(self.function, arrays, getattr(np, op), i % 2)
                for r, right in zip(group, want.results, strict=True):
                    name = f"the result of {self.function}"
                    self.array(results[i][r], right, name=name, rank=r, rtol=want.rtol, scale=want.scale, cause=KEPT)
        self.case = case
        for r in range(4):
            if self.ranks.messages[r] is not None:
                self._calls([self.ranks.messages[r][2:]], [r], [self.ranks.unended[r]])
        self.covers("layouts")
        return self

    def _shape(self, shape: int | tuple[int, ...], n: int) -> tuple[int, ...]:
        shape = (shape,) if isinstance(shape, int) else shape
        return (n, *shape) if self.function == ROWS else shape

    def _more(self, op: str, root: int) -> list:
        """Return the function's arguments after x and comm."""
        if self.function in REDUCING:
            return [getattr(np, op)]
        return [root] if self.function == ROOTED else []

    def _describe(self, op: str, root: int) -> str:
        """Describe these arguments for a message."""
        if self.function in REDUCING:
            return f", {op}"
        return f", root {root}" if self.function == ROOTED else ""

    def _draw(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Draw an array: integers from all that the dtype has, and fractions from -2 to 2, none near 0."""
        kind = np.dtype(dtype)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            return self.random.integers(limits.min, limits.max, shape, kind, endpoint=True)
        parts = self.random.uniform(0.5, 2, (2, *shape)) * self.random.choice([-1, 1], (2, *shape))
        return np.asarray(parts[0] + 1j * parts[1] if kind.kind == "c" else parts[0]).astype(kind)

    def _results(
        self,
        answers: list[tuple],
        arrays: list[np.ndarray],
        group: list[int],
        op: str,
        root: int,
        messages: list[list[tuple[str, int, int]]],
    ) -> None:
        """Check what a group's ranks have returned, given these arrays, and with `cost` their messages."""
        want = wanted(self.function, arrays, getattr(np, op), root)
        sent = [[(to, nbytes) for way, to, nbytes in mine if way == "to"] for mine in messages]
        cause, mistakes = want.cause, want.mistakes
        backwards = all({to for to, _ in mine} == {group[i - 1]} for i, mine in enumerate(sent))
        if self.function.startswith("ring") and len(group) > 2 and backwards:
            cause = "messages that go to the previous rank, with the pieces of a ring that goes to the next one"
            mistakes = {}
        for i, (r, (result, after, later)) in enumerate(zip(group, answers, strict=True)):
            name = f"the result of {self.function}"
            self.array(
                result,
                want.results[i],
                name=name,
                rank=r,
                rtol=want.rtol,
                scale=want.scale,
                cause=cause,
                instead={mistake: results[i] for mistake, results in mistakes.items()},
                shape_cause="",
            )
            name = "the argument, after the call,"
            self.array(after, arrays[i], name=name, rank=r, cause="receiving or adding into the argument")
            name = f"the result of {self.function}, when the caller has reused x,"
            self.array(later, result, name=name, rank=r, cause=SHARED)
        if self.cost:
            self.messages(sent, group, arrays[0], root)

    def _calls(self, messages: list[list[tuple[str, int, int]]], group: list[int], unended: list[int]) -> None:
        """Check that a group's ranks made no collective call, and completed their requests."""
        for r, mine, left in zip(group, messages, unended, strict=True):
            others = sorted({way for way, *_ in mine} - {"to", "from"})
            if others:
                cause = "here you have Send, Recv, Sendrecv, Isend and Irecv"
                limit = contract.NO_COLLECTIVES[self.function]
                self.fail(f"{self.function} on rank {r} calls {', '.join(others)}", cause, limit=limit)
            self.requests_completed(left, r)
        self.covers("calls")

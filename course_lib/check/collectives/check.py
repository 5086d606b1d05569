"""Check of part 30's collectives: results against NumPy on one process, calls, bytes, and steps.

With isolated ranks, calls, bytes and messages are those that the coordinator saw, and a `Send` of more than 64 bytes waits for its receive.
"""

from __future__ import annotations

import math

import numpy as np

from course_lib.check.collectives.on_ranks import broadcast_alone, call_collective, choose_often, make_group
from course_lib.check.groups import GroupCheck
from course_lib.cluster.isolated.traffic_counter import TAG_BYTES
from course_lib.utils import wording

REDUCTIONS = ("add", "minimum", "maximum", "multiply")  # NumPy's names of MPI's SUM, MIN, MAX and PROD
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128")
TOLERANCES = {"f": 1e-5, "d": 1e-13, "F": 1e-5, "D": 1e-13}  # by the dtype's character: the order of a reduction is free
ALGORITHMS = ("recursive doubling", "ring")  # what `choose` returns; indexed by whether the ring is faster
REDUCING = ("ring_reduce_scatter", "ring_all_reduce")
ROOTED = "tree_broadcast"
NO_COLLECTIVES = "a collective call; here you have Send, Recv, Sendrecv, Isend and Irecv"


class CollectivesCheck(GroupCheck):
    """A `Check` of one of the student's collectives.

    Parameters
    ----------
    function : str
        "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce", "tree_broadcast" or "pairwise_all_to_all".
    ranks : Ranks
    cost : bool
        Whether bytes, messages and steps count, too.
    show : bool
    """

    def __init__(self, function: str, ranks, *, cost: bool = True, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.function, self.cost = function, cost
        self._earlier: list | None = None  # what the call before has returned

    def run(self, size: int, shape: int | tuple[int, ...], dtype: str = "float64", op: str = "add", root: int = 0) -> CollectivesCheck:
        """Check one call in groups of `size`: the result, the argument, the calls, the requests, and with `cost` what is sent.

        Parameters
        ----------
        shape : int or tuple of int
            Shape of the argument; of `pairwise_all_to_all`, without the first dimension, which is the number of ranks.
        op : str
            One of `REDUCTIONS`.
        root : int
            A rank of a group of `size`; a smaller group has the remainder.
        """
        groups, shape = self.groups(size), (shape,) if isinstance(shape, int) else shape
        self.call(make_group, [dict(color=color, key=key) for color, key in self.colors_and_keys(groups)])
        given, arguments = [None] * 4, [None] * 4
        for group in groups:
            n = len(group)
            more = {"ring_reduce_scatter": [op], "ring_all_reduce": [op], ROOTED: [root % n]}.get(self.function, [])
            for r in group:
                given[r] = self._draw((n, *shape) if self.function == "pairwise_all_to_all" else shape, dtype)
                arguments[r] = dict(function=self.function, x=given[r], more=more, watched=self.show)
        what = f", {op}" if self.function in REDUCING else f", root {root}" if self.function == ROOTED else ""
        self.case = f"{self.describe_groups(groups, dtype)}, x of shape {given[0].shape}{what}"
        answers = self.call(call_collective, arguments, show=self.show)
        for group in groups:
            # As the coordinator saw it; without one, as in a visible check, by the ranks' traces.
            made = [self.ranks.messages[r] or answers[r][3] for r in group]
            self._calls(made, group)
            self._results([answers[r] for r in group], [given[r] for r in group], group, op, root % len(group), made)
            if self.cost:
                self._cost(made, group, given[group[0]], root % len(group))
        for r, (*_, earlier) in enumerate(answers) if self._earlier else ():
            cause = "a buffer that is kept, and returned by each call; return a new array"
            self.array(earlier, self._earlier[r], name=f"what the call of {self.function} before has returned", rank=r, cause=cause)
        self._earlier = [out for out, *_ in answers]
        return self

    def everything(self) -> None:
        """Run all cases that a right answer must pass; only shapes and values are drawn."""
        for size in (4, 3, 2, 1):
            many = self.sizes(1, 70, 90)[0]  # in a piece: more than 64 bytes of any dtype, so a Send waits for its receive
            for count in (size * many, size * many, size * many + size - 1, 0, 1, size + 1, max(1, size - 1)):
                self.run(size, count, root=int(self.random.integers(size)))
            for root in range(size if self.function == ROOTED else 0):
                self.run(size, many, root=root)
            for op in REDUCTIONS if self.function in REDUCING else ():
                self.run(size, size * many + 1, op=op)
        for i, dtype in enumerate(DTYPES):
            many = self.sizes(1, 70, 90)[0]
            ops = REDUCTIONS[i % 4 :] + REDUCTIONS[: i % 4]
            op = next(op for op in ops if op in ("add", "multiply") or not dtype.startswith("complex"))
            self.run(4, 4 * many - 1, dtype, op, root=i % 4)
        if self.function != "ring_all_gather":
            for size in (4, 3):
                self.run(size, (self.sizes(1, 70, 90)[0], 5, 1), root=size - 1)
        for size in (7, 8, 11) if self.function == ROOTED and self.cost else ():
            self.larger_tree(size)

    def larger_tree(self, size: int) -> CollectivesCheck:
        """Check the steps of a broadcast on more ranks than there are: each place runs by itself, with what it would receive."""
        root, x = int(self.random.integers(size)), self._draw((self.sizes(1, 70, 90)[0],), "float64")
        self.case = f"a group of {size} ranks, root {root}"
        given = [dict(size=size, ranks=list(range(r, size, 4)), x=x, root=root) for r in range(4)]
        answers = self.call(broadcast_alone, given, show=self.show)
        made = [answers[r % 4][r // 4] for r in range(size)]
        reached = [to for *_, sent in made for to, _ in sent]
        for r, (out, received, _) in enumerate(made):
            if not received == reached.count(r) == (r != root):
                said = f"rank {r} receives {received} messages, and is sent {reached.count(r)}"
                self.fail(said, "a place that is nobody's child, as beyond four ranks, or a root that receives")
            self.array(out, x, name=f"the result of {self.function}", rank=r, cause="an array that was not received")
        self._tree([sent for *_, sent in made], list(range(size)), x.nbytes, root)
        return self

    def _draw(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Draw an array: integers from all that the dtype has, and fractions from -2 to 2, none near 0."""
        kind = np.dtype(dtype)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            return self.random.integers(limits.min, limits.max, shape, kind, endpoint=True)
        parts = self.random.uniform(0.5, 2, (2, *shape)) * self.random.choice([-1, 1], (2, *shape))
        return (parts[0] + 1j * parts[1] if kind.kind == "c" else parts[0]).astype(kind)

    def _results(self, answers: list, given: list[np.ndarray], group: list[int], op: str, root: int, made: list[list]) -> None:
        """Compare a group's results and arguments with what they should be; `made` are its calls."""
        wants, scale, cause, mistakes = self._wanted(given, op, root)
        n, receivers = len(group), [{to for way, to, _ in mine if way == "to"} for mine in made]
        if self.function.startswith("ring") and n > 2 and all(to == {group[i - 1]} for i, to in enumerate(receivers)):
            cause, mistakes = "messages that go to the previous rank, with the pieces of a ring that goes to the next one", {}
        rtol = TOLERANCES.get(given[0].dtype.char, 0.0) if self.function in REDUCING and op in ("add", "multiply") else 0.0
        for i, (r, (out, after, shared, *_)) in enumerate(zip(group, answers, strict=True)):
            what, known = f"the result of {self.function}", {mistake: arrays[i] for mistake, arrays in mistakes.items()}
            self.array(out, wants[i], name=what, rank=r, rtol=rtol, scale=scale, cause=cause, instead=known, shape_cause="")
            self.array(after, given[i], name="the argument, after the call,", rank=r, cause="receiving or adding into the argument")
            if shared:
                cause = "a result that is the argument itself, or a view of it, as with one rank; a copy is a new array"
                self.fail(f"the result of {self.function} on rank {r} shares its memory with the argument", cause)

    def _wanted(self, given: list[np.ndarray], op: str, root: int) -> tuple:
        """Return each rank's result, the magnitude of a reduction's terms, the usual cause, and by known mistake each rank's result."""
        n, stacked = len(given), np.stack(given)
        if self.function == "ring_all_gather":
            wants = [np.concatenate(given)] * n
            turned = {"the parts in the order of their arrival": [np.concatenate([given[(i - s) % n] for s in range(n)]) for i in range(n)]}
            turned["a table with a row for each part; join them in one row"] = [stacked] * n
            cause = "a part in the wrong place: what arrives in a step is the part of the rank that many places back"
        elif self.function == ROOTED:
            wants = [given[root]] * n
            turned = {f"x of rank {k} of the group instead of the root's": [given[k]] * n for k in range(n) if k != root}
            cause = "an array that was not received, or a root taken for rank 0"
        elif self.function == "pairwise_all_to_all":
            wants = list(np.ascontiguousarray(stacked.swapaxes(0, 1)))
            turned = {"the rank's own x": given}
            cause = "a row in the wrong place: row j of the result comes from rank j"
        else:
            total, added = (getattr(np, name).reduce(stacked, axis=0, dtype=stacked.dtype) for name in (op, "add"))
            cause, sums = "a piece that misses a rank's contribution, or has one twice", f"the sum, but op is np.{op}"
            wants, turned = [total] * n, {"the rank's own x": given, sums: [added] * n}
            turned["the right result in another shape; give it the shape of x"] = [total.reshape(-1)] * n
            turned["the right result and, behind it, the zeros that filled up the last piece"] = [pieces(total, n).reshape(-1)] * n
            if self.function == "ring_reduce_scatter":
                wants, own = list(pieces(total, n)), [pieces(x, n) for x in given]
                leaves = "If piece r leaves rank r first, piece r + 1 is complete there in the end: work out which piece must leave first"
                turned = {
                    f"the rank's own piece, without the others'. {leaves}": [own[i][i] for i in range(n)],
                    sums: list(pieces(added, n)),
                }
                turned |= {f"the piece of the rank {k} place{'s' * (k > 1)} on": wants[k:] + wants[:k] for k in range(1, n)}
        scale = None
        if self.function in REDUCING and stacked.dtype.kind in "fc" and stacked.size:
            scale = float(np.abs(stacked).sum(axis=0).max() if op == "add" else np.abs(wants[0]).max())
        return wants, scale, cause, turned if n > 1 else {}

    def _calls(self, made: list[list[tuple[str, int, int]]], group: list[int]) -> None:
        """Check that a group's ranks made no collective call, and completed their requests."""
        for r, mine in zip(group, made, strict=True):
            if others := sorted({way for way, *_ in mine} - {"to", "from"}):
                self.fail(f"{self.function} on rank {r} calls {', '.join(others)}", NO_COLLECTIVES)
            self.requests_completed(self.ranks.unended[r], r)

    def _cost(self, made: list[list[tuple[str, int, int]]], group: list[int], x: np.ndarray, root: int) -> None:
        """Check the bytes and messages of a group's ranks; `x` is an argument."""
        n, sent = len(group), [[(to, nbytes) for way, to, nbytes in mine if way == "to"] for mine in made]
        if self.function == ROOTED:
            return self._tree(sent, group, x.nbytes, root)
        piece = x.nbytes if self.function == "ring_all_gather" else -(-x.size // n) * x.itemsize  # also a row of an all-to-all
        steps = (n - 1) * (2 if self.function == "ring_all_reduce" else 1)
        for i, r in enumerate(group):
            self._steps(sent[i], steps, r)
            cause = "whole arrays in the place of pieces, or more steps than are needed"
            self.sent(self.ranks.traffic[r], steps * (piece + TAG_BYTES), name=self.function, rank=r, cause=cause)
            if (most := max((nbytes for _, nbytes in sent[i]), default=0)) > piece:
                cause = "a last piece that takes all that n does not divide; spread it, or fill up with zeros"
                self.fail(f"{self.function} on rank {r} sends a message of {most:,} bytes; {piece:,} are enough", cause)
            if self.function != "pairwise_all_to_all":
                self._neighbours([to for to, _ in sent[i]], group, i)
        if self.function == "pairwise_all_to_all":
            for step, whom in enumerate(zip(*([to for to, _ in mine] for mine in sent), strict=False)):
                if len(set(whom)) < n:
                    twice = max(whom, key=whom.count)
                    cause = "every rank begins with rank 0; in step s, take the rank s places on instead"
                    self.fail(f"in step {step + 1}, {whom.count(twice)} ranks send to rank {twice} at once", cause)

    def _steps(self, sent: list[tuple[int, int]], steps: int, r: int) -> None:
        if len(sent) > steps:
            cause = "a step too many, a message to itself, or pieces that are cut up further"
            self.fail(f"{self.function} on rank {r} sends {len(sent)} messages; {steps} are enough", cause)

    def _neighbours(self, receivers: list[int], group: list[int], i: int) -> None:
        """Check that a rank of a ring sends to its next rank only; all the way round the other way is as good."""
        n = len(group)
        ways = {group[(i + 1) % n]}, {group[i - 1]}
        allowed = [ways[0] | ways[1]] if self.function == "ring_all_reduce" else ways  # its two halves may go different ways
        if not any(set(receivers) <= way for way in allowed):
            far = sorted(set(receivers) - ways[0])[0]
            cause = "an exchange with every rank in turn; in a ring, a piece goes from neighbour to neighbour"
            self.fail(
                f"{self.function} on rank {group[i]} sends to rank {far}, and not only to the next one, rank {group[(i + 1) % n]}", cause
            )

    def _tree(self, sent: list[list[tuple[int, int]]], group: list[int], nbytes: int, root: int) -> None:
        """Check the tree of a broadcast: each other rank gets the array once, after at most log2 n steps, rounded up."""
        n, steps = len(group), math.ceil(math.log2(len(group)))
        parents: dict[int, tuple[int, int]] = {}  # of each rank: the sender, and which of the sender's messages it was
        for r, mine in zip(group, sent, strict=True):
            for number, (to, size) in enumerate(mine, 1):
                if to in parents or to == group[root] or size != nbytes:
                    cause = "a send to a place beyond n - 1" if n & (n - 1) else "an array that is sent in pieces, or twice"
                    self.fail(
                        f"{self.function}: rank {r} sends rank {to} {size:,} bytes that it has already, or not the whole array", cause
                    )
                parents[to] = r, number
        for r in group:
            depth, at = 0, r
            while at in parents:
                at, number = parents[at]
                depth += number
            if depth > steps:
                cause = "one rank that sends to all, a chain, or a root that serves the rank without children first"
                self.fail(f"{self.function}: rank {r} has the array after {depth} steps; {steps} are enough for {n} ranks", cause)


class ChoiceCheck(GroupCheck):
    """A `Check` of `choose`."""

    def between(self, *sizes: int) -> ChoiceCheck:
        """Check the choice for these numbers of ranks, on either side of where both algorithms take equally long, and far from it."""
        for n in sizes:
            alpha, beta = 10 ** self.random.uniform(-6, -4), 10 ** self.random.uniform(8, 11)
            at = equal_bytes(n, alpha, beta)
            factors = (0.02, 0.5, 0.97, 1.03, 2, 50)
            cases = [(int(f * min(at, 1e9 * alpha * beta)), n, alpha, beta) for f in factors] if math.isfinite(at) else []
            cases += [(0, n, alpha, beta), (1 << 40, n, alpha, beta)]
            self.case, wants = f"{n} ranks", [ALGORITHMS[nbytes > at] for nbytes, *_ in cases]
            for r, said in enumerate(self.call(choose_often, dict(cases=cases), show=self.show)):
                self._compare(said, wants, cases, r)
        return self

    def _compare(self, said: list, wants: list[str], cases: list[tuple], r: int) -> None:
        """Compare what rank r says with what it should say in these cases."""
        if strange := [got for got in said if not isinstance(got, str) or got not in ALGORITHMS]:
            cause = "a missing return" if strange[0] is None else ""
            self.fail(f"choose on rank {r} must return 'ring' or 'recursive doubling'; got {wording.shown(strange[0])}", cause)
        cause = "one half of the ring forgotten, whole arrays in its steps, or beta taken for the time of a byte"
        if not any(got == want for got, want in zip(said, wants, strict=True)):
            cause = "the two algorithms swapped"
        for (nbytes, n, alpha, beta), got, want in zip(cases, said, wants, strict=True):
            if got != want:
                if self.show:
                    self.case = f"{nbytes:,} bytes on {n} ranks, alpha {alpha:.3g} s, beta {beta:.3g} bytes per second"
                self.fail(f"choose on rank {r} says " + (f"{got!r}, expected {want!r}" if self.show else "the slower one"), cause)


def equal_bytes(n: int, alpha: float, beta: float) -> float:
    """Bytes for which ring and recursive doubling take equally long on n ranks, a power of two; infinite if the ring is never faster.

    The model is that of Thakur, Rabenseifner and Gropp, 2005, "Optimization of collective communication operations in MPICH", without the
    time of the additions.

    >>> round(equal_bytes(4, 1e-5, 1e9) / (1e-5 * 1e9), 9)
    8.0
    >>> equal_bytes(2, 1e-5, 1e9)
    inf
    """
    more_steps, fewer_arrays = 2 * (n - 1) - math.log2(n), math.log2(n) - 2 * (n - 1) / n
    return alpha * beta * more_steps / fewer_arrays if fewer_arrays > 0 else math.inf


def pieces(x: np.ndarray, n: int) -> np.ndarray:
    """The n pieces of an array, flattened and padded with zeros: shape ``(n, ceil(size / n))``.

    >>> pieces(np.arange(1, 6), 2)
    array([[1, 2, 3],
           [4, 5, 0]])
    """
    padded = np.zeros(n * -(-x.size // n), x.dtype)
    padded[: x.size] = x.reshape(-1)
    return padded.reshape(n, -1)

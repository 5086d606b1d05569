"""Check of part 32's `checkpoint`: gradients to the last bit, when the function is called again, random states, and memory.

Each call of a function passes a gate, whose number changes its result: a gradient is right only if the function was called again in
backward, when what came after it was done, and once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from course_lib import memory
from course_lib.check.cases.layouts import LAYOUTS
from course_lib.check.groups import GroupCheck
from course_lib.check.recompute import contract, segment
from course_lib.check.recompute.on_ranks import SHIFT, begin_large, build_segments, end_large, run_schedule, step_large
from course_lib.check.recompute.segment import SegmentArrays
from course_lib.gpt.training.activation_memory import LayerCost, Ranges, peak_memory
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

SCHEDULE = [("F", 0), ("F", 1), ("B", 0), ("E", 3), ("F", 2), ("B", 1), ("B", 2)]
MICRO_BATCHES = 4
NUMBERS = (-2.0, -1.0, 1.0, 2.0)
LARGEST = {4: 2**22, 8: 2**50}  # number in a case, by bytes of its dtype: whole numbers are exact up to four and eight times as much
MOST_DRAWN = 2000
NOT_CALLED_AGAIN = "the gradient of the first forward: the function was not called again"
PAST_THE_INPUTS = (
    "a second forward that does not begin at new leaves, so that its backward goes past the inputs; or inputs in another order"
)
CLOSED_GATES = [(1e18, 0.0, 1e18)] * 6  # nobody gets through: a function that is called too often
LARGE_SHAPE = 512, 512  # float32: a MiB
EXPLANATIONS = {
    "TooEarly": (
        "the function is called too early, or once more than needed",
        "a forward that calls it twice, or a call of backward() on the recomputed result, which ends all of "
        "backward, where run_backward only goes through it",
    ),
    "TooLate": ("the function is called too late", "a function that was not called again when its own backward began"),
    "Deadlock": (
        "the ranks do not make the same calls in backward",
        "a function that some ranks do not call again, or call in another order",
    ),
}
ROUNDING = {4: 1e-5, 8: 1e-12}  # tolerance of sums of fractions, by bytes of the dtype


@dataclass
class GroupCase:
    """A group's segments, micro-batches and expected results.

    Attributes
    ----------
    ranks : list of int
    segments : list of list of SegmentArrays
        For each segment, the arrays of each rank.
    batches : list of list of dict
        For each micro-batch, the arguments of each rank.
    numbers : dict of (str, int) to numpy.ndarray
        Numbers of the gates that each rank passes in a forward or backward of a micro-batch, ``(gates, ranks)``.
    ends : numpy.ndarray
        Numbers of the gates at the end of each backward, ``(micro-batches, ranks)``.
    found : list
        For each micro-batch, the ranks' results and gradients, and what these would be if nothing were recomputed.
    passes : bool
        Whether a gradient arrives at every segment of every rank, but for those that `collectives` gives none.
    """

    ranks: list[int]
    segments: list[list[SegmentArrays]]
    batches: list[list[dict]]
    numbers: dict[tuple[str, int], np.ndarray]
    ends: np.ndarray
    found: list
    passes: bool = True


class RecomputeCheck(GroupCheck):
    """A `Check` of `checkpoint`, in groups of the four ranks."""

    _next_layout = 0  # of the next micro-batch, so that each one occurs

    def gradients(self, size: int = 4, dtype: type = np.float64, *, nested: bool = False, whole: bool = True) -> RecomputeCheck:
        """Check results and gradients of micro-batches in flight at once.

        Parameters
        ----------
        size : int
            Ranks of a group.
        dtype : dtype
        nested : bool
            Whether there is a checkpoint inside another.
        whole : bool
            Whether all values are whole numbers, so that results are compared to the last bit;
            else they need all bits of the dtype.
        """
        return self._run(size, dtype, [[], [], []], nested, whole=whole)

    def random_states(self, size: int = 4, dtype: type = np.float64, *, nested: bool = False) -> RecomputeCheck:
        """Check the same with dropout, from generators that draw the same on all ranks, or something else on each."""
        drawing = [[], ["replicated", "sharded"], ["router", "sharded"]] if nested else [["sharded"], ["replicated", "router"], ["sharded"]]
        return self._run(size, dtype, drawing, nested)

    def collectives(self, size: int = 4, dtype: type = np.float64, *, nested: bool = False) -> RecomputeCheck:
        """Check that a rank whose gradient is zero recomputes all the same, as the others need it."""
        return self._run(size, dtype, [[], [], []], nested, zero=True)

    def _run(self, size: int, dtype: type, drawing: list, nested: bool, zero: bool = False, whole: bool = True) -> RecomputeCheck:
        groups = self.groups(size)
        self._next_layout += MICRO_BATCHES
        self.case = f"{self.describe_groups(groups, dtype)}{', one checkpoint inside another' * nested}"
        seed, extra = int(self.random.integers(1 << 30)), f"router{int(self.random.integers(1000))}"
        drawing = [[extra if name == "router" else name for name in names] for names in drawing]
        how = seed, extra, drawing, nested
        cases, states = zip(*(self._draw_telling(group, dtype, zero, whole, how) for group in groups), strict=True)
        noted = not any(drawing) and not zero
        for case in cases:
            case.ends = case.ends if noted else np.ones_like(case.ends)  # without a gate
        given, gates, batches = [{}] * 4, [[]] * 4, [{}] * 4
        for color, case in enumerate(cases):
            for key, r in enumerate(case.ranks):
                own = [ranks[key] for ranks in case.segments]
                given[r] = dict(
                    weights=[one.weight for one in own], table=own[0].table, place=(color, key), seed=seed, extra=extra, drawing=drawing
                )
                batches[r] = dict(schedule=SCHEDULE, batches=[ranks[key] for ranks in case.batches], nested=nested, noted=noted)
                gates[r] = self._gates(case, key, nested, noted)
        self.ranks.call(build_segments, given, show=self.show)
        answers = self.call(run_schedule, batches, explain=EXPLANATIONS, show=self.show, gates=gates)
        for case, drawn in zip(cases, states, strict=True):
            for key, r in enumerate(case.ranks):
                tolerance = 0.0 if whole else ROUNDING[np.dtype(dtype).itemsize]
                self._compare(case, key, r, answers[r], [d[key] for d in drawn], any(drawing), tolerance)
                made = sum(6 + nested if what == "B" else 3 for what, _ in SCHEDULE) + len(SCHEDULE)
                self.calls(
                    self.ranks.traffic[r],
                    {"Allreduce": made},
                    group=case.ranks,
                    name="a step with checkpoint",
                    rank=r,
                    limit=contract.NO_CALLS,
                )
        self.covers("dtypes", "layouts", "sizes", "group order", "group sizes", "repetition", "arguments", "results")
        return self

    def _draw_telling(self, group: list[int], dtype: type, zero: bool, whole: bool, how: tuple) -> tuple[GroupCase, list]:
        """Draw a case in which every gradient of every rank is there, and would be another one if nothing were recomputed."""
        for _ in range(MOST_DRAWN):
            case = self._draw(group, dtype, zero, whole, random=any(how[2]))
            states = self._expected(case, *how)
            steps = [case.found[i][1:] for what, i in SCHEDULE if what == "B"]
            arrays = [grad for right, _ in steps for one in right for grad in one.values()]
            large = max(np.abs(array).max() for array in [*arrays, *(case.found[i][0][0] for what, i in SCHEDULE if what == "B")])
            differs = all(any(np.any(a[name] != b[name]) for a, b in zip(right, kept, strict=True) for name in a) for right, kept in steps)
            if all(map(np.any, arrays)) and differs and case.passes and large < LARGEST[np.dtype(dtype).itemsize]:
                return case, states
        raise RuntimeError(f"no case was found for {self.case}.")

    def _draw(self, group: list[int], dtype: type, zero: bool, whole: bool, random: bool) -> GroupCase:
        """Draw small numbers; sums of whole ones are exact in any order. With `random`, parts of them will be dropped."""
        n, (words, wide, out) = len(group), self.sizes(3, 3, 8)
        # Of few tokens, dropout would nearly always drop everything that leads to some gradient.
        lengths = self.sizes(MICRO_BATCHES, 4, 9) if random else self.sizes(MICRO_BATCHES, 1, 5)

        def draw(*shape: int, most: int = 1) -> np.ndarray:
            drawn = self.random.choice([-1, 1], shape) * self.random.integers(1, most + 1, shape)
            return (drawn if whole else drawn * self.random.uniform(0.5, 1, shape)).astype(dtype)

        shapes = [(wide, wide), (wide, out), (out, out)]
        replicated = [draw(*shape) for shape in shapes]
        table = draw(words, wide, most=2)
        segments = [
            [SegmentArrays((w if k == 0 else draw(*w.shape)), table.copy() if k == 0 else None, None, np.empty(0), 0) for _ in group]
            for k, w in enumerate(replicated)
        ]
        batches = []
        for i, tokens in enumerate(lengths):
            each = []
            s = int(self.random.choice([-1, 1, 2]))
            layout = LAYOUTS[(self._next_layout + i) % len(LAYOUTS)]
            for key in range(n):
                grad = draw(2, tokens, out) * (0 if zero and i == 1 and 0 < key == n - 1 else 1)
                one = dict(tokens=self.random.integers(0, words, (2, tokens)), v0=draw(2, tokens, wide), m0=draw(2, tokens, wide))
                each.append(
                    one
                    | dict(v=draw(2, tokens, out), m=np.where(draw(2, tokens, out) > 0, 2, 1).astype(dtype), s=s, grad=grad, layout=layout)
                )
            batches.append(each)
        ends = self.random.choice(NUMBERS, (MICRO_BATCHES, n))
        return GroupCase(group, segments, batches, {}, ends, [None] * MICRO_BATCHES)

    def _expected(self, case: GroupCase, seed: int, extra: str, drawing: list, nested: bool) -> list[list[np.ndarray]]:
        """Fill in the expected results; return what each generator of each rank draws afterwards."""
        n = len(case.ranks)
        seeds = {"replicated": lambda key: [seed, 0], "sharded": lambda key: [seed, 1 + key], extra: lambda key: [seed, 100 + key]}
        states = {name: [np.random.default_rng(of(key)) for key in range(n)] for name, of in seeds.items()}
        left: dict[int, tuple] = {}
        for what, i in SCHEDULE:
            numbers = self.random.choice(NUMBERS, (4 if nested and what == "B" else 3, n))
            case.numbers[what, i] = numbers
            if what != "B":
                left[i] = self._forward(case, i, numbers, states, drawing)
                if what == "E":
                    case.found[i] = left[i][1]
            else:
                first_numbers = case.numbers["F", i]
                case.found[i] = left[i][1], *(self._backward(case, i, left[i], k, nested) for k in (numbers, first_numbers))
        return [[one.random(3) for one in states[name]] for name in seeds]

    @staticmethod
    def _set(case: GroupCase, i: int) -> None:
        for key, b in enumerate(case.batches[i]):
            for k, name in enumerate(("v0", "v", None)):
                one = case.segments[k][key]
                one.v, one.m, one.s = b[name] if name else None, b["m0" if k == 0 else "m"], b["s"]

    def _forward(self, case: GroupCase, i: int, numbers: np.ndarray, states: dict, drawing: list) -> tuple:
        """Inputs of each segment, the results of the micro-batch, and its masks."""
        self._set(case, i)
        xs, inputs, every, middle = [b["tokens"] for b in case.batches[i]], [], [], []
        for k, own in enumerate(case.segments):
            shape = (*np.shape(xs[0])[:2], own[0].weight.shape[1])
            masks = [[states[name][key].random(shape) >= segment.RATE for name in drawing[k]] for key in range(len(own))]
            inputs.append(xs)
            every.append(masks)
            _, xs, _ = segment.forward(own, xs, numbers[k], masks)
            middle = xs if k == 1 else middle
        return inputs, [x + y + 3 * b["v"] for x, y, b in zip(xs, middle, case.batches[i], strict=True)], every

    def _backward(self, case: GroupCase, i: int, left: tuple, numbers: np.ndarray, nested: bool) -> list[dict]:
        """Each rank's gradients in a micro-batch, by name, if backward's gates give these numbers."""
        self._set(case, i)
        inputs, _, masks = left
        for own in case.segments:
            for one in own:
                one.grads = {}
        first, second, third = case.segments
        grads = [b["grad"] for b in case.batches[i]]
        if nested:
            if len(numbers) < 4:  # if nothing is recomputed
                numbers = np.array([numbers[1], numbers[2], numbers[1], numbers[0]])
            middle = segment.forward(second, inputs[1], numbers[0], masks[1])[1]
            order = (third, middle, numbers[1], masks[2]), (second, inputs[1], numbers[2], masks[1])
            order = *order, (first, inputs[0], numbers[3], masks[0])
        else:
            if numbers is case.numbers["F", i]:
                numbers = numbers[::-1]
            order = tuple((case.segments[k], inputs[k], numbers[2 - k], masks[k]) for k in (2, 1, 0))
        at = segment.backward(*order[0], grads)
        then = [x + grad for x, grad in zip(at, grads, strict=True)]
        at = segment.backward(*order[1], then)
        segment.backward(*order[2], at)
        case.passes &= all(np.any(grad) for grad in (*then, *at))
        found = []
        for key, grad in enumerate(grads):
            one = {f"segment {k}'s weight": own[key].grads["weight"] for k, own in enumerate(case.segments)}
            found.append(one | {"table": first[key].grads["table"], "v": second[key].grads["v"] + 3 * grad})
        return found

    def _gates(self, case: GroupCase, key: int, nested: bool, noted: bool) -> list[tuple]:
        """Gates of a rank, each with the bytes that it has sent by then."""
        found, sent, alone = [], 0, len(case.ranks) == 1
        row_bytes = [own[0].weight.shape[1] * own[0].weight.itemsize for own in case.segments]
        for what, i in SCHEDULE:
            rows = case.batches[i][0]["grad"][..., 0].size
            back = what == "B"
            # The segment of each gate, and how often it all-reduces before the next one.
            steps = [(0, 1), (1, 1), (2, 1)] if not back else [(2, 2), (1, 2), (0, 2)]
            if back and nested:
                steps = [(1, 1), (2, 2), (1, 2), (0, 2)]
            for (k, times), number in zip(steps, case.numbers[what, i][:, key], strict=True):
                found.append((0, float(number), 1e18) if alone else (sent, float(number), sent))
                sent += times * rows * row_bytes[k]
            if back and noted:
                end = float(case.ends[i, key])
                found.append((0, end, 1e18) if alone else (sent, end, sent))
            sent += 8
        return found + CLOSED_GATES

    def _compare(
        self,
        case: GroupCase,
        key: int,
        r: int,
        answer: tuple,
        drawn: list[np.ndarray],
        random: bool,
        tolerance: float,
    ) -> None:
        """Compare a rank's results and gradients with what is expected, to the last bit if the `tolerance` is 0."""
        found, grads, after = answer
        dtype, totals, instead = case.segments[0][key].weight.dtype, {}, {}
        for i in range(MICRO_BATCHES):
            evaluated = ("E", i) in SCHEDULE
            out, grad_of_v, inputs = found[i]
            want = case.found[i][key] if evaluated else case.found[i][0][key]
            cause = "a function that gets other inputs"
            if random and ("B", 0) in SCHEDULE[: SCHEDULE.index(("F", i)) if ("F", i) in SCHEDULE else None]:
                cause = "generators that do not go on where they were: put them back after the second forward, too"
            name = f"the result for micro-batch {i}"
            self.array(out, want.astype(dtype), name=name, rank=r, cause=cause, rtol=tolerance)
            if evaluated:
                continue
            right, kept = (sides[key] for sides in case.found[i][1:])
            cause = "random states that are not put back before the function is called again" if random else PAST_THE_INPUTS
            end = case.ends[i, key]
            known, name = {NOT_CALLED_AGAIN: end * kept["v"]}, f"the gradient of v in micro-batch {i}"
            want = (end * right["v"]).astype(dtype)
            self.array(grad_of_v, want, name=name, rank=r, cause=cause, rtol=tolerance, instead=known)
            for name, array in inputs.items():
                cause = "an operation in place on an input"
                self.array(array, case.batches[i][key][name], name=f"the input {name} after backward", rank=r, cause=cause)
            for name in right.keys() - {"v"}:
                totals[name] = totals.get(name, 0) + right[name]
                instead[name] = instead.get(name, 0) + kept[name]
        names = ["table", *(f"segment {k}'s weight" for k in range(3))]
        for name, got in zip(names, grads, strict=True):
            known = {NOT_CALLED_AGAIN: instead[name]}
            cause = "random states, or a gradient that is passed on twice" if random else "a gradient that is lost, or passed on twice"
            if got is None:
                self.fail(f"the gradient of {name} on rank {r} is None", "a result without a gradient where no input has one")
            want = totals[name].astype(dtype)
            self.array(got, want, name=f"the gradient of {name}", rank=r, cause=cause, rtol=tolerance, instead=known)
        for got, want in zip(after, drawn, strict=True):
            cause = "random states that are not put back after the function has been called again"
            self.array(got, want, name="what a generator draws after all steps", rank=r, cause=cause)

    def memory(self) -> RecomputeCheck:
        """Check the memory of a step through large layers, of which some are recomputed, one by one or several at once."""
        memory.keep_freed()  # in this process
        c = 4 * LARGE_SHAPE[0] * LARGE_SHAPE[1]
        for first in (True, False):  # the first step allocates memory that stays allocated
            self.case = "large layers"
            self._step([2, 2], [(1, 2)], (2, 2))  # an answer that keeps something of its last call now keeps something small
            empty = self.baseline_memory(self.case)
            depths, ranges = self._large(first)
            # Backward holds the result and its gradient, and two more arrays at once.
            costs = [LayerCost(0.0, depth * c, c, 4 * c) for depth in depths]
            found = self._step(depths, ranges, LARGE_SHAPE)
            held = self.ranks.held()
            for r, peak in enumerate(found):
                if (more := held[r] - empty[r] - 2 * c) > (1 + first) * c:
                    cause = "a closure, a list or an attribute that keeps what was recomputed"
                    problem = f"after a step, rank {r} still holds {wording.size(more)} besides the input and its gradient"
                    self.fail(problem, cause, limit=contract.HELD)
                most = peak_memory(costs, ranges) - c + contract.SPARE_ARRAYS.number * c
                if most < peak:
                    problem = f"in a step, rank {r} held up to {wording.size(peak)} besides the input; {wording.size(most)} are enough"
                    cause = "results within a range that are kept from forward to backward, or copies of inputs"
                    self.fail(problem, cause, limit=contract.SPARE_ARRAYS)
        self.ranks.call(end_large)
        return self

    def _large(self, first: bool) -> tuple[list[int], Ranges]:
        """Numbers of operations of some layers, and ranges of them: single ones, longer ones, and between them layers that are kept."""
        # At the end of backward, the input of the first range is no longer needed: it is not the step's own input in the second case.
        lengths = [1, -1, 1, 1] if first else [-1, *self.random.permutation([1, 1, 1, 2, 2]).tolist(), 1]
        depths, ranges = [], []
        for length in lengths:
            some = self.random.permutation([3, 4, 5])[: abs(length)].tolist() if length > 0 else [2]
            if length > 0:
                ranges.append((len(depths), len(depths) + len(some)))
            depths += some
        return depths, ranges

    def _step(self, depths: list[int], ranges: Ranges, shape: tuple[int, int]) -> list[int]:
        """Take a step on the ranks, compare rows of its results, and return each rank's peak."""
        drawn = [(self.random.integers(-64, 65, shape) / 8).astype(np.float32) for _ in range(4)]
        rows = np.sort(self.random.permutation(shape[0])[:20])
        self.ranks.call(begin_large, [dict(array=x) for x in drawn])
        again = [k for start, stop in reversed(ranges) for k in range(start, stop)]
        numbers = [self.random.choice([-1.0, 1.0], (len(depths) + len(again))) for _ in range(4)]
        gates = [[(8 * (k >= len(depths)), float(x), 8 * (k >= len(depths))) for k, x in enumerate(own)] + CLOSED_GATES for own in numbers]
        isolated = ISOLATION_VARIABLE in os.environ
        given = [dict(depths=depths, ranges=ranges, rows=rows, watched=not isolated)] * 4
        self.case = f"{len(depths)} layers"
        answers = self.call(
            step_large, given, explain=EXPLANATIONS, show=self.show, gates=gates, peak=self.baseline_limit() + drawn[0].nbytes
        )
        peaks = self.ranks.peaks
        for r, (out, grad, _) in enumerate(answers):
            want, slope = drawn[r][rows], np.float32(1)
            for depth, number in zip(depths, numbers[r], strict=False):
                want, _ = _large_layer(want, depth, number)
            back = dict(zip(again, numbers[r][len(depths) :], strict=True))
            for one in self._large_slopes(drawn[r][rows], depths, ranges, numbers[r], back):
                slope = slope * one
            self.array(out, want, name="rows of the result", rank=r)
            self.array(grad, slope, name="rows of the gradient", rank=r, cause="a function that was not called again")
        return [peak if seen is None else seen for (*_, peak), seen in zip(answers, peaks, strict=True)]

    @staticmethod
    def _large_slopes(x: np.ndarray, depths: list[int], ranges: Ranges, numbers: np.ndarray, back: dict[int, float]) -> list[np.ndarray]:
        """Slopes of each layer, in a range with the numbers of its recomputation."""
        starts, found, at = dict(ranges), [], 0
        while at < len(depths):
            stop, again = starts.get(at, at + 1), x
            for k in range(at, stop):
                x, slope = _large_layer(x, depths[k], numbers[k])
                if at in starts:
                    again, slope = _large_layer(again, depths[k], back[k])
                found.append(slope)
            at = stop
        return found


def _large_layer(x: np.ndarray, depth: int, number: float) -> tuple[np.ndarray, np.ndarray]:
    """Result and slope of a `LargeLayer`."""
    y, slope = x * np.float32(number), np.full(x.shape, number, np.float32)
    for i in range(1, depth):
        if i % 2:
            y = y + np.float32(SHIFT)
        else:
            y, slope = np.maximum(y, 0), slope * (y > 0)
    return y, slope

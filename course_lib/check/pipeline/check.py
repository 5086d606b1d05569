"""Check of part 25's schedules: results against the whole model on one process, the order of messages, and memory.

With isolated ranks, the order of the work follows from the messages that the broker saw, and from gates; the stages' own records only
explain mistakes. `on_ranks` has the functions that run on the ranks.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain, zip_longest

import numpy as np

from course_lib import memory
from course_lib.check.groups import GATE_MESSAGE_BYTES, GroupCheck
from course_lib.check.pipeline import contract
from course_lib.check.pipeline.on_ranks import build_stage, end_measurement, forward_scaled, run_steps
from course_lib.check.pipeline.reference import (
    ONE_FORWARD_ONE_BACKWARD,
    ReferencePipeline,
    concurrent_work,
    due_messages,
    stage_memory,
    work_order,
)
from course_lib.gpt.model.decoder import Sizes
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

GATE_EXPLANATIONS = {
    "TooEarly": (
        "a rank continues before it has sent its last result",
        "a result that is sent only after the next piece of work has begun",
    ),
    "TooLate": ("a rank has sent more than it should have computed by then", "pieces of work in the wrong order"),
    "Deadlock": (
        "a rank waits for more than its next piece of work needs, or for a message that nobody sends",
        "a Barrier, a receive that is placed before another piece of work, or a result that is not sent at once",
    ),
}

EMPTY_EXPLANATIONS = {
    "ZeroDivisionError": (
        "a list of micro-batches is empty when it is passed again",
        "a step that removes micro-batches from the list, such as with pop; it is the caller's",
    )
}


class PipelineCheck(GroupCheck):
    """A `Check` of a pipeline step.

    Parameters
    ----------
    function : str
        "gpipe_step" or "one_forward_one_backward_step".
    ranks : Ranks
    show : bool

    Attributes
    ----------
    divided : bool
        Whether the stages' backward consists of the student's `backward_input` and `backward_weight`.
    deep_blocks : int
        Blocks of a stage where memory is measured.
    """

    divided, deep_blocks = False, 1
    baseline_bytes = 12 << 20  # a solved notebook has 9 MB after the first large step

    def __init__(self, function: str, ranks, *, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.function = function

    def step(
        self,
        size: int,
        count: int,
        dtype: type = np.float64,
        *,
        shape: str = "",
        again: bool = False,
    ) -> PipelineCheck:
        """Check a step of `count` micro-batches in groups of `size`: losses, gradients, bytes sent, and the order of the work.

        Parameters
        ----------
        shape : {"", "large", "token"}
            "large": activations so large that MPI's `Send` blocks until they are received;
            "token": a micro-batch is a single token.
        again : bool
            Whether to take two steps more, whose gradients add up: with one micro-batch more, on another communicator with the same
            ranks, and then with those of the first step.
        """
        self._step(size, count, dtype, shape=shape, turns=(0, 1, 0) if again else (0,))
        self.covers("dtypes", "layouts", "group order", "group sizes", "arguments")
        if shape == "token":
            self.covers("sizes")
        if again:
            self.covers("repetition", "same ranks twice")
        return self

    def _step(
        self, size: int, count: int, dtype: type, *, shape: str = "", turns: tuple[int, ...] = (0,)
    ) -> tuple[list[tuple[list[int], ReferencePipeline]], list, list[int]]:
        """Take steps, and return the models, the ranks' answers, and each rank's peak memory if `shape` is "deep".

        Then, neither order nor requests are checked.
        """
        deep = shape == "deep"
        models = self._build(size, [count, count + 1][: max(turns) + 1], dtype, shape)
        watched = deep and ISOLATION_VARIABLE not in os.environ
        answers = self._steps(models, turns, watched=watched, peak=deep and self.baseline_limit())
        rtol = 1e-9 if dtype is np.float64 else 2e-3
        for group, model in models:
            counts = [len(model.lists[turn]) for turn in turns]
            losses, gradients = model.expected(turns)
            wanted = iter(zip(*gradients, strict=True))  # for each parameter what each step adds
            for i, r in enumerate(group):
                _, grads, order, left, data, lists, _ = answers[r]
                if not deep:
                    self._order(order.split(), i, group, counts, model.message)
                if i == len(group) - 1:
                    for got, loss, many in zip(answers[r][0], losses, counts, strict=True):
                        self._loss(got, loss, many, r, rtol)
                for (name, _), got, before, after in zip(model.stages[i].named_parameters(), grads, model.values[i], data, strict=True):
                    self._gradient(got, next(wanted), f"the gradient of {name}", r, counts, rtol)
                    self.array(
                        after,
                        before,
                        name=f"{name}, after the step,",
                        rank=r,
                        cause="a step that updates parameters; it should only compute gradients",
                    )
                self._unchanged(model.given(i), lists, r)
                self._sent(r, i, len(group), sum(counts), model.message)
                if not deep and (left > 0 or self.ranks.unended[r]):
                    cause = "requests that are not kept; each needs a Wait"
                    many = max(left, self.ranks.unended[r])
                    problem = f"rank {r} has started {many} more sends or receives with Isend or Irecv than it has waited for"
                    self.fail(problem, cause, limit=contract.REQUESTS[self.function])
        return models, answers, [answers[r][-1] if peak is None else peak for r, peak in enumerate(self.ranks.peaks)]

    def _unchanged(self, given: list, after: list, r: int) -> None:
        """Check that a rank's micro-batches are as before."""
        pairs = zip(chain.from_iterable(given), chain.from_iterable(after), strict=True)
        for k, (before, now) in enumerate(pairs):
            for name, array, got in zip(("tokens", "labels"), before, now, strict=True):
                what = f"the {name} of micro-batch {k}, after the step,"
                self.array(got, array, name=what, rank=r, cause="a receive into this array")

    def _steps(
        self,
        models: list[tuple[list[int], ReferencePipeline]],
        turns: tuple[int, ...] = (0,),
        watched: bool = False,
        **how: object,
    ) -> list:
        """Take steps on all ranks; `turns` says for each step which list of micro-batches it has."""
        lists = {r: model.given(i) for group, model in models for i, r in enumerate(group)}
        given = [dict(function=self.function, lists=lists[r], turns=turns, watched=watched) for r in range(4)]
        how["explain"] = EMPTY_EXPLANATIONS | (how.get("explain") or {})
        return self.call(run_steps, given, show=self.show, **how)

    def exchanges(self, size: int, count: int, dtype: type = np.float64) -> PipelineCheck:
        """Check what is sent before each piece of work, as counted by the coordinator, and that neighbours can work concurrently.

        At a gate before each piece of work, a rank exchanges a random number with the neighbours that can work at the same time;
        the product scales the input of the work.
        """
        models, passes, numbers = self._build(size, [count], dtype, gated=True), [[] for _ in range(4)], {}
        for group, model in models:
            n = len(group)
            own = self.random.uniform(0.7, 1.4, (n, 2 * count))
            for i, r in enumerate(group):
                sent, meets = 0, concurrent_work(self.function, n, i, count)
                numbers[r] = [own[i, j] * np.prod([own[met] for met in meets[j]]) for j in range(2 * count)]
                for j, (kind, _) in enumerate(work_order(self.function, n, i, count)):
                    passes[r].append((sent, float(own[i, j]), sent + self._besides(count) if n > 1 else 1e9))
                    sent += model.message * (i < n - 1 if kind == "F" else i > 0) + GATE_MESSAGE_BYTES * len(meets[j])
        answers = self._steps(models, gates=passes, explain=GATE_EXPLANATIONS)
        for group, model in models:
            self._check_gated_gradients(group, model, count, answers, numbers)
        return self

    def _check_gated_gradients(
        self, group: list[int], model: ReferencePipeline, count: int, answers: list, numbers: dict[int, list[float]]
    ) -> None:
        """Check the gradients of a group's step in which each piece of work was scaled by its number."""
        n, dtype = len(group), model.values[0][0].dtype.type
        rtol = 1e-9 if dtype is np.float64 else 2e-3
        changes = []
        for i, r in enumerate(group):
            self._order(answers[r][2].split(), i, group, [count], model.message)
            pieces = [f"{kind}{k}" for kind, k in work_order(self.function, n, i, count)]
            if self.function != ONE_FORWARD_ONE_BACKWARD:
                pieces = answers[r][2].split()  # backwards may come in either order; in a wrong one, the results differ
            changes.append({piece: dtype(number) for piece, number in zip(pieces, numbers[r], strict=True)})
        for k, (tokens, labels) in enumerate(model.batches):
            x = tokens
            for change, stage in zip(changes, model.stages, strict=True):
                x = forward_scaled(stage, k, x, labels, change[f"F{k}"])
            grad = np.asarray(1 / count, dtype)
            for change, stage in zip(reversed(changes), reversed(model.stages), strict=True):
                grad = stage.backward(k, grad * change[f"B{k}"])
        for i, r in enumerate(group):
            for (name, p), got in zip(model.stages[i].named_parameters(), answers[r][1], strict=True):
                self._gradient(got, (p.grad,), f"the gradient of {name}, scaled during the step,", r, [count], rtol)
            met = sum(map(len, concurrent_work(self.function, n, i, count)))
            self._sent(r, i, n, count, model.message, met)

    def peak_memory(self, size: int = 4, count: int = 6) -> PipelineCheck:
        """Check the peak memory of a rank in 1F1B: the activations of its micro-batches in flight, and no more."""
        memory.keep_freed()  # in this process
        self._first_deep_step(size)
        self.baseline_memory("a large model")
        models, _, peaks = self._step(size, count, np.float32, shape="deep")
        self.ranks.call(end_measurement)
        needs: dict[int, tuple[int, int]] = {}  # all groups have models of the same shapes
        for group, model in models:
            for i, r in enumerate(group):
                flying = min(count, len(group) - i)
                if i not in needs:
                    needs[i] = stage_memory(model.stages[i], model.batches, flying)
                enough, each = needs[i]
                many = flying + (peaks[r] - enough) / each
                enough += int(contract.FLIGHT_MEMORY.number * each) + 2 * count * model.message  # sent arrays may be kept to the end
                if peaks[r] > enough:
                    problem = (
                        f"a step on rank {r} held {wording.size(peaks[r])} at once; {wording.size(enough)} are enough for its "
                        f"{flying} micro-batch{'es' * (flying > 1)} in flight; this is as much as about {many:.0f} need"
                    )
                    self.fail(problem, "forwards that run too far ahead of backwards", limit=contract.FLIGHT_MEMORY)
        return self

    def _first_deep_step(self, size: int) -> None:
        """Take a step that allocates memory that stays allocated."""
        models = self._build(size, [2], np.float32, "deep")
        self._steps(models, peak=self.baseline_limit())

    def _build(
        self,
        size: int,
        counts: list[int],
        dtype: type,
        shape: str = "",
        *,
        gated: bool = False,
    ) -> list[tuple[list[int], ReferencePipeline]]:
        """Draw models and micro-batches, so many in each list, and place the stages on the ranks."""
        # Large enough that what is sent besides is less than an activation.
        groups, (width, heads, batch, positions) = self.groups(size), self.sizes(4, 4, 8)
        heads = 2 if width % 2 == 0 and heads % 2 == 0 else 1
        if shape == "large":
            width, heads, batch, positions = 32, 2, 8, 36  # 72 KB in float64
        if shape == "deep":
            width, heads, batch, positions = 128, 2, 2, 128  # no array is so small that the allocator keeps its memory
        if shape == "token":
            batch = positions = 1
        count = counts[0]
        self.case = (
            f"{self.describe_groups(groups, dtype)}, {count} micro-batch{'es' * (count > 1)} of {batch} x {positions} tokens, width {width}"
        )
        models = []
        for group in groups:
            per = int(self.random.integers(1, 3))
            if shape in ("large", "deep"):
                per = self.deep_blocks if shape == "deep" else 1
            sizes = Sizes(self.sizes(1, 7, 13)[0], width, heads, per * len(group), positions + int(self.random.integers(0, 3)))
            models.append((group, ReferencePipeline(sizes, len(group), self.random, counts, (batch, positions), dtype)))
        meets = {}
        for group, _ in models if gated else ():
            for i, r in enumerate(group):
                meets[r] = [[other for other, _ in met] for met in concurrent_work(self.function, len(group), i, count)]
        self._place(models, meets, shape == "deep")
        return models

    def _place(self, models: list[tuple[list[int], ReferencePipeline]], meets: dict[int, list], deep: bool = False) -> None:
        """Make the stages on the ranks; with gates where a rank has ranks to meet, see `concurrent_work`."""
        given = [None] * 4
        for color, (group, model) in enumerate(models):
            for i, r in enumerate(group):
                facts = dict(sizes=model.numbers, values=model.values[i], place=(color, i), meets=meets.get(r))
                given[r] = facts | dict(deep=deep, divided=self.divided)
        self.ranks.call(build_stage, given, show=self.show)

    def _order(self, order: list[str], i: int, group: list[int], counts: list[int], message: int) -> None:
        """Check the work of a group's rank in steps of so many micro-batches.

        It is shown by its messages, where activations have more bytes than what may be sent besides; its stage's own record only
        explains mistakes.
        """
        n, r = len(group), group[i]
        wanted, work = [], []
        for count in counts:
            pieces = work_order(self.function, n, i, count)
            once = [f"{kind}{k}" for kind, k in pieces]
            begin = len(wanted)
            own = order[begin : begin + 2 * count]
            if self.function != ONE_FORWARD_ONE_BACKWARD and own == once[:count] + once[count:][::-1]:
                order[begin + count : begin + 2 * count] = once[count:]  # backwards may also come from last to first
            wanted += once
            work += pieces
        if order != wanted:
            at = next(j for j, (a, b) in enumerate(zip_longest(order, wanted)) if a != b)
            said, expected = (" ".join(words[max(0, at - 2) : at + 3]) or "nothing" for words in (order, wanted))
            shown = f": {said} where {expected} is expected" if self.show else ""
            cause = "too many or too few forwards at the start"
            if len(order) < len(wanted) and order == wanted[: len(order)]:
                cause = "backwards that are missing at the end" if order else "a function that never calls stage.forward and stage.backward"
            self.fail(f"rank {r} departs from the schedule at piece of work {at + 1}{shown}", cause)
        messages = self.ranks.messages[r]
        if messages is not None and message > self._besides(sum(counts)):
            self._message_order(messages, due_messages(work, group, i), r, message)

    def _message_order(self, messages: list[tuple[str, int, int]], due: list, r: int, message: int) -> None:
        """Check in which order a rank has sent its results, each of `message` bytes, perhaps in pieces."""
        came: Counter[int] = Counter()  # bytes by sender
        went: Counter[int] = Counter()
        sent = 0
        for way, other, nbytes in messages:
            if way == "from":
                came[other] += nbytes
                continue
            complete = went[other] // message
            went[other] += nbytes
            if went[other] // message == complete:
                continue  # a part of a result, or something small
            to, needs = due[sent] if sent < len(due) else (None, {})
            if other != to or any(came[source] // message < many for source, many in needs.items()):
                problem = f"rank {r} departs from the schedule, as its messages show: message {sent + 1} comes too early or too late"
                self.fail(problem, limit=contract.AT_ONCE[self.function])
            sent += 1
        if sent < len(due):
            self.fail(f"rank {r} has sent {sent} activations and gradients; {len(due)} are expected")

    def _loss(self, got: object, want: float, count: int, r: int, rtol: float) -> None:
        if isinstance(got, np.ndarray) and got.size == 1:
            got = got.item()
        if not isinstance(got, (float, np.floating)):
            self.fail(f"the loss that the last rank returns must be a number; rank {r} returned {type(got).__name__}", "a missing return")
        known = {"the sum over the micro-batches, not the mean": want * count, "the mean, divided by their number again": want / count}
        instead = {what: np.array([value]) for what, value in known.items() if count > 1}
        cause = "a loss that is rounded to another dtype" if abs(got - want) < 1e-6 * abs(want) else "not all losses"
        self.array(np.array([got], float), np.array([want]), name="the loss", rank=r, rtol=rtol, instead=instead, cause=cause)

    def _gradient(self, got: object, added: tuple, name: str, r: int, counts: list[int], rtol: float) -> None:
        """Check a gradient, to which each step of so many micro-batches has `added` something."""
        if got is None:
            self.fail(f"{name} on rank {r} is None", "a micro-batch that never goes through backward")
        want = sum(added)
        known = {}
        if max(counts) > 1:
            pairs = list(zip(counts, added, strict=True))
            known["the sum over the micro-batches, not the mean"] = sum(count * each for count, each in pairs)
            known["the mean, divided by their number again"] = sum(each / count for count, each in pairs)
        if len(added) > 1:
            known["that of the last step alone; a step must add to the existing gradients"] = added[-1]
            known["the first step's, again and again: something is kept from step to step"] = len(added) * added[0]
        cause = "activations and gradients of different micro-batches combined, or some left out; or an array changed before its Wait"
        if counts == [1]:
            cause = "an array that was not received, or a number other than 1 passed to the last rank's backward"
        if len(added) > 1:
            cause += "; or something that is kept from an earlier step"
        scale = max(1.0, float(np.abs(want).max()))
        self.array(got, want, name=name, rank=r, rtol=rtol, scale=scale, cause=cause, instead=known)

    @staticmethod
    def _besides(count: int) -> int:
        """Bytes that a rank may send besides activations and gradients in steps of `count` micro-batches."""
        return count * contract.BYTES_BESIDES

    def _sent(self, r: int, i: int, n: int, count: int, message: int, met: int | None = None) -> None:
        """Check what a rank has sent in steps of `count` micro-batches.

        With `met`, the numbers that it has sent at gates, also check its calls: an order is checked.
        """
        moved = [entry for entry in self.ranks.traffic[r] if len(entry[1]) > 1]
        neighbours = (i > 0) + (i < n - 1)
        gates = met or 0
        most = count * neighbours * message + self._besides(count) + gates * GATE_MESSAGE_BYTES
        cause = "more messages than one activation forward and one gradient back for each micro-batch"
        self.sent(moved, most, name="a step", rank=r, cause=cause, limit=contract.STEP_BYTES[self.function])
        if met is None:
            return
        limit = contract.STEP_MESSAGES[self.function]
        if others := sorted({operation for operation, *_ in moved if operation != "Send"}):
            cause = "a collective, which all ranks wait for; what is needed travels between neighbours, as messages"
            self.fail(f"a step on rank {r} uses {', '.join(others)}", cause, limit=limit)
        messages = count * int(limit.number) + gates
        self.calls(moved, messages, group=list(range(4)), name="a step", rank=r, limit=limit)

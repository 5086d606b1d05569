"""Check of part 25's schedules: results against the whole model on one process, the order of messages, and memory.

With isolated ranks, the order of the work follows from the messages that the broker saw, and from gates; the stages' own records only
explain mistakes. `on_ranks` has the functions that run on the ranks.
"""

from __future__ import annotations

import os
from itertools import zip_longest

import numpy as np

from course_lib import memory
from course_lib.check.groups import GATE_MESSAGE_BYTES, GroupCheck
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
from course_lib.gpt.model.stage import Stage
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

    def __init__(self, function: str, ranks, *, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.function = function

    def step(self, size: int, count: int, dtype: type = np.float64, *, large: bool = False, times: int = 1) -> PipelineCheck:
        """Check steps of `count` micro-batches in groups of `size`: losses, gradients, bytes sent, and the order of the work.

        Parameters
        ----------
        large : bool
            Whether activations are so large that MPI's `Send` blocks until they are received.
        times : int
            Number of steps, whose gradients add up.
        """
        self._step(size, count, dtype, large=large, times=times)
        return self

    def _step(
        self, size: int, count: int, dtype: type, *, large: bool = False, times: int = 1, deep: bool = False
    ) -> tuple[list[tuple[list[int], ReferencePipeline]], list, list[int]]:
        """Take steps, and return the models, the ranks' answers, and each rank's peak memory if activations are `deep`.

        With `deep`, neither order nor requests are checked.
        """
        models = self._build(size, count, dtype, large, deep=deep)
        answers = self._steps(models, times, watched=deep and ISOLATION_VARIABLE not in os.environ, peak=deep and self.baseline_limit())
        rtol = 1e-9 if dtype is np.float64 else 2e-3
        for group, model in models:
            whole = Stage(model.layers, model.sizes.width, dtype)
            loss = whole.forward(0, *(np.concatenate(arrays) for arrays in zip(*model.batches, strict=True)))
            whole.backward(0, 1.0)
            wants = iter(p.grad * times for _, p in whole.named_parameters())
            for i, r in enumerate(group):
                losses, grads, order, left, data, batches, _ = answers[r]
                if not deep:
                    self._order(order.split(), i, group, count, times, model.message)
                if i == len(group) - 1:
                    for got in losses:
                        self._loss(got, loss, count, r, rtol)
                for (name, _), got, before, after in zip(model.stages[i].named_parameters(), grads, model.values[i], data, strict=True):
                    self._gradient(got, next(wants), f"the gradient of {name}", r, count, rtol, times)
                    self.array(
                        after,
                        before,
                        name=f"{name}, after the step,",
                        rank=r,
                        cause="a step that updates parameters; it should only compute gradients",
                    )
                for k, (given, after) in enumerate(zip(model.given(i), batches, strict=True)):
                    for name, mine, theirs in zip(("tokens", "labels"), given, after, strict=True):
                        what = f"the {name} of micro-batch {k}, after the step,"
                        self.array(theirs, mine, name=what, rank=r, cause="a receive into this array")
                self._sent(r, i, len(group), count * times, model.message)
                if not deep and (left > 0 or self.ranks.unended[r]):
                    cause = "requests that are not kept; each needs a Wait"
                    many = max(left, self.ranks.unended[r])
                    self.fail(f"rank {r} has started {many} more sends or receives with Isend or Irecv than it has waited for", cause)
        return models, answers, [answers[r][-1] if peak is None else peak for r, peak in enumerate(self.ranks.peaks)]

    def _steps(self, models: list[tuple[list[int], ReferencePipeline]], times: int = 1, watched: bool = False, **how: object) -> list:
        """Take steps on all ranks, each with its micro-batches."""
        batches = {r: model.given(i) for group, model in models for i, r in enumerate(group)}
        given = [dict(function=self.function, batches=batches[r], times=times, watched=watched) for r in range(4)]
        return self.call(run_steps, given, show=self.show, **how)

    def exchanges(self, size: int, count: int, dtype: type = np.float64) -> PipelineCheck:
        """Check what is sent before each piece of work, as counted by the coordinator, and that neighbours can work concurrently.

        At a gate before each piece of work, a rank exchanges a random number with the neighbours that can work at the same time;
        the product scales the input of the work.
        """
        models, passes, numbers = self._build(size, count, dtype, False, gated=True), [[] for _ in range(4)], {}
        for group, model in models:
            n = len(group)
            own = self.random.uniform(0.7, 1.4, (n, 2 * count))
            for i, r in enumerate(group):
                sent, meets = 0, concurrent_work(self.function, n, i, count)
                numbers[r] = [own[i, j] * np.prod([own[met] for met in meets[j]]) for j in range(2 * count)]
                for j, (kind, _) in enumerate(work_order(self.function, n, i, count)):
                    passes[r].append((sent, float(own[i, j]), sent + GATE_MESSAGE_BYTES * 4 if n > 1 else 1e9))
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
            self._order(answers[r][2].split(), i, group, count, 1, model.message)
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
                self._gradient(got, p.grad, f"the gradient of {name}, scaled during the step,", r, count, rtol)
            met = sum(map(len, concurrent_work(self.function, n, i, count)))
            self._sent(r, i, n, count, model.message, GATE_MESSAGE_BYTES * met)

    def peak_memory(self, size: int = 4, count: int = 6) -> PipelineCheck:
        """Check the peak memory of a rank in 1F1B: the activations of its micro-batches in flight, and no more."""
        memory.keep_freed()  # in this process
        for many in (2, count):  # the first step allocates memory that stays allocated
            models, _, peaks = self._step(size, many, np.float32, deep=True)
        self.ranks.call(end_measurement)
        needs: dict[int, tuple[int, int]] = {}  # all groups have models of the same shapes
        for group, model in models:
            for i, r in enumerate(group):
                flying = min(count, len(group) - i)
                if i not in needs:
                    needs[i] = stage_memory(model.stages[i], model.batches, flying)
                enough, each = needs[i]
                many = flying + (peaks[r] - enough) / each
                enough += int(0.6 * each) + 2 * count * model.message  # sent arrays may be kept to the end
                if peaks[r] > enough:
                    self.fail(
                        f"a step on rank {r} held {wording.size(peaks[r])} at once; {wording.size(enough)} are enough for its "
                        f"{flying} micro-batch{'es' * (flying > 1)} in flight; this is as much as about {many:.0f} need",
                        "forwards that run too far ahead of backwards",
                    )
        return self

    def _build(
        self, size: int, count: int, dtype: type, large: bool, *, gated: bool = False, deep: bool = False
    ) -> list[tuple[list[int], ReferencePipeline]]:
        groups, (width, heads, batch, positions) = self.groups(size), self.sizes(4, 2, 6)
        heads = heads if width % heads == 0 else 1
        if large:
            width, heads, batch, positions = 32, 2, 8, 36  # 72 KB in float64
        if deep:
            width, heads, batch, positions = 64, 4, 2, 256  # no array is so small that the allocator keeps its memory
        self.case = (
            f"{self.describe_groups(groups, dtype)}, {count} micro-batch{'es' * (count > 1)} of {batch} x {positions} tokens, width {width}"
        )
        models = []
        for group in groups:
            per = 1 if large else self.deep_blocks if deep else int(self.random.integers(1, 3))
            sizes = Sizes(self.sizes(1, 7, 13)[0], width, heads, per * len(group), positions + int(self.random.integers(0, 3)))
            models.append((group, ReferencePipeline(sizes, len(group), self.random, (count, batch, positions), dtype)))
        meets = {}
        for group, _ in models if gated else ():
            for i, r in enumerate(group):
                meets[r] = [[other for other, _ in met] for met in concurrent_work(self.function, len(group), i, count)]
        self._place(models, meets, deep)
        return models

    def _place(self, models: list[tuple[list[int], ReferencePipeline]], meets: dict[int, list], deep: bool = False) -> None:
        """Make the stages on the ranks; with gates where a rank has ranks to meet, see `concurrent_work`."""
        given = [None] * 4
        for color, (group, model) in enumerate(models):
            for i, r in enumerate(group):
                facts = dict(sizes=model.numbers, values=model.values[i], place=(color, i), meets=meets.get(r))
                given[r] = facts | dict(deep=deep, divided=self.divided)
        self.ranks.call(build_stage, given, show=self.show)

    def _order(self, order: list[str], i: int, group: list[int], count: int, times: int, message: int) -> None:
        """Check the work of a group's rank, as recorded by its stage and as shown by its messages of `message` bytes."""
        n, r = len(group), group[i]
        once = [f"{kind}{k}" for kind, k in work_order(self.function, n, i, count)]
        for begin in range(0, len(order), 2 * count):
            own = order[begin:][: 2 * count]
            if self.function != ONE_FORWARD_ONE_BACKWARD and own == once[:count] + once[count:][::-1]:
                order[begin + count : begin + 2 * count] = once[count:]  # backwards may also come from last to first
        wanted = once * times
        if order != wanted:
            at = next(j for j, (a, b) in enumerate(zip_longest(order, wanted)) if a != b)
            said, expected = (" ".join(work[max(0, at - 2) : at + 3]) or "nothing" for work in (order, wanted))
            shown = f": {said} where {expected} is expected" if self.show else ""
            cause = "too many or too few forwards at the start"
            if len(order) < len(wanted) and order == wanted[: len(order)]:
                cause = "backwards that are missing at the end" if order else "a function that never calls stage.forward and stage.backward"
            self.fail(f"rank {r} departs from the schedule at piece of work {at + 1}{shown}", cause)
        messages = self.ranks.messages[r]
        if messages is None:
            return
        came, sent, due = {}, 0, due_messages(work_order(self.function, n, i, count) * times, group, i)
        for way, other, nbytes in messages:
            if nbytes == message and way == "from":
                came[other] = came.get(other, 0) + 1
            elif nbytes == message:
                to, needs = due[sent] if sent < len(due) else (None, {})
                if other != to or any(came.get(source, 0) < many for source, many in needs.items()):
                    self.fail(f"rank {r} departs from the schedule, as its messages show: message {sent + 1} comes too early or too late")
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

    def _gradient(self, got: object, want: np.ndarray, name: str, r: int, count: int, rtol: float, times: int = 1) -> None:
        if got is None:
            self.fail(f"{name} on rank {r} is None", "a micro-batch that never goes through backward")
        known = {"the sum over the micro-batches, not the mean": want * count, "the mean, divided by their number again": want / count}
        known |= {"that of the last step alone; a step must add to the existing gradients": want / times} if times > 1 else {}
        cause = "activations and gradients of different micro-batches combined, or some left out; or an array changed before its Wait"
        if count == 1:
            cause = "an array that was not received, or a number other than 1 passed to the last rank's backward"
        scale = max(1.0, float(np.abs(want).max()))
        self.array(got, want, name=name, rank=r, rtol=rtol, scale=scale, cause=cause, instead=known if count > 1 else None)

    def _sent(self, r: int, i: int, n: int, count: int, message: int, tokens: int = 0) -> None:
        most = count * (message * ((i < n - 1) + (i > 0)) + 16) + 64 + tokens
        if others := sorted({operation for operation, ranks, *_ in self.ranks.traffic[r] if operation != "Send" and len(ranks) > 1}):
            cause = "a collective, which all ranks wait for; what is needed travels between neighbours, as messages"
            self.fail(f"a step on rank {r} uses {', '.join(others)}", cause)
        cause = "more messages than one activation forward and one gradient back for each micro-batch"
        self.sent(self.ranks.traffic[r], most, name="a step", rank=r, cause=cause)

"""How part 25's schedules are put to the test: beside the whole model on one process, by what is sent when, and by what is held.

What has a lower-case name and no underscore runs on the ranks, `PipelineCheck` in the notebook's kernel.
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from IPython import get_ipython

from course_lib import memory, wording
from course_lib.check.groups import GroupCheck
from course_lib.check.pipeline_model import ONE_FORWARD_ONE_BACKWARD, Model, needed, order_of, together
from course_lib.cluster.replies import RanksError
from course_lib.collectives import pending
from course_lib.engine import gates
from course_lib.gpt.model import Sizes, layers
from course_lib.gpt.stage import Stage


def build(sizes, values, batches, place, meets):
    """A stage with these parameters in this rank's group, and what its steps will be given; see `together` for `meets`."""

    class Gated(Stage):
        """Works when enough has been sent, and at the same time as some neighbours; results are multiplied by the gate's number."""

        def forward(self, k, x, labels):
            number = self.numbers[k] = self.begin()
            out = super().forward(k, x, labels)
            return float(out * number) if self.last else out * number

        def backward(self, k, grad):
            number = self.begin() * self.numbers.get(k, 1)
            return super().backward(k, np.asarray(grad, self.dtype) * number)

        def begin(self):
            number, token = self.dtype.type(gates.passed()), np.zeros(0)
            others = [n - 1 - other for other in meets.pop(0)]
            self.told += [between.Isend(token, dest=other) for other in others]
            for other in others:
                between.Recv(token, source=other)
            return number

    comm, kinds = everyone.Split(color=place[0], key=place[1]), Stage if meets is None else Gated
    between = everyone.Split(color=place[0], key=-place[1])  # the same ranks, as another group
    n, me = comm.Get_size(), comm.Get_rank()
    stage = kinds(layers(Sizes(*sizes), n, me, dtype=values[0].dtype), sizes[1], values[0].dtype)
    for (_, p), value in zip(stage.named_parameters(), values, strict=True):
        p.data = value.copy()
    stage.numbers, stage.told = {}, []
    get_ipython().user_ns["trial"] = stage, comm, batches


def step(function, times):
    """So many steps: what they return, the gradients, the order of the work, the requests that are left; and what was given, afterwards."""
    stage, comm, batches = trial
    before = pending.now.requests
    losses = [get_ipython().user_ns[function](stage, list(batches), comm) for _ in range(times)]
    left = pending.now.requests - before - len(stage.told)
    for request in stage.told:
        request.Wait()
    parameters = [p for _, p in stage.named_parameters()]
    return losses, [p.grad for p in parameters], stage.order(), left, [p.data for p in parameters], batches


def ready(function):
    """A step before one that is measured, after which all is there that stays."""
    memory.give_back_at_once(True)
    stage, comm, batches = trial
    get_ipython().user_ns[function](stage, batches, comm)


def measured(function):
    """A step; the most bytes that it held, as this process sees it."""
    stage, comm, batches = trial
    with memory.watch() as held:
        get_ipython().user_ns[function](stage, batches, comm)
    return held.true_peak


def over():
    """After what was measured."""
    memory.give_back_at_once(False)


class PipelineCheck(GroupCheck):
    """A `Check` of a step of a pipeline.

    Parameters
    ----------
    function : str
        "gpipe_step" or "one_forward_one_backward_step".
    ranks : Ranks
    show : bool
    """

    def __init__(self, function: str, ranks, *, show: bool = True):
        super().__init__(function, ranks, show=show)
        self.function = function

    def step(self, size: int, count: int, dtype: type = np.float64, *, large: bool = False, times: int = 1) -> PipelineCheck:
        """Steps of `count` micro-batches in groups of `size`: losses, gradients, what is sent, and in which order the work is done.

        Parameters
        ----------
        large : bool
            Whether activations are so large that MPI's `Send` waits until they are received.
        times : int
            Steps, whose gradients add up.
        """
        models = self._build(size, count, dtype, large)
        answers = self.ranks.call(step, dict(function=self.function, times=times), show=self.show)
        rtol = 1e-9 if dtype is np.float64 else 2e-3
        for group, model in models:
            whole = Stage(model.layers, model.sizes.width, dtype)
            loss = whole.forward(0, *(np.concatenate(arrays) for arrays in zip(*model.batches, strict=True)))
            whole.backward(0, 1.0)
            wants = iter(p.grad * times for _, p in whole.named_parameters())
            for i, r in enumerate(group):
                losses, grads, order, left, data, batches = answers[r]
                self._order(order.split(), i, len(group), count, times, r)
                if i == len(group) - 1:
                    for got in losses:
                        self._loss(got, loss, count, r, rtol)
                for (name, _), got, before, after in zip(model.stages[i].named_parameters(), grads, model.values[i], data, strict=True):
                    want = next(wants)
                    self._gradient(got, want, f"the gradient of {name}", r, count, rtol)
                    self.array(after, before, name=f"{name}, after the step,", rank=r, cause="a step that trains; it only finds gradients")
                for k, (given, after) in enumerate(zip(model.given(i), batches, strict=True)):
                    for name, mine, theirs in zip(("tokens", "labels"), given, after, strict=True):
                        what = f"the {name} of micro-batch {k}, after the step,"
                        self.array(theirs, mine, name=what, rank=r, cause="a receive into them")
                self._sent(r, i, len(group), count * times, model.message)
                if left > 0:
                    cause = "requests that nobody keeps; each needs its Wait"
                    self.fail(f"rank {r} has begun {left} more sends or receives with Isend or Irecv than it has waited for", cause)
        return self

    def exchanges(self, size: int, count: int, dtype: type = np.float64) -> PipelineCheck:
        """What is sent before each piece of work, by the account of those who carry it; and whether neighbours can work at the same time.

        A piece of work passes a gate, which changes its result by a number, and waits until its neighbours have begun theirs.
        """
        models, passes = self._build(size, count, dtype, False, gated=True), [[] for _ in range(4)]
        forward, back = self.random.uniform(0.5, 2.0, (2, 4, count))
        for group, model in models:
            n = len(group)
            for i, r in enumerate(group):
                if self.function != ONE_FORWARD_ONE_BACKWARD:
                    back[r] = back[r, 0]  # its backwards may come in any order
                sent = 0
                for kind, k in order_of(self.function, n, i, count):
                    passes[r].append((sent, float((forward if kind == "F" else back)[r, k]), sent + 32 if n > 1 else 1e9))
                    sent += model.message * (i < n - 1 if kind == "F" else i > 0)
        try:
            answers = self.ranks.call(step, dict(function=self.function, times=1), show=self.show, gates=passes)
        except RanksError as error:
            self._out_of_turn(error)
        rtol = 1e-9 if dtype is np.float64 else 2e-3
        for group, model in models:
            for k, (tokens, labels) in enumerate(model.batches):
                x = tokens
                for r, stage in zip(group, model.stages, strict=True):
                    x = stage.forward(k, x, labels) * dtype(forward[r, k])
                grad = np.asarray(1 / count, dtype)
                for r, stage in zip(reversed(group), reversed(model.stages), strict=True):
                    grad = stage.backward(k, grad * dtype(back[r, k]) * dtype(forward[r, k]))
            for i, r in enumerate(group):
                for (name, p), got in zip(model.stages[i].named_parameters(), answers[r][1], strict=True):
                    self._gradient(got, p.grad, f"the gradient of {name}, changed at the gates,", r, count, rtol)
                self._sent(r, i, len(group), count, model.message)
        return self

    def _out_of_turn(self, error: RanksError) -> None:
        """Say what ranks did that did not get through the gates; of another error, it is the error."""
        if "TooEarly" in error.short:
            cause = "a result that is sent later than the next piece of work begins"
            self.fail(f"a rank goes on before it has sent what it has computed ({error.short})", cause)
        if "TooLate" in error.short:
            self.fail(f"a rank has sent more than it should have computed by then ({error.short})", "pieces of work in another order")
        if "Deadlock" in error.short:
            cause = "a Barrier, a receive that comes before another piece of work, or a result that is not sent at once"
            self.fail(f"a rank waits for more than its next piece of work needs, or for what nobody sends ({error.short})", cause)
        raise error

    def held(self, size: int = 4, count: int = 8) -> PipelineCheck:
        """What a rank of 1F1B holds at most: the activations of its micro-batches in flight, and no more."""
        memory.keep_freed()  # in this process
        (group, model), *_ = self._build(size, count, np.float32, False, deep=True)
        self.ranks.call(ready, dict(function=self.function), show=self.show)
        own = self.ranks.call(measured, dict(function=self.function), show=self.show, peak=True)
        peaks = [mine if seen is None else seen for mine, seen in zip(own, self.ranks.peaks, strict=True)]
        self.ranks.call(over)
        for i, r in enumerate(group):
            flying = min(count, len(group) - i)
            enough, each = needed(model.stages[i], model.batches, flying)
            many = flying + (peaks[r] - enough) / each
            enough += int(0.6 * each) + 2 * count * model.message  # what was sent may be kept to the end
            if peaks[r] > enough:
                self.fail(
                    f"a step on rank {r} held {wording.size(peaks[r])} at once, and {wording.size(enough)} are enough for its "
                    f"{flying} micro-batch{'es' * (flying > 1)} in flight; it is as much as for about {many:.0f}",
                    "forwards that run ahead of backwards",
                )
        return self

    def _build(
        self, size: int, count: int, dtype: type, large: bool, *, gated: bool = False, deep: bool = False
    ) -> list[tuple[list[int], Model]]:
        groups, (width, heads, batch, positions) = self.groups(size), self.sizes(4, 2, 6)
        heads = heads if width % heads == 0 else 1
        if large:
            width, heads, batch, positions = 32, 2, 8, 36  # 72 KB in float64
        if deep:
            width, heads, batch, positions = 64, 4, 2, 256  # no array so small that the system keeps its memory in reserve
        self.case = f"{self.named(groups, dtype)}, {count} micro-batch{'es' * (count > 1)} of {batch} x {positions} tokens, width {width}"
        given, models = [None] * 4, []
        for color, group in enumerate(groups):
            per = 1 if large or deep else int(self.random.integers(1, 3))
            sizes = Sizes(self.sizes(1, 7, 13)[0], width, heads, per * len(group), positions + int(self.random.integers(0, 3)))
            model = Model(sizes, len(group), self.random, (count, batch, positions), dtype)
            models.append((group, model))
            for i, r in enumerate(group):
                meets = together(self.function, len(group), i, count) if gated else None
                given[r] = dict(sizes=model.numbers, values=model.values[i], batches=model.given(i), place=(color, i), meets=meets)
        self.ranks.call(build, given, show=self.show)
        return models

    def _order(self, order: list[str], i: int, n: int, count: int, times: int, r: int) -> None:
        """The work of a rank, as its stage has noted it."""
        once = [f"{kind}{k}" for kind, k in order_of(self.function, n, i, count)]
        for begin in range(0, len(order), 2 * count):
            if self.function != ONE_FORWARD_ONE_BACKWARD and [w[0] for w in order[begin:][: 2 * count]] == [w[0] for w in once]:
                order[begin + count : begin + 2 * count] = once[count:]  # its backwards may come in any order
        wanted = once * times
        if order != wanted:
            at = next(j for j, (a, b) in enumerate(zip_longest(order, wanted)) if a != b)
            said, expected = (" ".join(work[max(0, at - 2) : at + 3]) or "nothing" for work in (order, wanted))
            shown = f": {said} where {expected} is expected" if self.show else ""
            cause = "too many or too few forwards at the start"
            if len(order) < len(wanted) and order == wanted[: len(order)]:
                cause = "backwards that are left at the end" if order else "a function that never calls stage.forward and stage.backward"
            self.fail(f"rank {r} leaves the order at its piece of work {at + 1}{shown}", cause)

    def _loss(self, got: object, want: float, count: int, r: int, rtol: float) -> None:
        if isinstance(got, np.ndarray) and got.size == 1:
            got = got.item()
        if not isinstance(got, (float, np.floating)):
            self.fail(f"the loss that the last rank returns must be a number; rank {r} returned {type(got).__name__}", "a missing return")
        known = {"the sum over the micro-batches, not the mean": want * count, "the mean, divided by their number again": want / count}
        instead = {what: np.array([value]) for what, value in known.items() if count > 1}
        self.array(np.array([got], float), np.array([want]), name="the loss", rank=r, rtol=rtol, instead=instead, cause="not all losses")

    def _gradient(self, got: object, want: np.ndarray, name: str, r: int, count: int, rtol: float) -> None:
        if got is None:
            self.fail(f"{name} on rank {r} is None", "a micro-batch that never goes backward")
        known = {"the sum over the micro-batches, not the mean": want * count, "the mean, divided by their number again": want / count}
        cause = (
            "activations and gradients of different micro-batches that meet, or some that are left out; an array changed before its Wait"
        )
        if count == 1:
            cause = "an array that was not received, or another number for the last rank's backward than 1"
        scale = max(1.0, float(np.abs(want).max()))
        self.array(got, want, name=name, rank=r, rtol=rtol, scale=scale, cause=cause, instead=known if count > 1 else None)

    def _sent(self, r: int, i: int, n: int, count: int, message: int) -> None:
        most = count * (message * ((i < n - 1) + (i > 0)) + 16) + 64
        cause = "something besides one activation on and one gradient back for each micro-batch"
        self.sent(self.ranks.traffic[r], most, name="a step", rank=r, cause=cause)

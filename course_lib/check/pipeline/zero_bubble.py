"""Checks of part 35: a stage's divided backward, and the schedule ZB-H1.

A weight's gradient is x's transpose times that of the result. The check scales the rows of x between B and W, and overwrites x after W, so
what is computed earlier or later is wrong. The order of a step is read from the stages' own records in one step, and proven in a second
one, where each piece of work needs the number of a gate: a gate opens when the results before it, and no others, have been sent. On a clock
that gives each piece of work one tick, neighbours whose pieces fall on the same tick must meet there, so a rank that waits for more than it
needs gets stuck.
"""

from __future__ import annotations

import numpy as np

from course_lib import memory
from course_lib.check.groups import GATE_MESSAGE_BYTES, GroupCheck
from course_lib.check.pipeline.check import GATE_EXPLANATIONS, PipelineCheck
from course_lib.check.pipeline.on_ranks import (
    add_weight_gradients,
    build_stage,
    end_measurement,
    forward_scaled,
    go_back,
    row_factors,
)
from course_lib.check.pipeline.reference import (
    ReferencePipeline,
    h1_ticks,
    most_held,
    product_bytes,
    scaled_products,
    stage_memory,
    ticks,
)
from course_lib.gpt.model.decoder import Sizes
from course_lib.gpt.model.stage import Stage
from course_lib.utils import wording

Orders = list[list[tuple[str, int]]]
MEMORY_SLACK = 0.3  # of what a micro-batch keeps after forward


class DividedBackwardCheck(GroupCheck):
    """A `Check` of `backward_input` and `backward_weight`."""

    def gradients(self, dtype: type = np.float64, count: int = 3) -> DividedBackwardCheck:
        """Check both on four different stages: what B returns and adds, and what W adds after the rows of x have been scaled."""
        heads, batch, positions, vocabulary = 2, *self.sizes(3, 3, 9)
        width = 2 * self.sizes(1, 3, 6)[0]
        self.case = f"{count} micro-batches of {batch} x {positions} tokens, width {width}, {np.dtype(dtype)}"
        sizes = Sizes(vocabulary, width, heads, 4, positions)
        model = ReferencePipeline(sizes, 4, self.random, (count, batch, positions), dtype)
        places = list(range(4)) if self.show else self.random.permutation(4).tolist()  # of each rank: which stage it has
        facts = dict(sizes=model.numbers, meets=None, deep=False, divided=True)
        given = [facts | dict(values=model.values[i], place=(0, i), stage=(4, i)) for i in places]
        self.ranks.call(build_stage, given, show=self.show)
        inputs, grads = self._inputs(model, dtype)
        parts = self.ranks.call(go_back, [dict(inputs=inputs[i], grads=grads[i]) for i in places], show=self.show)
        rows = batch * positions
        factors = [self.random.uniform(0.5, 1.5, (count, rows)) for _ in places]
        shifts = 1 + self.random.integers(count - 1, size=4)  # W never comes in the order of B
        orders = [np.roll(np.arange(count), shift).tolist() for shift in shifts]
        whole = self.ranks.call(
            add_weight_gradients, [dict(order=o, factors=list(f)) for o, f in zip(orders, factors, strict=True)], show=self.show
        )
        for r, i in enumerate(places):
            self._compare(r, model.stages[i], (inputs[i], grads[i], factors[r]), parts[r], whole[r])
        return self

    def _inputs(self, model: ReferencePipeline, dtype: type) -> tuple[list, list]:
        """Draw what each stage receives: inputs and labels, and the gradients of its results."""
        inputs, grads = [], []
        for stage in model.stages:
            shape = (*model.batches[0][0].shape, model.sizes.width)
            drawn = [self.random.standard_normal(shape).astype(dtype) for _ in model.batches]
            inputs.append([(t if stage.first else x, y) for x, (t, y) in zip(drawn, model.batches, strict=True)])
            numbers = self.random.uniform(0.5, 2.0, len(model.batches)).tolist()
            grads.append(numbers if stage.last else [self.random.standard_normal(shape).astype(dtype) for _ in model.batches])
        return inputs, grads

    def _compare(self, r: int, stage: Stage, given: tuple, parts: tuple, whole: tuple) -> None:
        """Compare a rank's results with autograd's."""
        rtol = 1e-9 if stage.dtype == np.float64 else 2e-4
        products = scaled_products(stage)
        matrices = {id(product.weight) for product in products}
        before = [p.data.copy() for _, p in stage.named_parameters()]
        for _, p in stage.named_parameters():
            p.grad = np.ones_like(p.data)
        for k, ((x, labels), grad, factors, got) in enumerate(zip(*given, parts[0], strict=True)):
            for product in products:
                product.factors = factors
            stage.forward(k, x, labels)
            want = stage.backward(k, grad)
            name = f"what backward_input returns for micro-batch {k}"
            if want is None:
                if got is not None:
                    self.fail(f"{name} on the first stage, rank {r}, must be None", "a value other than what stage.back returns")
                continue
            cause = "a product with the wrong matrix, or without the transpose"
            self.array(got, want, name=name, rank=r, rtol=rtol, scale=max(1.0, float(np.abs(want).max())), cause=cause)
        for (name, p), early, late, data, old in zip(stage.named_parameters(), parts[1], *whole, before, strict=True):
            matrix = id(p) in matrices
            cause = "weights' gradients that are added in backward_input" if matrix else "a call of stage.back that is missing or repeated"
            first = np.ones_like(p.data) if matrix else p.grad
            scale = max(1.0, float(np.abs(p.grad).max()))
            self.array(early, first, name=f"the gradient of {name} after backward_input", rank=r, rtol=rtol, scale=scale, cause=cause)
            cause = "a gradient that is computed before backward_weight, or for another micro-batch, or that replaces earlier ones"
            self.array(late, p.grad, name=f"the gradient of {name} after backward_weight", rank=r, rtol=rtol, scale=scale, cause=cause)
            self.array(data, old, name=f"{name} after both", rank=r, cause="a weight that is overwritten")


class ZeroBubbleCheck(PipelineCheck):
    """A `Check` of `zb_h1_step`."""

    divided, deep_blocks = True, 2

    def __init__(self, ranks, *, show: bool = True):
        super().__init__("zb_h1_step", ranks, show=show)

    def schedule(self, size: int, count: int, dtype: type = np.float64) -> ZeroBubbleCheck:
        """Check the order: its duration and its memory on the clock of ticks, and that the work is really done in it."""
        models = self._build(size, count, dtype, False)
        claims = self._claims(self._steps(models))
        meets: dict[int, list] = {}
        gates, numbers = [[] for _ in range(4)], {}
        for group, model in models:
            orders = [claims[r] for r in group]
            begins = self._judge(orders, group, count)
            self._set_gates((group, model), orders, begins, (meets, gates, numbers))
        self._place(models, meets)
        answers = self._steps(models, gates=gates, explain=GATE_EXPLANATIONS)
        again = self._claims(answers)
        for group, model in models:
            for i, r in enumerate(group):
                if again[r] != claims[r]:
                    self.fail(f"rank {r} does its work in another order than in the step before", "an order that depends on time")
                met = sum(map(len, meets[r]))
                self._sent(r, i, len(group), count, model.message, GATE_MESSAGE_BYTES * met)
            self._check_gates(group, model, claims, answers, numbers)
        return self

    def _claims(self, answers: list) -> Orders:
        """Each rank's work in its order, as its stage has recorded it."""
        return [[(word[0], int(word[1:])) for word in answer[2].split()] for answer in answers]

    def _judge(self, orders: Orders, group: list[int], count: int) -> list[list[int]]:
        """Check that the work is complete, short enough and small enough on the clock of ticks; return the beginnings."""
        n = len(group)
        for order, r in zip(orders, group, strict=True):
            self._complete(order, r, count, 1)
            held, most = most_held(order), min(n, count)
            if held > most:
                cause = "forwards that run too far ahead, or weights' gradients that are put off for too long"
                self.fail(f"rank {r} holds something of {held:.0f} micro-batches at once; 1F1B holds {most} on its first rank", cause)
        try:
            begins = ticks(orders)
        except ValueError as error:
            self.fail(str(error).rstrip("."))
        took, enough = max(own[-1] + 1 for own in begins), h1_ticks(n, count)
        if took > enough:
            idle, least = (1 - 3 * count / t for t in (took, enough))
            said = f"if F, B and W take one tick each and messages none, the step takes {took} ticks, and ranks are idle {idle:.0%} of them"
            cause = "a W that comes before a B for which another rank waits: the later a rank in the pipeline, the more W it puts off"
            if count > n > 1 and most_held(orders[-1]) == 1:
                cause = "a W right after each B, on all ranks: nothing is left for the end"
            self.fail(f"{said}; {enough} ticks and {least:.0%} are possible", cause)
        return begins

    def _complete(self, order: list[tuple[str, int]], r: int, count: int, times: int) -> None:
        """Check that a rank's order has F, B and W of each micro-batch, in this order."""
        for begin in range(0, max(len(order), 1), 3 * count):
            own = order[begin : begin + 3 * count]
            for kind, words in (("F", "stage.forward"), ("B", "stage.backward_input"), ("W", "stage.backward_weight")):
                if sorted(k for what, k in own if what == kind) != list(range(count)):
                    cause = f"a micro-batch without a call of {words}"
                    if kind != "F":
                        cause += f"; your function itself, {words.removeprefix('stage.')}(stage, ...), is not recorded"
                    self.fail(f"the work of rank {r} is not one {kind} for each of the {count} micro-batches", cause)
            for kind, other in ("FB", "BW"):
                late = [k for k in range(count) if own.index((kind, k)) > own.index((other, k))]
                if late:
                    self.fail(f"rank {r} does {other} of micro-batch {late[0]} before its {kind}")
        if len(order) != 3 * count * times:
            self.fail(f"rank {r} has done {len(order)} pieces of work; {3 * count * times} are expected")

    def _order(self, order: list[str], i: int, group: list[int], count: int, times: int, message: int) -> None:
        """Check that a rank's order is complete; `schedule` checks the rest."""
        self._complete([(word[0], int(word[1:])) for word in order], group[i], count, times)

    def _set_gates(self, it: tuple[list[int], ReferencePipeline], orders: Orders, begins: list[list[int]], facts: tuple) -> None:
        """Draw the numbers of a group's gates; neighbours whose work begins on the same tick meet there."""
        (group, model), (meets, gates, numbers) = it, facts
        n, at = len(group), [{tick: j for j, tick in enumerate(own)} for own in begins]
        own = [self.random.uniform(0.7, 1.4, len(order)) for order in orders]
        for i, r in enumerate(group):
            sent, meets[r], numbers[r] = 0, [], []
            for j, (kind, _) in enumerate(orders[i]):
                met = [other for other in (i - 1, i + 1) if other in range(n) and begins[i][j] in at[other]]
                gates[r].append((sent, float(own[i][j]), sent + GATE_MESSAGE_BYTES * 4 if n > 1 else 1e9))
                number = float(own[i][j])
                for other in met:
                    number *= float(own[other][at[other][begins[i][j]]])
                meets[r].append(met)
                numbers[r].append(number)
                sent += GATE_MESSAGE_BYTES * len(met)
                sent += model.message * (i < n - 1 if kind == "F" else i > 0 if kind == "B" else 0)

    def _check_gates(self, group: list[int], model: ReferencePipeline, claims: Orders, answers: list, numbers: dict) -> None:
        """Check the gradients of a group's step in which each piece of work was scaled by its number."""
        dtype = model.values[0][0].dtype.type
        rtol = 1e-9 if dtype is np.float64 else 2e-3
        count, products = len(model.batches), [scaled_products(stage) for stage in model.stages]
        changes = [dict(zip(claims[r], numbers[r], strict=True)) for r in group]
        for k, (tokens, labels) in enumerate(model.batches):
            x = tokens
            for change, stage, own in zip(changes, model.stages, products, strict=True):
                for product in own:
                    product.factors = row_factors(change["W", k], np.empty((tokens.size, 1)))
                x = forward_scaled(stage, k, x, labels, dtype(change["F", k]))
            grad = np.asarray(1 / count, dtype)
            for change, stage in zip(reversed(changes), reversed(model.stages), strict=True):
                grad = stage.backward(k, grad * dtype(change["B", k]))
        for i, r in enumerate(group):
            for (name, p), got in zip(model.stages[i].named_parameters(), answers[r][1], strict=True):
                self._gradient(got, p.grad, f"the gradient of {name}, scaled during the step,", r, count, rtol)

    def peak_memory(self, size: int = 4, count: int = 8) -> ZeroBubbleCheck:
        """Check the peak memory of each rank: what its order needs, which is at most what 1F1B needs on its first rank."""
        memory.keep_freed()  # in this process
        for many in (2, count):  # the first step allocates memory that stays allocated
            models, answers, peaks = self._step(size, many, np.float32, deep=True)
        self.ranks.call(end_measurement)
        claims, needs = self._claims(answers), {}
        for group, model in models:
            for i, r in enumerate(group):
                self._complete(claims[r], r, count, 1)
                if i not in needs:
                    one, each = stage_memory(model.stages[i], model.batches, 1)
                    needs[i] = one - each, each, product_bytes(model.stages[i], model.batches)
                work, each, later = needs[i]
                held = min(most_held(claims[r], later / each), float(min(len(group), count)))
                enough = int((held + MEMORY_SLACK) * each) + work
                neighbors = (i > 0) + (i < len(group) - 1)
                enough += 2 * neighbors * count * model.message  # all that is sent and received may be held to the end
                if peaks[r] > enough:
                    self.fail(
                        f"a step on rank {r} held {wording.size(peaks[r])} at once; {wording.size(enough)} are enough for its order",
                        "more kept after B than the input of each product and its result's gradient, or not freed after W",
                    )
        return self

"""Checks of part 35: a stage's divided backward, and the schedule ZB-H1.

A weight's gradient is x's transpose times that of the result. The check scales the rows of x between B and W, and overwrites x after W, so
what is computed earlier or later is wrong. The order of a step is read from the stages' own records in one step, and proven in a second
one, where each piece of work needs the number of a gate: a gate opens when the results before it, and no others, have been sent. On a clock
that gives each piece of work one tick, neighbours whose pieces fall on the same tick must meet there, so a rank that waits for more than it
needs gets stuck.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from course_lib import memory
from course_lib.check import cases
from course_lib.check.groups import GATE_MESSAGE_BYTES, GroupCheck
from course_lib.check.pipeline import contract
from course_lib.check.pipeline.check import GATE_EXPLANATIONS, PipelineCheck
from course_lib.check.pipeline.on_ranks import (
    add_weight_gradients,
    build_stage,
    count_kept,
    end_measurement,
    forward_scaled,
    go_back,
    row_factors,
)
from course_lib.check.pipeline.reference import (
    ONE_FORWARD_ONE_BACKWARD,
    ReferencePipeline,
    h1_ticks,
    most_held,
    product_bytes,
    scaled_products,
    stage_memory,
    ticks,
    work_order,
)
from course_lib.gpt.model.block import ParallelLinear
from course_lib.gpt.model.decoder import Sizes
from course_lib.gpt.model.stage import Stage
from course_lib.utils import wording

Orders = list[list[tuple[str, int]]]
OTHER_ORDER = "F and B in another order than 1F1B's: rank r of p begins with p - r - 1 forwards, then alternates one F and one B"
EXPLANATIONS = {
    "NoneType": ("a number is added to a gradient that is None", "weight.grad is None until it gets its first gradient"),
    "KeyError": (
        "backward_weight finds nothing of a micro-batch",
        "stage.kept[k], which backward_input must set for each k; or a backward_weight that also removes those of others",
    ),
    "matmul": (
        "the shapes in a matrix product of backward_weight do not fit",
        "x without its transpose, or with texts and positions as two dimensions",
    ),
    "broadcast": ("what backward_weight adds has another shape than the gradient", "a sum that is not over all positions of all texts"),
}
BACK_EXPLANATIONS = {
    "matmul": (
        "the shapes in a matrix product of backward_input do not fit",
        "weight.data without its transpose: it is (inputs, outputs), and the gradient (batch, positions, outputs)",
    )
}
KEPT_BY_B = "a copy, the gradient of a product's x, or other results of B, which W does not need"
KEPT_BY_W = "an entry that stays in stage.kept, or another variable that refers to what W has used"
SEND_EXPLANATIONS = {
    "all of them send": (
        "the ranks wait for each other",
        "a Send, or a Wait right after its Isend; start each send with Isend, and Wait for them at the end",
    )
}
FEW_EXPLANATIONS = {  # where there are fewer micro-batches than ranks
    "KeyError: -": ("a micro-batch with a negative number is used", "a rank that should put off more W than there are micro-batches"),
    "IndexError": ("a list has no entry of this number", "more forwards at the start than there are micro-batches"),
}
ZB_GATE_EXPLANATIONS = GATE_EXPLANATIONS | {
    "Deadlock": (GATE_EXPLANATIONS["Deadlock"][0], f"{GATE_EXPLANATIONS['Deadlock'][1]}; or a Wait for a send before another piece of work")
}


class DividedBackwardCheck(GroupCheck):
    """A `Check` of `backward_input` and `backward_weight`."""

    def __init__(self, ranks, *, show: bool = True):
        super().__init__("backward_input and backward_weight", ranks, show=show)

    def covers(self, *kinds: str) -> None:
        """Record kinds of cases for both functions."""
        for name in ("backward_input", "backward_weight"):
            cases.record(name, *kinds)

    def gradients(
        self,
        dtype: type = np.float64,
        count: int = 3,
        *,
        single: str = "",
    ) -> DividedBackwardCheck:
        """Check both on four different stages: what B returns and adds, and what W adds after the rows of x have been scaled.

        With `single`, "text" or "position", a micro-batch has just one of these.
        """
        heads, batch, positions, vocabulary = 2, *self.sizes(3, 3, 9)
        if single:
            batch, positions = (1, positions) if single == "text" else (batch, 1)
            self.covers("sizes")
        width = 2 * self.sizes(1, 3, 6)[0]
        self.case = f"{count} micro-batches of {batch} x {positions} tokens, width {width}, {np.dtype(dtype)}"
        sizes = Sizes(vocabulary, width, heads, 4, positions)
        model = ReferencePipeline(sizes, 4, self.random, [count], (batch, positions), dtype)
        places = list(range(4)) if self.show else self.random.permutation(4).tolist()  # of each rank: which stage it has
        facts = dict(sizes=model.numbers, meets=None, deep=False, divided=True)
        given = [facts | dict(values=model.values[i], place=(0, i), stage=(4, i)) for i in places]
        self.ranks.call(build_stage, given, show=self.show)
        inputs, grads = self._inputs(model, dtype)
        empty = [self._empty(model.stages[i]) for i in places]
        asked = [dict(inputs=inputs[i], grads=grads[i], empty=e) for i, e in zip(places, empty, strict=True)]
        parts = self.call(go_back, asked, explain=BACK_EXPLANATIONS, show=self.show)
        rows = batch * positions
        factors = [self.random.uniform(0.5, 1.5, (count, rows)) for _ in places]
        shifts = 1 + self.random.integers(count - 1, size=4)  # W never comes in the order of B
        orders = [np.roll(np.arange(count), shift).tolist() for shift in shifts]
        asked = [dict(order=o, factors=list(f)) for o, f in zip(orders, factors, strict=True)]
        whole = self.call(add_weight_gradients, asked, explain=EXPLANATIONS, show=self.show)
        for r, i in enumerate(places):
            for k, (got, before) in enumerate(zip(parts[r][2], grads[i], strict=True)):
                name = f"the argument grad of backward_input for micro-batch {k}, after the call,"
                cause = "an operation in place, such as *="
                self.array(np.asarray(got), np.asarray(before), name=name, rank=r, cause=cause, dtype=False)
            self._compare(r, model.stages[i], (inputs[i], grads[i], factors[r]), parts[r], whole[r], (empty[r], orders[r][-1]))
        self.covers("dtypes", "layouts", "repetition", "arguments", "results")
        return self

    def _empty(self, stage: Stage) -> list[bool]:
        """Draw which matrices have no gradient before: half of them."""
        products = {id(child.weight) for layer in stage.layers for _, child in layer.children() if isinstance(child, ParallelLinear)}
        drawn = iter(self.random.permutation(np.arange(len(products)) % 2 == 0).tolist())
        return [next(drawn) if id(p) in products else False for _, p in stage.named_parameters()]

    def frees(self) -> DividedBackwardCheck:
        """Check what is in memory between B and W, and after W, on a student's ranks."""
        if self.ranks.isolated:  # there, `peak_memory` measures each process
            return self
        for r, (after_b, after_w, enough) in enumerate(self.kept()):
            said = f"rank {r} keeps {wording.size(after_b)} of a micro-batch between B and W, but W needs {wording.size(enough)}"
            if after_b > (1 + contract.KEPT.number) * enough:
                self.fail(f"{said}: the x of each product and the gradient of its result", KEPT_BY_B, limit=contract.KEPT)
            if after_w > contract.KEPT.number * enough:
                self.fail(f"rank {r} still keeps {wording.size(after_w)} of a micro-batch after W", KEPT_BY_W)
        return self

    def kept(self) -> list[tuple[float, float, int]]:
        """Count the bytes of a micro-batch that each rank keeps after B, those that it keeps after W, and those that W needs."""
        batch, positions, width, dtype = 4, 32, 32, np.float32
        self.case = f"a micro-batch of {batch} x {positions} tokens, width {width}, {np.dtype(dtype)}"
        model = ReferencePipeline(Sizes(50, width, 2, 4, positions), 4, self.random, [3], (batch, positions), dtype)
        facts = dict(sizes=model.numbers, meets=None, deep=False, divided=True)
        self.ranks.call(build_stage, [facts | dict(values=model.values[i], place=(0, i), stage=(4, i)) for i in range(4)], show=self.show)
        inputs, grads = self._inputs(model, dtype)
        found = self.call(count_kept, [dict(inputs=inputs[i], grads=grads[i]) for i in range(4)], show=self.show)
        return [(*counted, product_bytes(stage, model.batches)) for counted, stage in zip(found, model.stages, strict=True)]

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

    def _compare(self, r: int, stage: Stage, given: tuple, parts: tuple, whole: tuple, how: tuple) -> None:
        """Compare a rank's results with autograd's."""
        rtol, (empty, last) = 1e-9 if stage.dtype == np.float64 else 2e-4, how
        products = scaled_products(stage)
        matrices = {id(product.weight) for product in products}
        before = [p.data.copy() for _, p in stage.named_parameters()]
        starts = [
            np.zeros_like(p.data) if none else np.ones_like(p.data) for (_, p), none in zip(stage.named_parameters(), empty, strict=True)
        ]
        _reset(stage, starts)
        added: list[list] = []  # by micro-batch
        for k, ((x, labels), grad, factors, got) in enumerate(zip(*given, parts[0], strict=True)):
            for product in products:
                product.factors = factors
            had = [p.grad.copy() for _, p in stage.named_parameters()]
            stage.forward(k, x, labels)
            want = stage.backward(k, grad)
            added.append([p.grad - old for (_, p), old in zip(stage.named_parameters(), had, strict=True)])
            self._input_gradient(got, want, k, r, rtol)
        grads = [p.grad.copy() for _, p in stage.named_parameters()]

        def known(j: int) -> dict[str, np.ndarray]:
            _reset(stage, starts)
            for k, ((x, labels), grad) in enumerate(zip(*given[:2], strict=True)):
                for product in products:
                    product.factors = np.ones(len(given[2][k]))
                stage.forward(k, x, labels)
                stage.backward(k, grad)
            return {
                "what it was before: no W has added anything": starts[j],
                "what all W add, without the gradient that was there before": grads[j] - starts[j],
                "what the last W adds, without all that was there before": added[last][j],
                "the gradient for x as it was in B; backward_weight must read product.x itself": stage.named_parameters()[j][1].grad,
            }

        for j, (name, p) in enumerate(stage.named_parameters()):
            early, late, matrix = parts[1][j], whole[0][j], id(p) in matrices
            scale = max(1.0, float(np.abs(grads[j]).max()))
            self._early(early, starts[j] if matrix else grads[j], name, r, (matrix, empty[j], rtol, scale))
            if late is None:
                cause = "a product that is not left for backward_weight, or an addition only where weight.grad is not None"
                self.fail(f"the gradient of {name} after backward_weight on rank {r} is None", cause)
            if np.isnan(late).any():
                cause = "what belongs to a micro-batch whose W is over; backward_weight(stage, k) must use what was kept of micro-batch k"
                self.fail(f"the gradient of {name} after backward_weight on rank {r} has NaN", cause)
            cause = (
                "a sum that is not over all positions of all texts, or of something else than x and the gradient of the product's result"
            )
            what = dict(name=f"the gradient of {name} after backward_weight", cause=cause, instead=partial(known, j) if matrix else None)
            self.array(late, grads[j], rank=r, rtol=rtol, scale=scale, **what)
            self.array(whole[1][j], before[j], name=f"{name} after both", rank=r, cause="a weight that is overwritten")

    def _input_gradient(self, got: object, want: np.ndarray | None, k: int, r: int, rtol: float) -> None:
        """Check what B has returned for a micro-batch."""
        name = f"what backward_input returns for micro-batch {k}"
        if want is not None:
            cause = "a product with the wrong matrix, or without the transpose"
            self.array(got, want, name=name, rank=r, rtol=rtol, scale=max(1.0, float(np.abs(want).max())), cause=cause)
        elif got is not None:
            self.fail(f"{name} on the first stage, rank {r}, must be None", "a value other than what stage.back returns")

    def _early(self, early: np.ndarray | None, want: np.ndarray, name: str, r: int, how: tuple[bool, bool, float, float]) -> None:
        """Check a gradient between B and W."""
        matrix, empty, rtol, scale = how
        if matrix and empty and early is None:
            return
        name = f"the gradient of {name} after backward_input"
        cause = "a product's x̄, which `through` returns to stage.back, or a call of stage.back that is missing or repeated"
        if matrix:
            cause = "weights' gradients that are added in backward_input"
        self.array(early, want, name=name, rank=r, rtol=rtol, scale=scale, cause=cause)


def _reset(stage: Stage, starts: list[np.ndarray]) -> None:
    """Set all gradients."""
    for (_, p), start in zip(stage.named_parameters(), starts, strict=True):
        p.grad = start.copy()


def _like_1f1b(order: list[tuple[str, int]], n: int, i: int, count: int) -> bool:
    """Return whether F and B of rank i of n come in the order of 1F1B."""
    return [work for work in order if work[0] != "W"] == work_order(ONE_FORWARD_ONE_BACKWARD, n, i, count)


def _most_put_off(order: list[tuple[str, int]]) -> int:
    """Largest number of W that are left when a B begins."""
    kinds = [kind for kind, _ in order]
    return max(kinds[:j].count("B") - kinds[:j].count("W") for j, kind in enumerate(kinds) if kind == "B")


def _late(orders: Orders, begins: list[list[int]]) -> tuple[int, int] | None:
    """Return a rank that ends last and puts off more W to the end than ZB-H1 does, if it is idle before, and their number."""
    for i, (order, own) in enumerate(zip(orders, begins, strict=True)):
        last = max(j for j, (kind, _) in enumerate(order) if kind == "B")
        first = min(j for j, (kind, _) in enumerate(order) if kind == "B")
        left, idle = len(order) - 1 - last, own[last] - own[first] > last - first
        if own[-1] == max(each[-1] for each in begins) and left > i + 1 and idle:
            return i, left
    return None


class ZeroBubbleCheck(PipelineCheck):
    """A `Check` of `zb_h1_step`."""

    divided, deep_blocks = True, 2

    def __init__(self, ranks, *, show: bool = True):
        super().__init__("zb_h1_step", ranks, show=show)

    def _steps(
        self,
        models: list[tuple[list[int], ReferencePipeline]],
        turns: tuple[int, ...] = (0,),
        watched: bool = False,
        **how: object,
    ) -> list:
        """Take steps; see `PipelineCheck`."""
        group, model = models[0]
        how.setdefault("explain", SEND_EXPLANATIONS | (FEW_EXPLANATIONS if len(model.batches) < len(group) else {}))
        return super()._steps(models, turns, watched, **how)

    def schedule(self, size: int, count: int, dtype: type = np.float64, *, shape: str = "") -> ZeroBubbleCheck:
        """Check the order: its duration and its memory on the clock of ticks, and that the work is really done in it.

        If `shape` is "large", sends wait until they are received, also on a student's ranks.
        """
        models = self._build(size, [count], dtype, shape)
        claims = self._claims(self._steps(models))
        meets: dict[int, list] = {}
        gates, numbers = [[] for _ in range(4)], {}
        for group, model in models:
            orders = [claims[r] for r in group]
            begins = self._judge(orders, group, count)
            self._set_gates((group, model), orders, begins, (meets, gates, numbers))
        self._place(models, meets)
        answers = self._steps(models, gates=gates, explain=ZB_GATE_EXPLANATIONS)
        again = self._claims(answers)
        for group, model in models:
            for i, r in enumerate(group):
                if again[r] != claims[r]:
                    self.fail(
                        f"rank {r} does its work in another order than in the step before",
                        "an order that depends on time",
                        limit=contract.SAME_ORDER,
                    )
                met = sum(map(len, meets[r]))
                self._sent(r, i, len(group), count, model.message, met)
            self._check_gates(group, model, claims, answers, numbers)
        return self

    def _claims(self, answers: list) -> Orders:
        """Each rank's work in its order, as its stage has recorded it."""
        return [[(word[0], int(word[1:])) for word in answer[2].split()] for answer in answers]

    def _judge(self, orders: Orders, group: list[int], count: int) -> list[list[int]]:
        """Check that the work is complete, short enough and small enough on the clock of ticks; return the beginnings."""
        n = len(group)
        for order, r in zip(orders, group, strict=True):
            self._complete(order, r, [count])
            held, most = most_held(order), min(n, count)
            if held > most:
                cause = "weights' gradients that are put off for too long"
                if not _like_1f1b(order, n, group.index(r), count):
                    cause = f"{OTHER_ORDER}; here, forwards run too far ahead"
                else:
                    cause += f": here, up to {_most_put_off(order)} W"
                self.fail(
                    f"rank {r} holds something of {held:.0f} micro-batches at once; 1F1B holds {most} on its first rank",
                    cause,
                    limit=contract.HELD,
                )
        try:
            begins = ticks(orders)
        except ValueError as error:
            self.fail(str(error).rstrip("."))
        took, enough = max(own[-1] + 1 for own in begins), h1_ticks(n, count)
        if took > enough:
            idle, least = (1 - 3 * count / t for t in (took, enough))
            said = f"if F, B and W take one tick each and messages none, the step takes {took} ticks, and ranks are idle {idle:.0%} of them"
            cause = "a W that comes before a B for which another rank waits: the later a rank in the pipeline, the more W it puts off"
            if not all(_like_1f1b(order, n, i, count) for i, order in enumerate(orders)):
                cause = OTHER_ORDER
            elif count > n > 1 and most_held(orders[-1]) == 1:
                cause = "a W right after each B, on all ranks: nothing is left for the end"
            elif late := _late(orders, begins):
                cause = f"a W that comes too late: rank {group[late[0]]} does {late[1]} W after its last B, and is idle before"
            self.fail(f"{said}; {enough} ticks and {least:.0%} are possible", cause, limit=contract.TICKS)
        return begins

    def _complete(self, order: list[tuple[str, int]], r: int, counts: list[int]) -> None:
        """Check that a rank's order has F, B and W of each micro-batch of each step, in this order."""
        begin = 0
        for count in counts:
            own = order[begin : begin + 3 * count]
            begin += 3 * count
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
        if len(order) != begin:
            self.fail(f"rank {r} has done {len(order)} pieces of work; {begin} are expected")

    def _order(self, order: list[str], i: int, group: list[int], counts: list[int], message: int) -> None:
        """Check that a rank's order is complete; `schedule` checks the rest."""
        self._complete([(word[0], int(word[1:])) for word in order], group[i], counts)

    def _set_gates(self, it: tuple[list[int], ReferencePipeline], orders: Orders, begins: list[list[int]], facts: tuple) -> None:
        """Draw the numbers of a group's gates; neighbours whose work begins on the same tick meet there."""
        (group, model), (meets, gates, numbers) = it, facts
        n, at = len(group), [{tick: j for j, tick in enumerate(own)} for own in begins]
        own = [self.random.uniform(0.7, 1.4, len(order)) for order in orders]
        for i, r in enumerate(group):
            sent, meets[r], numbers[r] = 0, [], []
            for j, (kind, _) in enumerate(orders[i]):
                met = [other for other in (i - 1, i + 1) if other in range(n) and begins[i][j] in at[other]]
                most = sent + self._besides(len(model.batches)) if n > 1 else 1e9
                gates[r].append((sent, float(own[i][j]), most))
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
                self._gradient(got, (p.grad,), f"the gradient of {name}, scaled during the step,", r, [count], rtol)

    def peak_memory(self, size: int = 4, count: int = 8) -> ZeroBubbleCheck:
        """Check the peak memory of each rank: what its order needs, which is at most what 1F1B needs on its first rank."""
        memory.keep_freed()  # in this process
        self._first_deep_step(size)
        self.baseline_memory("a large model")
        models, answers, peaks = self._step(size, count, np.float32, shape="deep")
        self.ranks.call(end_measurement)
        claims, needs = self._claims(answers), {}
        for group, model in models:
            for i, r in enumerate(group):
                self._complete(claims[r], r, [count])
                stage = model.stages[i]
                kind = stage.first, stage.last
                if kind not in needs:
                    one, each = stage_memory(stage, model.batches, 1)
                    needs[kind] = one - each, each, product_bytes(stage, model.batches)
                work, each, later = needs[kind]
                held = min(most_held(claims[r], later / each), float(min(len(group), count)))
                enough = int((held + contract.ORDER_MEMORY.number) * each) + work
                neighbors = (i > 0) + (i < len(group) - 1)
                enough += 2 * neighbors * count * model.message  # all that is sent and received may be held to the end
                if peaks[r] > enough:
                    self._fail_peak(
                        f"a step on rank {r} held {wording.size(peaks[r])} at once; {wording.size(enough)} are enough for its order"
                    )
        return self

    def _fail_peak(self, problem: str) -> None:
        """Fail because of a rank's memory, with the limit of the function that holds too much: B, W or the step."""
        kept = DividedBackwardCheck(self.ranks, show=self.show).kept()
        if any(after_b > (1 + contract.KEPT.number) * enough for after_b, _, enough in kept):
            self.fail(f"{problem}, and backward_input keeps more than W needs", KEPT_BY_B, limit=contract.KEPT)
        if any(after_w > contract.KEPT.number * enough for _, after_w, enough in kept):
            self.fail(f"{problem}, and what W has used is still held after it", KEPT_BY_W)
        cause = "more held by zb_h1_step than what it has sent and received, such as a copy of each"
        self.fail(problem, cause, limit=contract.ORDER_MEMORY)

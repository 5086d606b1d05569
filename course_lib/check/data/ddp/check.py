"""Check of part 14's `MyDP`: steps against a single process, gates that show when gradients are exchanged, and its buckets.

`on_ranks` has what runs on the ranks, `reference` the same models on a single process.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from course_lib.check import Check
from course_lib.check.data.ddp import contract
from course_lib.check.data.ddp.on_ranks import restore_comm, train_step, wrap_model
from course_lib.check.data.ddp.ready_made import MAX_SHARE, ready_made_share
from course_lib.check.data.ddp.reference import UNUSED, buckets_of, launched_bytes, reference_gradients
from course_lib.check.groups import GATE_MESSAGE_BYTES
from course_lib.cluster.replies import RanksError
from course_lib.saving import sources_used
from course_lib.traffic import wire_bytes

OF_THE_CLASS = "attributes of the class, which all its objects share; each needs buckets, gradients and requests of its own (self)"


def _known_mistakes(before, grads, x, target, size, rank):
    """Parameters after steps with wrong gradients, by the mistake that gives them."""
    own = reference_gradients(before, x[rank], target[rank])
    return {
        "as before the step": before,
        "after a step with the sum, not the mean": [w - 0.1 * size * g for w, g in zip(before, grads, strict=True)],
        "after a step with the gradient of this rank's own samples (a hook that returns None changes nothing)": [
            w - 0.1 * g for w, g in zip(before, own, strict=True)
        ],
        "after a step with this rank's own gradient divided by the number of ranks": [
            w - 0.1 / size * g for w, g in zip(before, own, strict=True)
        ],
    }


def _gradient_scale(grads, wants):
    """Factor between the gradients and the sums over all ranks; `train` checks that it is the mean, and of which model."""
    if any(np.shape(g) != w.shape for g, w in zip(grads, wants, strict=False)):
        return 1.0  # the comparison reports it
    return sum(float(np.vdot(g, w)) for g, w in zip(grads, wants, strict=False)) / sum(float(np.vdot(w, w)) for w in wants)


class DdpCheck(Check):
    """A `Check` of a data parallel wrapper on the first ranks of `ranks`."""

    def __init__(self, what: str, ranks, *, show: bool = True):
        super().__init__(what, show=show)
        self.ranks = ranks
        if not show:
            self._refuse_ready_made()

    def _refuse_ready_made(self) -> None:
        """Check that the answer is not the library's own wrapper under another name."""
        share = ready_made_share(sources_used("MyDP", self.ranks.cells))
        if share > MAX_SHARE:
            problem = f"MyDP has {share:.0%} of the statements of the ready-made DistributedDataParallel"
            self.fail(problem, "the library's code in the place of your own")

    def train(self, size: int = 4, layers: int = 3, steps: int = 3, dtype: type = np.float64) -> None:
        """Train on `size` ranks, and compare with training on the whole batch."""
        values, dims, samples = self._draw(size, layers, dtype)
        want = values[0]
        self._parameters = want

        def compare(answers, when, cause, known):
            for r, parameters in enumerate(answers):
                mistakes = known(r)
                for i, (got, expected) in enumerate(zip(parameters, want, strict=True)):
                    name, rtol = f"parameter {i} {when}", 1e-9 if dtype is np.float64 else 1e-3
                    instead = {what: arrays[i] for what, arrays in mistakes.items()}
                    self.array(got, expected, name=name, rank=r, rtol=rtol, scale=3.0, cause=cause, instead=instead)

        answers = self.ranks.call(wrap_model, [dict(values=v, size=size) for v in values], show=self.show)[:size]
        cause = "a parameter that is not broadcast, or a root other than rank 0"
        compare(answers, "at the start", cause, lambda r: {f"that of rank {k}": each for k, each in enumerate(values[:size]) if k})
        for number in range(1, steps + 1):
            x, target = self._samples(size, samples, dims, dtype)
            answers = self._step(size, x, target, lr=0.1)
            if size > 1 and not any(payload for rank in self.ranks.traffic[:size] for *_, payload in rank):
                cause = (
                    "hooks that are not registered, or that wait until the hooks of all parameters have run (the unused layer's never do)"
                )
                self.fail(f"no gradient was exchanged in step {number}", cause)
            for r in range(size):
                self.requests_completed(self.ranks.unended[r], r)
                self._no_barrier(r)
            grads = reference_gradients(want, x.reshape(-1, dims[0]), target.reshape(-1, dims[-1]))
            before, want = want, [w - dtype(0.1) * g for w, g in zip(want, grads, strict=True)]
            cause = "a mean that does not get into p.grad, or is read before its Wait; the mean of another gradient; or hooks that are "
            cause += "registered again in each forward"
            known = partial(_known_mistakes, before, grads, x, target, size)
            compare([p for p, _ in answers], f"after step {number}", cause, known)
        if steps:
            self._zero_gradients(size, samples, dims, dtype)
            x, target = self._samples(size, samples, dims, dtype)
            target[self.random.integers(size), 0, 0] = np.nan
            answers = self._step(size, x, target, lr=0.1)
            grads = reference_gradients(want, x.reshape(-1, dims[0]), target.reshape(-1, dims[-1]))
            want = [w - dtype(0.1) * g for w, g in zip(want, grads, strict=True)]
            cause = "NaN that is turned into numbers, which hides that training has failed"
            compare([p for p, _ in answers], "after a step with NaN on one rank", cause, lambda r: {})
            self._two_models(size, layers, dtype)
        self.ranks.call(restore_comm)
        self.covers("dtypes", "special values", "group sizes", "repetition", "results", "sizes", "calls")

    def _zero_gradients(self, size: int, samples: int, dims: list[int], dtype: type) -> None:
        """Check a step whose gradients are all 0."""
        x, target = self._samples(size, samples, dims, dtype)
        answers = self._step(size, x, 0 * target, lr=0.1)
        for r, (_, grads) in enumerate(answers):
            self._no_barrier(r)
            for i, grad in enumerate(grads[UNUSED:], UNUSED):
                zeros = np.zeros_like(self._parameters[i])
                self.array(grad, zeros, name=f"gradient {i}, which is 0,", rank=r, cause="a gradient of zeros, taken for none")

    def _two_models(self, size: int, layers: int, dtype: type, bucket_bytes: int | None = None) -> None:
        """Check two wrapped models, of which the second uses all its layers: a backward through each of them, and one through both."""
        values, dims, samples = self._draw(size, layers, dtype)
        others = [[self.random.standard_normal(v.shape).astype(dtype) for v in own[UNUSED:]] for own in values]
        given = [{"values": v, "second": w, "size": size, "bucket_bytes": bucket_bytes} for v, w in zip(values, others, strict=True)]
        self.ranks.call(wrap_model, given, show=self.show)
        count, case, rtol = len(values[0]), self.case, 1e-9 if dtype is np.float64 else 1e-3
        for trained in ((1,), (0,), (0, 1)):
            models = "both models" if len(trained) > 1 else f"model {trained[0] + 1}"
            self.case = f"{case}, two wrapped models, a backward through {models}"
            x, target = self._samples(size, samples, dims, dtype)
            answers = self._step(size, x, target, lr=0.0, trained=trained)
            for model in trained:
                part = slice(UNUSED, count) if model == 0 else slice(count, None)
                unused = values[0][:UNUSED]
                own = [reference_gradients([*unused, *p[part]], x[r], target[r]) for r, (p, _) in enumerate(answers)]
                wants = [sum(each) / dtype(size) for each in list(zip(*own, strict=True))[UNUSED:]]
                for r, (_, grads) in enumerate(answers):
                    for i, got in enumerate(grads[part]):
                        name = f"gradient {i} of model {model + 1}"
                        if got is None:
                            self.fail(f"{name} on rank {r} is None", OF_THE_CLASS)
                        self.array(got, wants[i], name=name, rank=r, rtol=rtol, scale=3.0, cause=OF_THE_CLASS)
            for r in range(size):
                self.requests_completed(self.ranks.unended[r], r)

    def _no_barrier(self, r: int) -> None:
        """Check that rank r has called no Barrier in the last step."""
        if any(operation == "Barrier" for operation, *_ in self.ranks.traffic[r]):
            self.fail(f"a step on rank {r} calls Barrier", "ranks that meet, although their all-reduces do", limit=contract.STEP_BYTES)

    def exchanges(
        self, size: int = 4, layers: int = 3, dtype: type = np.float64, *, late: bool = False, bucket_bytes: int | None = None
    ) -> None:
        """Check when gradients are exchanged: a gradient passes a gate once those above have been exchanged, and is changed there.

        `late`: one rank begins its backward when the others are below their first layers, where they must get without waiting for it.
        """
        values, dims, samples = self._draw(size, layers, dtype)
        sizes = [v.nbytes for v in values[0][UNUSED:]]
        last = int(self.random.integers(size)) if late else None
        self.case += f", rank {last} begins its backward after the others" if late else ""
        self.ranks.call(wrap_model, [dict(values=v, size=size, late=last, bucket_bytes=bucket_bytes) for v in values], show=self.show)
        gate_bytes = 2 * GATE_MESSAGE_BYTES * late
        for _ in range(2):
            x, target = self._samples(size, samples, dims, dtype)
            numbers = self.random.uniform(0.5, 2, (size, layers) if late else layers - 1)  # the last one: of the gate below all
            numbers = np.broadcast_to(numbers, (size, numbers.shape[-1]))
            gates = [[(sum(sizes[-2 * (j + 1) :]), float(f)) for j, f in enumerate(numbers[r % size])] for r in range(4)]
            answers = self._gated_step(size, x, target, gates)
            first = [float(np.prod(np.delete(numbers[:, -2:], last, axis=0))) if late and r == last else 0.0 for r in range(size)]
            own = [reference_gradients(p, x[r], target[r], numbers[r], first[r]) for r, (p, _) in enumerate(answers)]
            if not late:
                self._compare_counts(size, len(values[0]))
            self._compare_gradients(answers, own, values[0], gate_bytes)
        self.ranks.call(restore_comm)

    def buckets(self, size: int = 4, blocks: int = 3, count: int = 3, dtype: type = np.float64, exact: bool = False) -> None:
        """Check a wrapper with buckets, on a model whose gradients become final in an order that differs between ranks.

        `count`: of how many gradients the first bucket is made; 1: all buckets of one each; 0: one bucket of all.
        """
        branches = 2
        values, dims, samples = self._draw(size, blocks, dtype, branches)
        first = sum(v.nbytes for v in values[0][-count:])
        bucket_bytes = 1 if count == 1 else first - (count > 1 and not exact)  # unless `exact`, the bucket gets more than that
        buckets = buckets_of(values[0], bucket_bytes)
        self.case += f", 2 layers side by side each, bucket_bytes {bucket_bytes}, which is {len(buckets)} buckets"
        given = [dict(values=v, size=size, branches=branches, bucket_bytes=bucket_bytes) for v in values]
        self.ranks.call(wrap_model, given, show=self.show)
        for _ in range(2):
            x, target = self._samples(size, samples, dims, dtype)
            numbers = self.random.uniform(0.5, 2, blocks - 1)
            needed = [launched_bytes(values[0], buckets, j + 1, branches) * (size > 1) for j in range(blocks - 1)]
            gates = [(nbytes, float(f)) for nbytes, f in zip(needed, numbers, strict=True)]
            answers = self._gated_step(size, x, target, gates, "a bucket that is not launched once it is full", keep=True)
            self._compare_launches(size, values[0], buckets)
            own = [reference_gradients(p, x[r], target[r], numbers, branches=branches) for r, (p, _) in enumerate(answers)]
            cause = "buckets that are launched in the order in which they become full, which is not the same on all ranks; a last bucket "
            cause += "that is not launched; a mean that is read before its Wait; or a part of a bucket that goes to another parameter"
            self._compare_gradients(answers, own, values[0], 0, cause, share=1 / size)
        if not count:
            self._two_models(size, blocks, dtype, bucket_bytes)
        self.ranks.call(restore_comm)

    def _compare_counts(self, size: int, parameters: int) -> None:
        """Check that each gradient was exchanged by itself; those of the unused layer may be left out."""
        for r in range(size):
            calls = sum(many for _, ranks, many, payload in self.ranks.traffic[r] if len(ranks) > 1 and payload)
            if calls not in (parameters, parameters - UNUSED):
                cause = "several gradients in one all-reduce, although bucket_bytes is 0"
                self.fail(f"rank {r} made {calls} exchanges for {parameters - UNUSED} gradients", cause)

    def skips(self, size: int = 4, blocks: int = 2, dtype: type = np.float64, *, one_bucket: bool = True) -> None:
        """Check one bucket of all gradients, or one of each, on ranks that leave out different layers from step to step.

        In the last step, the parameters of these layers still have their gradients of the step before.
        """
        branches = 2
        values, dims, samples = self._draw(size, blocks, dtype, branches)
        bucket_bytes = sum(v.nbytes for v in values[0]) if one_bucket else 1
        given = [{"values": v, "size": size, "branches": branches, "bucket_bytes": bucket_bytes} for v in values]
        self.ranks.call(wrap_model, given, show=self.show)
        self.case += f", {'one bucket' if one_bucket else 'a bucket for each'}, and layers that some ranks do not use in a step"
        rtol = 1e-9 if dtype is np.float64 else 1e-3
        skipping = [None, *self.random.permutation(size)[:2]]
        earlier: list = []
        for number, who in enumerate(skipping, 1):
            left_out, (x, target) = int(self.random.integers(branches)), self._samples(size, samples, dims, dtype)
            skip = [left_out if r == who else None for r in range(4)]
            keep = number == len(skipping)
            before = earlier if keep else [[None] * len(values[0])] * size
            answers = self._step(size, x, target, lr=0.0, skip=skip, keep=keep)
            earlier = [grads for _, grads in answers]
            own = [reference_gradients(p, x[r], target[r], branches=branches, skip=skip[r]) for r, (p, _) in enumerate(answers)]
            wants = [sum(each) / dtype(size) for each in zip(*own, strict=True)]
            for r, (_, grads) in enumerate(answers):
                for i, (got, want) in enumerate(zip(grads, wants, strict=True)):
                    if i < UNUSED or skip[r] == (i - UNUSED) // 2 % branches:
                        if got is not None and not np.array_equal(got, before[r][i]):
                            problem = f"in step {number}, rank {r} has gradient {i} of a layer that it did not use"
                            self.fail(problem, "p.grad must stay as it is")
                        continue
                    cause = "a part of a bucket that is not zero where a gradient is missing (it may be that of the step before), or in "
                    cause += "another place than on the other ranks"
                    self.array(got, want, name=f"gradient {i} in step {number}", rank=r, rtol=rtol, scale=3.0, cause=cause)
        self.ranks.call(restore_comm)

    def _compare_launches(self, size: int, values: list[np.ndarray], buckets: list[list[int]]) -> None:
        """Compare the all-reduces of a step with the buckets; one of parameters without any gradient may be left out."""
        sizes = [sum(values[i].size for i in bucket) for bucket in buckets]
        used = [n for n, bucket in zip(sizes, buckets, strict=True) if max(bucket) >= UNUSED]
        for r in range(size):
            calls = sum(many for _, ranks, many, payload in self.ranks.traffic[r] if len(ranks) > 1 and payload)
            if calls not in (len(sizes), len(used)) and size > 1:
                cause = "one all-reduce per parameter, a bucket that is launched twice or not at all, or another rule for closing a bucket"
                self.fail(f"rank {r} made {calls} exchanges for {len(sizes)} buckets", cause)
            if (arrays := self.ranks.arrays[r]) is not None and size > 1 and [a.size for a in arrays] not in (sizes, used):
                cause = "a bucket that is closed too early or too late, or parameters in another order than from the last to the first"
                self.fail(f"rank {r} exchanged arrays of other sizes than those of its buckets", cause)

    def _cost(self, size: int, values: list[np.ndarray], r: int, gate_bytes: int = 0) -> None:
        """Check what a step has sent on rank r, and that it has waited for all requests."""
        nbytes = sum(v.nbytes for v in values)
        most = wire_bytes("Allreduce", size, nbytes) + gate_bytes + contract.STEP_BYTES.number
        self.sent(
            self.ranks.traffic[r],
            most,
            name="a step",
            rank=r,
            cause="gradients that are exchanged twice",
            limit=contract.STEP_BYTES,
        )
        self.requests_completed(self.ranks.unended[r], r)
        self._no_barrier(r)

    def _compare_gradients(
        self,
        answers: list,
        own: list,
        values: list[np.ndarray],
        gate_bytes: int,
        cause: str = "",
        share: float | None = None,
    ) -> None:
        """Compare the gradients with the mean of each rank's own ones; without `share`, any multiple of it passes."""
        dtype = values[0].dtype
        rtol = 1e-9 if dtype == np.float64 else 1e-3
        wants = [sum(each) for each in zip(*own, strict=True)][UNUSED:]
        for r, (_, grads) in enumerate(answers):
            if any(getattr(g, "dtype", None) != dtype for g in grads[UNUSED:]) or any(g is not None for g in grads[:UNUSED]):
                self.fail(f"rank {r} has gradients of the wrong dtype, or a gradient for the unused layer", "np.empty without dtype=")
            self._cost(len(answers), values, r, gate_bytes)
            scale = share or min(max(_gradient_scale(grads[UNUSED:], wants), 1e-3), 10.0)
            for i, (got, want) in enumerate(zip(grads[UNUSED:], wants, strict=True)):
                usual = cause or "gradients that are not averaged over all ranks, or not computed by the model's own backward"
                name, want = f"gradient {i + UNUSED}, scaled during the step,", (want * scale).astype(dtype)
                self.array(got, want, name=name, rank=r, rtol=rtol, scale=3.0 * scale, cause=usual)

    def _draw(self, size: int, layers: int, dtype: type, branches: int = 1) -> tuple[list, list[int], int]:
        """Draw parameters for each of four ranks, the layer sizes, and the number of samples per rank."""
        dims, samples = [int(d) for d in self.random.integers(1, 8, layers + 1)], int(self.random.integers(1, 5))
        self.case = f"{size} ranks with {samples} samples each, layers {' x '.join(map(str, dims))}, {np.dtype(dtype)}"
        pairs = [(1, 1), *((a, b) for a, b in pairwise(dims) for _ in range(branches))]
        shapes = [shape for a, b in pairs for shape in ((a, b), (b,))]
        return [[self.random.standard_normal(s).astype(dtype) for s in shapes] for _ in range(4)], dims, samples

    def _samples(self, size: int, samples: int, dims: list[int], dtype: type) -> list[np.ndarray]:
        return [self.random.standard_normal((size, samples, n)).astype(dtype) for n in (dims[0], dims[-1])]

    def _gated_step(self, size: int, x: np.ndarray, target: np.ndarray, gates: list, what: str = "", keep: bool = False) -> list:
        """Take a step through gates, and explain the errors of ranks that do not get through them."""
        try:
            return self._step(size, x, target, lr=0.0, gates=gates, keep_sent=keep)
        except RanksError as error:
            if "TooEarly" in error.short:
                said = f"backward continues before the gradients above have been exchanged ({error.short})"
                self.fail(said, what or "collectives after backward")
            if "Deadlock" in error.short and "begins its backward after" in self.case:
                cause = "a blocking all-reduce in a hook, or a Wait in a hook: the end of backward is early enough"
                self.fail(f"a rank's backward waits for another rank's ({error.short})", cause)
            raise

    def _step(
        self,
        size: int,
        x: np.ndarray,
        target: np.ndarray,
        lr: float,
        gates: list | None = None,
        keep_sent: bool = False,
        skip=(None,) * 4,
        **how: object,
    ) -> list:
        """Take a step; `keep_sent` keeps the arrays sent, `how` is for `train_step`."""
        common = {"lr": lr, "through_gates": gates is not None, **how}
        given = [{"x": x[r % size], "target": target[r % size], "skip": skip[r], **common} for r in range(4)]
        return self.ranks.call(train_step, given, show=self.show, gates=gates, keep=keep_sent)[:size]

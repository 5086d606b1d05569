"""Check of part 26's wrapper: steps against the whole model, and gates that show when parameters are gathered."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from course_lib import memory
from course_lib.autograd import Tensor
from course_lib.check.fsdp import contract
from course_lib.check.fsdp.flat_shard import RTOL_BY_DTYPE, begin_measurement, end_measurement
from course_lib.check.fsdp.on_ranks import (
    call_clip_gradients,
    fetch_results,
    run_forward_only,
    run_micro_batch,
    run_skipping,
    run_step,
    run_twin_backward,
    run_twin_forward,
    wrap_model,
)
from course_lib.check.fsdp.reference import ReferenceModel, flat_parts, twin_model
from course_lib.check.groups import GATE_MESSAGE_BYTES, GroupCheck
from course_lib.check.limits import Limit
from course_lib.cluster.replies import RanksError
from course_lib.gpt.fsdp.wrapping import units
from course_lib.sandbox.bubblewrap import ISOLATION_VARIABLE
from course_lib.utils import wording

GroupModels = list[tuple[list[int], ReferenceModel]]  # a group, and its model
CLIP_CASES = (np.float64, 2, 0.95), (np.float64, np.inf, 0.95), (np.float32, 2, 1.05), (np.float32, np.inf, 0.01)
EXTRA_BLOCKS_TIED = 1.75
UNISOLATED_BLOCKS = 4.35  # in a step where ranks count only their arrays: right answers hold up to 3.84, wrong ones at least 4.84


class GatePlan:
    """Gates of each rank: the bytes sent by then, the gates at which two ranks meet, and the numbers they give."""

    def __init__(self):
        self.passes, self.numbers, self.meets = ([[] for _ in range(4)] for _ in range(3))
        self.tokens = [0] * 4  # bytes of the numbers that a rank sends


class FsdpCheck(GroupCheck):
    """A `Check` of `FullyShardedDataParallel`, in groups of the four ranks."""

    exercise = "FullyShardedDataParallel"

    def train(self, size: int = 4, dtype: type = np.float64, *, shared: bool = False, blocks: int = 4) -> FsdpCheck:
        """Check steps with different samples on each rank; `shared`: with shared parameters, some in no block, and a skipped block."""
        models = self._build(size, dtype, blocks, shared)
        self._step(models, 1, "step 1", sometimes=True)
        self._check_forward_only(models, "an output without a backward pass", dropped=True)
        inputs = [self.random.standard_normal((2, 3)).astype(dtype) for _ in range(4)]
        self._call(run_twin_forward, [{"x": x} for x in inputs])
        self._step(models, 1, "step 2")
        self._check_twin(models, inputs)
        self._check_forward_only(models, "an output without gradients")
        if shared:
            self._step(models, 1, "step 3", sometimes=True)
        self.covers("dtypes", "sizes", "group order", "group sizes", "repetition", "same ranks twice")
        return self

    def _check_twin(self, models: GroupModels, inputs: list[np.ndarray]) -> None:
        """Check the gradients of another model, on a second communicator with the same ranks, whose forward came before the step."""
        answers = self._call(run_twin_backward)
        for group, model in models:
            expected = twin_model(model.dtype)
            outputs = []
            for r in group:
                outputs.append(expected(Tensor(inputs[r])))
                outputs[-1].sum().backward()
            blocks, _ = units(expected)
            grads = [flat_parts([p.grad / len(group) for p in own], len(group)) for _, own in blocks]
            for i, r in enumerate(group):
                output, shard_grads = answers[r]
                known = {"rtol": RTOL_BY_DTYPE[model.dtype], "rank": r}
                known["cause"] = "something that wrapped models share, such as a list in the class"
                self.array(output, outputs[i].data, name="the output of another wrapped model", **known)
                if len(shard_grads) != len(grads):
                    self.fail(f"another wrapped model on rank {r} has {len(shard_grads)} shards, not {len(grads)}", known["cause"])
                for number, (got, want) in enumerate(zip(shard_grads, grads, strict=True)):
                    name = f"the gradient of shard {number} of another wrapped model"
                    self.array(got, want[i].astype(model.dtype), name=name, scale=_magnitude(np.concatenate(want)), **known)

    def accumulate(self, size: int = 4, dtype: type = np.float64, *, shared: bool = True, count: int = 3) -> FsdpCheck:
        """Check micro-batches of which only the last one of a step reduces gradients, or all of them; some also before the step."""
        models = self._build(size, dtype, 4, shared)
        for _ in range(2):
            self._step(models, count, f"a step of {count} micro-batches")
            samples = [self._sample(model) for model in self._model_of_each_rank(models)]
            found = self.ranks.call(run_micro_batch, [dict(x=x, target=y, sync=False) for x, y in samples], show=self.show)
            for group, model in models:
                for i, r in enumerate(group):
                    cause = "gradients that are reduced although `sync` is False"
                    self._check_traffic(r, group, model, 2, 0, "a micro-batch with sync False", cause)
                    self._require_freed(found[r][2], r, "a micro-batch with sync False")
                    model.left[i].append(samples[r])
            self._check_forward_only(models, "an output without gradients between two micro-batches")
        self._step(models, count, f"a step of {count} micro-batches that all reduce gradients", syncs=[True] * count)
        if shared:
            given = [
                dict(batches=[self._sample(model) for _ in range(2)], unused=model.shape["unused"])
                for model in self._model_of_each_rank(models)
            ]
            for r, (before, after) in enumerate(self.ranks.call(run_skipping, given, show=self.show)):
                if all(old is None for old in before):
                    self.fail(f"with sync False, gradients do not add up in p.grad on rank {r}", "sums that are kept elsewhere")
                for old, new in zip(before, after, strict=True):
                    if old is not None and (new is None or not np.array_equal(old, new)):
                        said = f"a p.grad of a block on rank {r} is lost in a micro-batch that skips this block, with sync True"
                        self.fail(said, "gradients that are set to None although they have not been reduced")
        return self

    def exchanges(self, size: int = 4, dtype: type = np.float64, *, blocks: int = 5, shared: bool = False) -> FsdpCheck:
        """Check when blocks are gathered and gradients reduced: a gate changes each block's result, in forward and in backward.

        One rank is a gate ahead of the others, so no block can wait for the next block's gather before its own work.
        """
        models = self._build(size, dtype, blocks, shared, gated=True)
        self._explain_gate_errors(models, [], lambda gates: self._check_forward_only(models, "an output without gradients", gates=gates))
        self._explain_gate_errors(models, [False, True], lambda gates: self._step(models, 2, "a step with gates", gates=gates))
        return self

    def _explain_gate_errors(self, models: GroupModels, syncs: list[bool], go: Callable[[GatePlan], object]) -> object:
        """Let the ranks pass the gates, and explain the error if they do not get through."""
        try:
            return go(self._gates(models, syncs))
        except RanksError as error:
            if "TooEarly" in error.short:
                cause = (
                    "a gather started after the block's work, a block not freed after forward, or gradients reduced later than in `after`"
                )
                self.fail(f"a block runs before the next one's gather has started, or before gradients are reduced ({error.short})", cause)
            if "TooLate" in error.short:
                cause = "gathers started for more than the next block, or a second gather of the same block"
                self.fail(f"a block runs when more than this and the next block have been gathered ({error.short})", cause)
            if "Deadlock" in error.short:
                cause = "a gather or a Wait where only a start is needed"
                self.fail(f"a rank waits for others before its block runs, although that block has been gathered ({error.short})", cause)
            raise

    def clipping(self, *sizes: int) -> FsdpCheck:
        """Check the norm of the gradients, for both kinds of norm, and the gradients after clipping."""
        for size in sizes:
            for dtype, norm, share in CLIP_CASES:
                self._clip(self._build(size, dtype, 4, True), dtype, norm, share)
        self._clip(self._build(size, np.float64, 2, False), np.float64, 2, 0.5, nothing=True)
        self._clip(self._build(size, np.float64, 2, False), np.float64, 2, 0.0, zeros=True)
        return self

    def peak_memory(self, size: int = 4, *, shared: bool = False) -> FsdpCheck:
        """Check the memory of a rank: its shards of parameters and gradients, and two whole blocks within a step.

        With `shared`, the model is mostly one weight of both the first and the last block, whole only within a step.
        """
        memory.keep_freed()  # in this process
        width = 512
        each = 4 * width * width
        for blocks in (3, 6 if shared or self.show else 12):  # the first step allocates memory that stays allocated
            self.case = "a large model"
            self.ranks.call(begin_measurement)
            empty = self.baseline_memory(self.case)
            models = self._build(size, np.float32, blocks, shared, gated=True, width=width)
            self.case += f" of {wording.size(each)}"
            most = self.baseline_limit() + 2 * (blocks - shared) * each // size  # its shards are already there
            self._explain_gate_errors(models, [True], lambda gates: self._step(models, 1, "a large step", gates=gates))
            if blocks > 3:
                between, peaks = self._explain_gate_errors(
                    models, [True], lambda gates: self._step(models, 1, "a second large step", gates=gates, measured=most)
                )
                forward_peaks = self._explain_gate_errors(
                    models, [], lambda gates: self._check_forward_only(models, "a large output", gates=gates, measured=most)
                )
        self.ranks.call(end_measurement)
        for r, (before, now) in enumerate(zip(empty, between, strict=True)):
            part = (blocks - shared) * each // self._model_of_each_rank(models)[r].n
            spare = contract.HELD_BETWEEN_STEPS
            if now - before > 2 * part + spare.number * each:
                needed = f"its shards of parameters and gradients take {wording.size(2 * part)}"
                problem = f"rank {r} holds {wording.size(now - before)} between steps, but {needed}"
                self.fail(problem, "whole arrays that are kept: p.data, p.grad, `whole`, or the original parameters", limit=spare)
            grads = part * (not _is_isolated())  # isolated ranks have had them before
            self._check_peak((peaks[r] - grads) / each, shared, r, "in a step", contract.HELD_IN_A_STEP)
            self._check_peak(forward_peaks[r] / each, shared, r, "in a forward without gradients", contract.HELD_IN_FORWARD)
        return self

    def _check_peak(self, held: float, shared: bool, r: int, when: str, limit: Limit) -> None:
        """Check how many blocks rank r held besides its shards."""
        most = limit.number if _is_isolated() else min(limit.number, UNISOLATED_BLOCKS)
        if held > most + EXTRA_BLOCKS_TIED * shared:
            problem = f"{when}, rank {r} held {held:.1f} blocks besides its shards"
            cause = "blocks that are not freed after forward, or not after backward: two are whole at a time"
            self.fail(problem, cause, limit=limit)

    def _build(self, size: int, dtype: type, blocks: int, shared: bool, gated: bool = False, width: int = 0) -> GroupModels:
        groups, models, given = self.groups(size), [], [{}] * 4
        self.case = f"{self.describe_groups(groups, dtype)}, {blocks} blocks" + (
            ", some with shared and unused parameters" if shared else ""
        )
        for color, group in enumerate(groups):
            shape = (
                {"layers": [(width, width)] * blocks, "tied": shared} if width else self._shape(blocks, shared, unused=shared and not gated)
            )
            model = ReferenceModel(shape, dtype, len(group), self.random, gated)
            models.append((group, model))
            model.lead = int(self.random.integers(len(group)))
            for key, r in enumerate(group):
                given[r] = dict(
                    values=model.values(), shape=model.shape, dtype=np.dtype(dtype).name, place=(color, key), gated=gated, lead=model.lead
                )
        self.ranks.call(wrap_model, given, show=self.show)
        return models

    def _shape(self, blocks: int, shared: bool, unused: bool) -> dict:
        """Shape of an `FsdpTestModel` whose blocks differ in size; a block that may be skipped keeps its input's width."""
        used = blocks - unused
        dims, at = self.sizes(used + 1, 1, 10), self.sizes(1, 0, blocks)[0] if unused else -1
        at_end = at in (0, blocks - 1)
        if at_end:  # the first and the last have one weight, so both are square
            side, *others = self.sizes(blocks - 2, 1, 10)
            dims = [side, side, *others, side, side]
        if shared:
            dims[-2:] = dims[:2]  # so that the last block can have the first one's weight
        made, shape = list(pairwise(dims)), {"inner": [int(self.random.integers(0, blocks))]}
        if shared:
            shape |= {"tied": True, "scale": True, "spare": [int(self.random.integers(0, blocks))]}
        if unused:
            if not at_end:
                made.insert(at, (dims[at], dims[at]))
            shape["unused"] = [at]
        return shape | {"layers": made}

    def _check_traffic(
        self,
        r: int,
        group: list[int],
        model: ReferenceModel,
        times: int,
        gate_bytes: int,
        name: str,
        cause: str,
        moved: list[tuple] | None = None,
    ) -> None:
        """Check that rank r has gathered or reduced each shard at most so many times, and sent nothing else but the gates' numbers."""
        moved = self.ranks.traffic[r] if moved is None else moved
        most = times * model.wire() + gate_bytes
        # The formulas of both sides differ by rounding.
        self.sent(moved, most + 1, name=name, rank=r, cause=cause, limit=contract.EXCHANGES)
        most_calls = times * len(model.units) + gate_bytes // GATE_MESSAGE_BYTES
        cause = "a barrier, or an exchange besides gathers and reduces"
        self.calls(moved, most_calls, group=group, name=name, rank=r, cause=cause, limit=contract.EXCHANGES)

    @staticmethod
    def _model_of_each_rank(models: GroupModels) -> list[ReferenceModel]:
        """Model of each rank."""
        found = {r: model for group, model in models for r in group}
        return [found[r] for r in range(4)]

    def _sample(self, model: ReferenceModel) -> tuple[np.ndarray, np.ndarray]:
        """Draw a rank's micro-batch, and the weights that turn its output into the loss."""
        layers = model.shape["layers"]
        return tuple(self.random.standard_normal((3, width)).astype(model.dtype) for width in (layers[0][0], layers[-1][1]))

    def _gates(self, models: GroupModels, syncs: list[bool]) -> GatePlan:
        """Plan the gates for micro-batches that do or do not reduce gradients; an empty `syncs` means a forward pass alone."""
        found = GatePlan()
        for group, model in models:
            bounds, last = model.bounds(syncs), model.blocks - 1
            # The leading rank may be a gate ahead, except in a backward that reduces gradients, which all ranks do together.
            ahead = [k % (last + 1) != last and not (k // (last + 1) % 2 and syncs[k // (2 * last + 2)]) for k in range(len(bounds))]
            own = self.random.uniform(0.7, 1.4, (len(group), len(bounds)))
            for i, r in enumerate(group):
                leads, tokens, passes = i == model.lead, 0, []
                meets = [False, *ahead[:-1]] if leads else ahead
                for k, (least, most) in enumerate(bounds):
                    passes.append((least + tokens, float(own[i, k]), most + tokens) if model.n > 1 else (0, float(own[i, k]), 1e9))
                    tokens += GATE_MESSAGE_BYTES * (model.n - 1) * (leads and meets[k])
                found.passes[r], found.meets[r], found.tokens[r] = passes, meets, tokens
                found.numbers[r] = [own[i, k] * (own[model.lead, k + 1] if meets[k] and not leads else 1) for k in range(len(bounds))]
        return found

    def _check_gate_notes(self, notes: list[tuple[int, int]], passed: int, model: ReferenceModel, r: int, when: str) -> None:
        """Check what the gates that a rank has passed recorded: the open requests, and the whole blocks."""
        if len(notes) != passed:
            problem = f"in {when}, {len(notes)} of {passed} blocks that ran on rank {r} noted what was whole"
            self.fail(problem, "a wrapper that runs other blocks than the module's, or changes what this check keeps on a rank")
        last = model.blocks - 1
        for k, (requests, here) in enumerate(notes):
            i = k % (2 * model.blocks)
            block, back = (i, False) if i <= last else (2 * model.blocks - 1 - i, True)
            way = "backward" if back else "forward"
            if model.n > 1 and not requests and block != (0 if back else last):
                cause = "a gather or a Wait where only a start is needed"
                self.fail(
                    f"in {when}, block {block} runs in {way} on rank {r} when the next one's gather is already complete, not in flight",
                    cause,
                )
            if others := set(here) - {block, block + (-1 if back else 1)}:
                said = f"in {when}, block {min(others)} is whole on rank {r} when block {block} runs in {way}"
                self.fail(said, "blocks that are freed too late")

    def _require_freed(self, here: int, r: int, when: str) -> None:
        """Check that all parameters of the module have been freed."""
        if here:
            cause = "an `end` that does not free all shards, such as the rest, or a block that was started but not used"
            self.fail(f"after {when}, {here} parameter{'s are' if here > 1 else ' is'} still whole on rank {r}", cause)

    def _check_forward_only(
        self, models: GroupModels, what: str, *, dropped: bool = False, gates: GatePlan | None = None, measured: int = 0
    ) -> list[int]:
        """Check a forward pass alone; return each rank's peak in it, if it is `measured` (see `_step`)."""
        gates = gates or GatePlan()
        given = [
            dict(x=self._sample(m)[0], dropped=dropped, meets=meets, watched=_is_watched(measured))
            for m, meets in zip(self._model_of_each_rank(models), gates.meets, strict=True)
        ]
        found = self._call(run_forward_only, given, gates=gates.passes, peak=measured or False)
        peaks = self.ranks.peaks
        groups = {r: group for group, _ in models for r in group}
        for r, (model, asked, (out, here, notes, left, _)) in enumerate(zip(self._model_of_each_rank(models), given, found, strict=True)):
            want = model.look(asked["x"], gates.numbers[r])
            cause = "a block that runs with parameters of an earlier step, or of another block"
            self.array(out, want, name=what, rank=r, rtol=RTOL_BY_DTYPE[want.dtype], scale=_magnitude(want), cause=cause)
            self._require_freed(here, r, what)
            if left > 0:
                cause = "a block that was started but not used, which `end` must free"
                self.fail(f"after {what}, {left} gathers are in flight on rank {r}", cause)
            self._check_gate_notes(notes, len(gates.passes[r]), model, r, "a forward without gradients")
            self._check_traffic(r, groups[r], model, 1, gates.tokens[r], what, "a block that is gathered twice")
        for _, model in models if dropped else []:
            for p in model.net.parameters():
                p.data = p.data * p.dtype.type(0.5)
        return [answer[-1] if peak is None else peak for answer, peak in zip(found, peaks, strict=True)]

    def _step(
        self,
        models: GroupModels,
        count: int,
        when: str,
        *,
        sometimes: bool = False,
        syncs: list[bool] | None = None,
        gates: GatePlan | None = None,
        measured: int = 0,
    ) -> tuple[list[int], list[int]]:
        """Compare a step of `count` micro-batches with the whole model's; `sometimes` uses the block that may be skipped.

        With `measured`, the bytes that a rank may hold before the step, return what each rank holds after it, and its peak within it.
        """
        syncs = syncs or [False] * (count - 1) + [True]
        batches = [[self._sample(model) for _ in range(count)] for model in self._model_of_each_rank(models)]
        for _, model in models:
            model.net.unused = [] if sometimes else model.shape.get("unused", [])
        train, gates = gates is None, gates or GatePlan()
        given = [
            dict(batches=b, train=train, unused=m.net.unused, syncs=syncs, meets=meets, watched=_is_watched(measured))
            for b, m, meets in zip(batches, self._model_of_each_rank(models), gates.meets, strict=True)
        ]
        self._call(run_step, given, gates=gates.passes, peak=measured or False)
        traffic, peaks = self.ranks.traffic, self.ranks.peaks
        between = self.ranks.held() if measured else []
        answers = self.ranks.call(fetch_results)
        for r, late in enumerate(self.ranks.traffic):
            cause = "gradients that are reduced after backward"
            self.sent(late, 0, name=f"the fetch after {when}", rank=r, cause=cause, limit=contract.EXCHANGES)
        for group, model in models:
            wants = []
            for i, r in enumerate(group):
                todo, model.left[i] = model.left[i] + batches[r], []
                wants.append(model.run(todo, gates.numbers[r])[-count:])
            units = list(model.step(train=train))
            for i, r in enumerate(group):
                found, grads, data, notes, left, _ = answers[r]
                cause = "a block that is gathered more than twice, or gradients that are reduced although `sync` is False"
                self._check_traffic(r, group, model, 2 * count + sum(syncs), gates.tokens[r], when, cause, moved=traffic[r])
                for k, ((out, back, here), (want, want_back)) in enumerate(zip(found, wants[i], strict=True)):
                    cause = "a block that runs with the parameters of an earlier step, or of another block"
                    near, name = RTOL_BY_DTYPE[model.dtype], f"micro-batch {k} of {when}"
                    self.array(out, want, name=f"the output for {name}", rank=r, rtol=near, scale=_magnitude(want), cause=cause)
                    self.array(
                        back,
                        want_back,
                        name=f"the input's gradient for {name}",
                        rank=r,
                        rtol=near,
                        scale=_magnitude(want_back),
                        cause=cause,
                    )
                    self._require_freed(here, r, name)
                self._check_gate_notes(notes, len(gates.passes[r]), model, r, when)
                if left > 0:
                    cause = "a block that was started but not used, and is dropped while its gather is in flight; free must wait for it"
                    self.fail(f"after {when}, rank {r} has started {left} more gathers than it has waited for", cause)
                if len(data) != len(units):
                    shards = f"parameters() on rank {r} gives {len(data)} arrays, but there are {len(units)} shards"
                    self.fail(shards, "the module's own parameters; or a missing shard for the rest, if there is a rest")
                for unit, grad, after in zip(units, grads, data, strict=True):
                    self._unit(unit, grad, after, (model.n, i, r), when)
        return between, [answers[r][-1] if peak is None else peak for r, peak in enumerate(peaks)]

    def _call(self, function: Callable, given: list[dict] | dict | None = None, **how: object) -> list:
        """Call a function on the ranks; report a parameter without values as one that was not gathered."""
        try:
            return self.ranks.call(function, given, show=self.show, **how)
        except RanksError as error:
            if error.groups[0][1]["name"] == "ValueError" and re.search(r"\(0,\)|\bsize 0\b", error.short):
                cause = "a `before` that does not gather its block; or a `begin` that does not gather the rest"
                self.fail(f"a block runs with a parameter that has not been gathered ({error.short.strip()})", cause)
            raise

    def _unit(self, unit: tuple, grad: object, after: np.ndarray, place: tuple[int, int, int], when: str) -> None:
        """Check the gradient and the parameters of a shard at place i of n, which is rank r."""
        name, grads, was, want = unit
        n, i, r = place
        near = RTOL_BY_DTYPE[want[i].dtype]
        if grads is None:
            if grad is not None and np.any(grad):
                self.fail(f"the gradient of {name} on rank {r} in {when} is not 0, although nothing uses it", "gradients of another block")
        elif grad is None:
            self.fail(f"the gradient of {name} on rank {r} in {when} is None", "gradients that are never reduced")
        else:
            known = {"the sum over the ranks, not the mean": n * grads[i], "the mean, divided by the number of ranks again": grads[i] / n}
            cause = "gradients of some micro-batches only, of one rank only, or in the wrong place in the flat array"
            instead = known if n > 1 else None
            called = f"the gradient of {name} in {when}"
            self.array(
                grad, grads[i], name=called, rank=r, rtol=near, scale=_magnitude(np.concatenate(grads)), instead=instead, cause=cause
            )
        instead = {"what it was before": was[i]}
        self.array(after, want[i], name=f"{name} after {when}", rank=r, rtol=near, scale=_magnitude(np.concatenate(want)), instead=instead)

    def _clip(self, models: GroupModels, dtype: type, norm: float, share: float, nothing: bool = False, zeros: bool = False) -> None:
        """Check a norm and the clipped gradients; without gradients (`nothing`), or with such that are zeros."""
        given, wants = [{}] * 4, [()] * 4
        for group, model in models:
            arrays = [[self.random.standard_normal(p.shape).astype(dtype) * (not zeros) for p in own] for _, own in model.units]
            flats = [flat_parts(own, model.n) for own in arrays]
            flats[1:2] = [None]  # no gradient reaches that block
            flats = [None] * len(flats) if nothing else flats
            values = np.concatenate([np.zeros(1), *(part for own in flats if own is not None for part in own)])
            total = float(np.linalg.norm(values, norm))
            for i, r in enumerate(group):
                grads = [None if own is None else own[i] for own in flats]
                given[r] = dict(grads=grads, most=share * total, norm=norm)
                wants[r] = total, [None if g is None else g * dtype(min(1.0, share)) for g in grads]
        answers = self.ranks.call(call_clip_gradients, given, show=self.show)
        group_of = {r: group for group, _ in models for r in group}
        self.case += f", norm {norm}, limit {share} times the norm"
        for r, ((got, grads), (total, want)) in enumerate(zip(answers, wants, strict=True)):
            own = float(np.linalg.norm(np.concatenate([np.zeros(1), *(g for g in given[r]["grads"] if g is not None)]), norm))
            if isinstance(got, np.ndarray) and got.ndim == 0:
                got = got.item()
            if isinstance(got, (list, tuple, np.ndarray)):
                self.fail(f"clip_gradients on rank {r} must return a number; got {type(got).__name__}", "an array instead of a number")
            instead = {"the norm of this rank's shards alone": np.array([own]), "its square": np.array([total**2])}
            instead["the norm of no gradients: they are in the shards, and the module's parameters have none"] = np.zeros(1)
            cause = "norms that are added up (add squares, then take the root once), or an infinity norm that is added up"
            self.numbers(got, [total], name="the norm", rank=r, rtol=RTOL_BY_DTYPE[np.dtype(dtype)], instead=instead, cause=cause)
            for u, (grad, wanted) in enumerate(zip(grads, want, strict=True)):
                if wanted is None:
                    if grad is not None:
                        self.fail(f"the gradient of shard {u} on rank {r} was None, but is not after clipping", "zeros instead of None")
                    continue
                cause = "a factor other than most / norm, or scaling although the norm is not above most"
                self.array(
                    grad, wanted, name=f"the gradient of shard {u}, clipped,", rank=r, rtol=RTOL_BY_DTYPE[np.dtype(dtype)], cause=cause
                )
            cause = "gradients that are gathered"
            most = contract.CLIP_BYTES.number * len(want)
            self.sent(self.ranks.traffic[r], most, name="clipping", rank=r, cause=cause, limit=contract.CLIP_BYTES)
            most_calls = int(contract.CLIP_CALLS.number) * len(want)
            self.calls(self.ranks.traffic[r], most_calls, group=group_of[r], name="clipping", rank=r, limit=contract.CLIP_CALLS)


def _is_isolated() -> bool:
    return ISOLATION_VARIABLE in os.environ


def _is_watched(measured: int) -> bool:
    """Tell whether a rank measures its own memory: it does where nobody does from outside."""
    return bool(measured) and not _is_isolated()


def _magnitude(array: np.ndarray) -> float:
    return max(1.0, float(np.abs(array).max(initial=0)))

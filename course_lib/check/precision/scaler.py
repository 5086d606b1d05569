"""Check of part 31's `LossScaler` on grids of ranks, against one process that has all gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from course_lib.autograd import SGD, Adam, Parameter
from course_lib.check.groups import GroupCheck
from course_lib.check.precision import contract
from course_lib.check.precision.on_ranks import call_scale, call_scaler

LARGE = 1e19  # a norm whose square is beyond float32's range
CLIP = 1 / 3  # limit of a norm, as a share of it: neither float16 nor bfloat16 holds it
OVERFLOWS = (np.inf, -np.inf, np.nan)


@dataclass
class Step:
    """A step of the test: each rank's gradients, and how the scaler is called.

    Parameters
    ----------
    grads : list of list
        For each world rank, each parameter's gradient (float32, not scaled), or None.
    most : float, optional
        The norm to which gradients are clipped, as a share of their norm; of 1 if that is 0.
    unscale : int
        How many times `unscale` is called before `step`.
    """

    grads: list[list[np.ndarray | None]]
    most: float | None = None
    unscale: int = 0


class Wanted(NamedTuple):
    """Reference result of a step on a rank.

    Attributes
    ----------
    finite : bool
        Whether no rank has an overflow.
    norm, own : float
        Of all gradients, and of this rank's.
    grads, data : list
        The rank's gradients, unscaled, and its parameters after the step.
    before, after : float
        The factor in the step, and after `update`.
    most : float or None
        The norm to which gradients are clipped.
    clipped : list
        The rank's gradients as the optimizer gets them.
    earlier : Wanted or None
        The step before.
    """

    finite: bool
    norm: float
    own: float
    grads: list
    data: list
    before: float
    after: float
    most: float | None
    clipped: list
    earlier: Wanted | None


@dataclass
class Reference:
    """The same steps in one process.

    Parameters
    ----------
    factor, interval, limits
        As for `LossScaler`.
    good : int
        Number of steps since the last overflow or doubling.
    """

    factor: float = 2.0**16
    interval: int = 2000
    limits: tuple[float, float] = (1.0, 2.0**24)
    good: int = field(default=0)

    def update(self, finite: bool) -> None:
        """Change the factor after a step."""
        self.good = self.good + 1 if finite else 0
        if not finite or self.good == self.interval:
            self.factor *= 2.0 if finite else 0.5
            self.good = 0
        self.factor = min(max(self.factor, self.limits[0]), self.limits[1])


class ScalerCheck(GroupCheck):
    """A `Check` of `LossScaler`; `axes` are the sizes of a grid's axes: (2, 2) or (4,), and (3,) leaves a rank by itself."""

    def everything(self) -> ScalerCheck:
        """Check all that is asked of the scaler."""
        return self.scaling().skipping().adjusting()

    def scaling(self) -> ScalerCheck:
        """Check `scale`, and on several grids `unscale` and clipping."""
        return self.scales().norms(4).norms(3).norms(2, 2, 1)

    def skipping(self) -> ScalerCheck:
        """Check on several grids that all ranks skip a step together."""
        return self.overflows(4).overflows(3).overflows(1, 2, 2).overflows(2)

    def adjusting(self) -> ScalerCheck:
        """Check the factor on two grids."""
        return self.factors(2, 2).factors(3)

    def scales(self) -> ScalerCheck:
        """Check two scalers in turn: the loss and its gradient are multiplied by the factor, and the norm is that of each."""
        factors = [2.0 ** int(power) for power in self.random.permutation([3, 12])]
        weights, x = self.random.standard_normal((2, 2, self.sizes(1, 2, 9)[0])).astype(np.float32)
        settings = [dict(factor=factor, interval=1) for factor in factors]  # doubles after each step
        given = dict(weights=list(weights), x=list(x), settings=settings)
        answers = self.call(call_scale, given, show=self.show)
        for r, found in enumerate(answers):
            for k, (factor, w, xs) in enumerate(zip(factors, weights, x, strict=True)):
                self.case = f"two scalers in turn, number {k + 1}, factor {factor:g}"
                loss = np.asarray(np.sum(w * xs), np.float32)
                norm = 2 * float(np.linalg.norm(xs.astype(float)))  # of four ranks
                for step, scalers in enumerate(found, 1):
                    now, value, grad, norm_got = scalers[k]
                    if step == 1:  # later ones are another test's
                        self.value(now, factor, name="the factor at first", rank=r)
                    instead = {
                        "the loss, not scaled": loss,
                        "the loss times the factor of the step before": factor * loss,
                    }
                    how = dict(rank=r, rtol=1e-5, scale=now * float(np.abs(w * xs).sum()), instead=instead)
                    name = f"the scaled loss of step {step}"
                    self.array(value, np.asarray(now * loss, np.float32), name=name, **how)
                    name = f"the gradient of the scaled loss of step {step}"
                    self.array(grad, np.float32(now) * xs, name=name, rank=r, rtol=1e-6)
                    cause = "an attribute of the class, which all its objects share"
                    name = f"the norm of step {step}"
                    self.numbers(norm_got, [norm], name=name, rank=r, rtol=1e-5, cause=cause)
        return self

    def norms(self, *axes: int) -> ScalerCheck:
        """Check gradients and their norm after `unscale`, and clipping, without any overflow."""
        for optimizer in ("SGD", "Adam"):
            order, members = self._grid(axes)
            shapes = self._shapes()
            steps = [
                Step(self._draw(shapes), unscale=1),
                Step(self._draw(shapes), most=CLIP, unscale=1),
                Step(self._draw(shapes), most=CLIP),
                Step(self._draw(shapes), most=1.5, unscale=2),
                Step(self._draw(shapes, 0.0), most=0.5),
                Step(self._draw(shapes, 1e-15), unscale=1),
                Step(self._draw(shapes)),
            ]
            steps[2].grads[members[-1]] = [None] * len(shapes)  # a rank without gradients takes part all the same
            steps[3].grads[members[0]][0] = None
            settings = dict(factor=2.0 ** int(self.random.integers(6, 14)))
            self.case = f"{self._describe_grid(order, axes)}, {optimizer}"
            self._run(order, axes, settings, steps, self._compare_values, optimizer)
        self.covers("sizes", "arguments", "results")
        return self

    def overflows(self, *axes: int) -> ScalerCheck:
        """Check that all ranks skip a step together, whichever rank of whichever axis has the overflow, and no other step.

        After the first overflow, the factor is at its lower limit.
        """
        order, members = self._grid(axes)
        shapes, steps = self._shapes(), []
        for i, r in enumerate(self.random.permutation(members)):
            step = Step(self._draw(shapes), unscale=i % 2, most=(None, 0.5)[i // 2 % 2])
            which = i % len(shapes)
            step.grads[r][which].flat[self.random.integers(step.grads[r][which].size)] = OVERFLOWS[i % 3]
            if i == 0:
                for s in set(members) - {r}:
                    step.grads[s] = [None] * len(shapes)
            steps += [step, Step(self._draw(shapes), unscale=(i + 1) % 2)]
        settings = dict(factor=2.0**10, interval=100, limits=(2.0**9, 2.0**24))
        large = Step(self._draw(shapes))  # when scaled, their squares and sums are beyond float32's range, but they are not
        for r in range(4):
            factor = settings["limits"][0] if r in members else settings["factor"]
            large.grads[r] = [self.random.uniform(2e38, 3e38, shape).astype(np.float32) / np.float32(factor) for shape in shapes]
        steps.append(large)
        self.case = f"{self._describe_grid(order, axes)}, overflows"
        self._run(order, axes, settings, steps, self._compare_skipping)
        self.covers("special values", "group order", "group sizes", "repetition")
        return self

    def factors(self, *axes: int) -> ScalerCheck:
        """Check the factor after each `update`: halved by an overflow, doubled after `interval` good steps in a row, within its limits."""
        order, members = self._grid(axes)
        self._turns = self.random.permutation(members)  # of ranks that have an overflow
        shapes = self._shapes()
        for interval, powers in zip(self.random.permutation([2, 3]).tolist(), ((4, 8), (0, 2)), strict=True):
            start = 2.0 ** int(self.random.integers(*powers))
            good, bad = "." * (interval - 1), "x"
            pattern = 3 * (bad + good) + "." + good + "." + 3 * interval * "0" + 6 * bad + good + bad + 2 * interval * "."
            settings = dict(factor=start, interval=interval, limits=(start / 8, start * 2))
            self.case = f"{self._describe_grid(order, axes)}, interval {interval}, limits {start / 8:g} and {start * 2:g}"
            self._run(order, axes, settings, self._pattern(pattern, shapes), self._compare_factor)
        self.case = f"{self._describe_grid(order, axes)}, the usual limits"
        self._run(order, axes, dict(interval=1), self._pattern(12 * "0" + 27 * "x", shapes), self._compare_factor)
        return self

    def _pattern(self, kinds: str, shapes: list[tuple[int, ...]]) -> list[Step]:
        """Good steps ("."), steps with an overflow on one rank after the other ("x"), and steps whose gradients are all zero ("0")."""
        steps = []
        for i, kind in enumerate(kinds):
            step = Step(self._draw(shapes), unscale=i % 2)
            for own in step.grads:
                own[:] = [np.zeros_like(g) for g in own] if kind == "0" else own
            if kind == "x":
                step.grads[self._turns[kinds[:i].count("x") % len(self._turns)]][0].flat[0] = np.inf
            steps.append(step)
        return steps

    def _grid(self, axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """The order of the ranks in a grid, and the ranks in it."""
        order = self.groups(int(np.prod(axes)))[0]
        return order, sorted(order)

    def _shapes(self) -> list[tuple[int, ...]]:
        """Shapes of parameters: more of them than a rank may make calls."""
        a, b, c = self.sizes(3, 2, 7)
        return [(a, b), (c,), (1,), (b, 1), (a,), (c, a)]

    def _draw(self, shapes: list[tuple[int, ...]], size: float = 1.0) -> list[list[np.ndarray]]:
        """Gradients of each rank, which differ in size from rank to rank, so that no rank's own norm is the norm."""
        sizes = size * self.random.permutation([0.5, 1.0, 2.0, 4.0])
        return [[(s * self.random.standard_normal(shape)).astype(np.float32) for shape in shapes] for s in sizes]

    def _describe_grid(self, order: list[int], axes: tuple[int, ...]) -> str:
        return f"the grid {np.reshape(order, axes).tolist()}"

    def _run(
        self, order: list[int], axes: tuple[int, ...], settings: dict, steps: list[Step], compare: Callable, optimizer: str = "SGD"
    ) -> None:
        """Have the ranks of a grid, and each one outside by itself, take these steps; `compare` each with what it should be."""
        members, self._limits = sorted(order), Reference(**settings).limits
        shapes = next([g.shape for g in own] for own in steps[-1].grads)
        values = self._draw(shapes)
        groups = [members, *([r] for r in range(4) if r not in members)]
        wants: dict[int, list] = {}
        scaled: list[list] = [[] for _ in range(4)]
        for group in groups:
            self._take(group, values, optimizer, Reference(**settings), steps, scaled, wants)
        given = [
            dict(values=values[r], optimizer=optimizer, settings=settings, steps=scaled[r], places=_places(order, axes, r))
            for r in range(4)
        ]
        answers = self.call(call_scaler, given, show=self.show)
        what = self.case
        for r, found in enumerate(answers):
            held = values[r]
            for k, (got, want) in enumerate(zip(found, wants[r], strict=True)):
                if k and compare == self._compare_values:  # with a wrong factor, all that follows is wrong
                    self._compare_factor(found[k - 1], want.earlier, r)
                self.case = f"step {k + 1} on {what}"
                compare(got, want, r, moved=any(np.any(a != b) for a, b in zip(held, got[3], strict=True)))
                held = got[3]
            axis_steps = len(axes) * len(steps)
            moved = self.ranks.traffic[r]
            name = f"{len(steps)} steps"
            cause = "gradients that are sent; one number is enough"
            most = axis_steps * contract.STEP_BYTES.number
            self.sent(moved, most, name=name, rank=r, cause=cause, limit=contract.STEP_BYTES)
            most = axis_steps * int(contract.STEP_CALLS.number)
            group = members if r in members else [r]
            self.calls(moved, most, group=group, name=name, rank=r, limit=contract.STEP_CALLS)
        self.case = what

    @staticmethod
    def _take(
        group: list[int], values: list, optimizer: str, reference: Reference, steps: list[Step], scaled: list[list], wants: dict[int, list]
    ) -> None:
        """Take the steps of a group in this process: fill in what its ranks are given, and what they should return."""
        parameters = {r: [Parameter(v.copy()) for v in values[r]] for r in group}
        everything = [p for own in parameters.values() for p in own]
        rule = SGD(everything, 0.1, 0.5) if optimizer == "SGD" else Adam(everything, 0.01)
        for r in group:
            wants[r] = []
        for step in steps:
            factor = np.float32(reference.factor)
            grads = {r: step.grads[r] for r in group}
            flat = np.concatenate([np.zeros(1), *(g.ravel().astype(float) for own in grads.values() for g in own if g is not None)])
            finite, norm = bool(np.isfinite(flat).all()), float(np.sqrt(np.sum(flat * flat)))
            most = step.most
            if most is not None:
                most = most * (norm or 1.0) if finite else 1.0
            clip = np.float32(most / norm) if finite and most is not None and norm > most else np.float32(1)
            for r in group:
                given = [None if g is None else g * factor for g in grads[r]]
                scaled[r].append(dict(grads=given, most=most, unscale=step.unscale))
                for p, g in zip(parameters[r], grads[r], strict=True):
                    p.grad = None if g is None else g * clip
            if finite:
                rule.step()
            own = {r: np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in grads[r] if g is not None)) for r in group}
            before = reference.factor
            reference.update(finite)
            for r in group:
                data = [p.data.copy() for p in parameters[r]]
                earlier = wants[r][-1] if wants[r] else None
                clipped = [p.grad for p in parameters[r]]
                wanted = Wanted(finite, norm, float(own[r]), grads[r], data, before, reference.factor, most, clipped, earlier)
                wants[r].append(wanted)

    def _compare_values(self, got: tuple, want: Wanted, r: int, moved: bool) -> None:
        """Compare norms, gradients and parameters on rank r."""
        norms, grads, _, data, stepped, *_ = got
        norm, before, unscaled = want.norm, want.before, want.grads
        self._compare_decision(got, want, r, moved=want.finite)
        for norm_got in norms:
            instead = {"the norm of this rank's gradients alone": [want.own], "the norm of the scaled gradients": [norm * before]}
            instead |= {"its square": [norm * norm], "the norm, divided by the factor twice": [norm / before]}
            instead |= {"the norm of the step before": [want.earlier.norm]} if want.earlier else {}
            known = {what: np.asarray(value) for what, value in instead.items()}
            cause = "norms that are added up (add squares), a sum along one axis only, or one that counts ranks twice"
            self.numbers(norm_got, [norm], name="the norm that unscale returns", rank=r, rtol=1e-5, instead=known, cause=cause)
        for p, (grad, wanted) in enumerate(zip(grads if norms else unscaled, unscaled, strict=True)):
            name = f"the gradient of parameter {p}, after unscale,"
            if wanted is None or grad is None:
                if wanted is not grad:
                    self.fail(f"{name} on rank {r} is {'not None' if wanted is None else 'None'}", "a gradient that is made or dropped")
                continue
            instead = {"still scaled": wanted * np.float32(before), "divided twice": wanted / np.float32(before)}
            self.array(grad, wanted, name=name, rank=r, rtol=1e-6, instead=instead)
        cause = "clipping by the scaled norm, by this rank's norm, or not at all"  # unscaled gradients are right
        if not norms:
            cause = "gradients that step does not unscale, though unscale has not been called"
        elif want.most is None or norm <= want.most:
            cause = "gradients that are scaled up to the norm `most`, though theirs is smaller"
        elif want.most:
            cause += "; or a number that is rounded, such as most / norm in 16 bits"
        if not stepped:
            self.fail(f"step on rank {r} does not call optimizer.step()", "parameters that are changed without the optimizer")
        for p, (grad, wanted) in enumerate(zip(stepped, want.clipped, strict=True)):
            if wanted is not None:  # tolerance: that of the norm
                name = f"the gradient of parameter {p}, when step calls optimizer.step(),"
                self.array(grad, wanted, name=name, rank=r, rtol=2e-5, cause=cause, dtype=False)
        for p, (values, wanted) in enumerate(zip(data, want.data, strict=True)):
            scale = max(1.0, float(np.abs(wanted).max()))
            self.array(values, wanted, name=f"parameter {p}, after step,", rank=r, rtol=2e-5, scale=scale, cause=cause)

    def _compare_skipping(self, got: tuple, want: Wanted, r: int, moved: bool) -> None:
        """Compare the decision, and whether an overflow has left its traces in a later step."""
        if want.finite and not all(np.isfinite(values).all() for values in got[3]):
            cause = "an optimizer that was called in an earlier step, with the overflow, so that what it keeps is infinite or NaN"
            self.fail(f"the parameters on rank {r} are infinite or NaN after a step that was taken", cause)
        self._compare_decision(got, want, r, moved)

    def _compare_decision(self, got: tuple, want: Wanted, r: int, moved: bool) -> None:
        """Compare whether rank r has seen an overflow, and whether it has taken the step, so that its parameters have moved."""
        norms, _, taken, *_ = got
        finite = want.finite
        for norm in norms:
            if not isinstance(norm, (int, float, np.floating)):
                self.fail(f"unscale on rank {r} must return a number; got {type(norm).__name__}", "a missing return")
            if np.isfinite(norm) != finite:
                saw = "is finite, though a rank has a gradient that is not" if not finite else "is not finite, though all gradients are"
                cause = "the norm of this rank only, or of one axis only" if not finite else _unseen(want)
                self.fail(f"the norm that unscale returns on rank {r} {saw}", cause)
        if not isinstance(taken, (bool, np.bool_)):
            self.fail(f"step on rank {r} must return True or False; got {type(taken).__name__}", "a missing return")
        if bool(taken) != finite:
            said = "took a step, though a rank has an overflow" if taken else "skipped a step, though no rank has an overflow"
            cause = "a decision by this rank's gradients alone, or by those of one axis"
            if taken and want.before == self._limits[0] and want.earlier:
                cause = "an overflow at the smallest factor, where the factor stays as it is, but the step must be skipped all the same"
            elif taken and np.isnan(want.norm):
                cause = "a norm that is NaN, for which np.isinf is False, and every comparison, too; np.isfinite sees it"
            elif not taken:
                cause = _unseen(want)
            self.fail(f"rank {r} {said}", cause)
        if moved != finite:
            said = "have changed in a step that was skipped" if moved else "have not changed in a step that was taken"
            self.fail(f"the parameters on rank {r} {said}", "an optimizer that is called in the wrong case")

    def _compare_factor(self, got: tuple, want: Wanted, r: int, moved: bool = True) -> None:
        """Compare the factor on rank r, before and after `update`."""
        if got[-2] != want.before:
            self.fail(f"the factor on rank {r} has changed before update", "a factor that is halved in unscale or in step")
        factor, number = got[-1], isinstance(got[-1], (int, float, np.floating))
        if not number or float(factor) != want.after:
            shown = f"is {factor}, expected {want.after:g} (before: {want.before:g})" if self.show else "is wrong"
            cause = ""
            if number and not self._limits[0] <= factor <= self._limits[1]:
                cause = "a factor that is not kept within its limits"
            elif number and factor < want.after and not want.finite:
                cause = "a factor that is halved twice, or by //, which rounds down what is below 1"
            elif number and not want.finite:
                cause = "a decision by this rank's gradients alone, or by those of one axis"
                if want.before == self._limits[0]:
                    cause = f"an overflow at the smallest factor that counts as a good step; or {cause}"
            elif number and factor > want.after:
                cause = "good steps that are not counted anew after an overflow or a doubling, or an overflow that counts as one of them"
            elif number:
                cause = "a doubling that is too late, or the smallest and the largest limit swapped"
            self.fail(f"after update, the factor on rank {r} {shown}", cause)


def _unseen(want: Wanted) -> str:
    """Name the usual cause of an overflow that is not there."""
    if want.earlier and not want.earlier.finite:
        return "the overflow of the step before, which update has not forgotten"
    return "squares or a sum that overflow in float32: add them up in float64" if want.norm > LARGE else ""


def _places(order: list[int], axes: tuple[int, ...], r: int) -> list[tuple[int, int]]:
    """Color and key of rank r's group along each axis of a grid; a rank outside is in groups of its own."""
    if r not in order:
        return [(len(order) + r, 0)] * len(axes)
    position, found = np.unravel_index(order.index(r), axes), []
    for axis in range(len(axes)):
        line = np.arange(len(order)).reshape(axes)[tuple(slice(None) if k == axis else i for k, i in enumerate(position))]
        found.append((int(line.min()), int(position[axis])))
    return found

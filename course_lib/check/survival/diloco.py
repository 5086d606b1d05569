"""Check of part 37's `DiLoCo`: the weights after each step, what an exchange sends, and that the other steps send nothing."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from course_lib import traffic
from course_lib.check.groups import GroupCheck
from course_lib.check.survival import contract
from course_lib.check.survival.on_ranks import Weights, build_diloco, make_optimizer, step_diloco

NESTEROV = "SGD", dict(lr=0.7, momentum=0.9, nesterov=True)
GRADIENT_DESCENT = "SGD", dict(lr=0.1)
ADAM = "Adam", dict(lr=0.05)
TOLERANCES = {"float32": 1e-4, "float64": 1e-10}
WEIGHT = 4.0  # magnitude of the weights
NOT_NUMBERS = np.nan, np.inf, -np.inf
MANY_ROWS = 100  # times as many where bytes are counted, next to which a few numbers more do not matter
Optimizer = tuple[str, dict]


@dataclass
class Training:
    """Settings with which ranks train.

    Attributes
    ----------
    groups : list of list of int
    every : int
    inner, outer : Optimizer
        Name and settings.
    weights : list of list of numpy.ndarray
        By rank, the first parameters.
    gradients : list of list of list of (numpy.ndarray or None)
        By rank and step, for each parameter.
    """

    groups: list[list[int]]
    every: int
    inner: Optimizer
    outer: Optimizer
    weights: list[list[np.ndarray]]
    gradients: list[list[list[np.ndarray | None]]]

    def of_group(self, group: list[int]) -> tuple[list, list]:
        """Return the first parameters and the gradients of a group's ranks."""
        return [self.weights[r] for r in group], [self.gradients[r] for r in group]


class DiLoCoCheck(GroupCheck):
    """A `Check` of `DiLoCo`."""

    def as_data_parallel(self) -> DiLoCoCheck:
        """Check that with H = 1 and plain gradient descent it is data parallel training."""
        return self.train(4, every=1, inner=GRADIENT_DESCENT, outer=("SGD", dict(lr=1.0)))

    def everything(self) -> DiLoCoCheck:
        """Check all groups, dtypes and optimizers that a right answer must be able to deal with."""
        self.as_data_parallel().costs(4, every=2).costs(2, every=3).costs(3, every=1)
        for size, every, dtype in ((4, 3, "float64"), (3, 2, "float32"), (2, 4, "float64"), (1, 2, "float64")):
            self.train(size, every=every, dtype=dtype)
            self.train(size, every=every, dtype=dtype, inner=("SGD", dict(lr=0.1, momentum=0.5)), outer=("SGD", dict(lr=0.5)))
        return self.missing_gradients(3).not_numbers(4)

    def train(self, size: int, *, every: int, dtype: str = "float64", inner: Optimizer = ADAM, outer: Optimizer = NESTEROV) -> DiLoCoCheck:
        """Check the parameters after each of some steps, in groups of `size`."""
        training = self._draw(size, 3 * every + (every > 1), every, dtype, inner, outer)
        self._train(training)
        self.covers("group sizes", "group order", "dtypes", "sizes", "results")
        return self

    def missing_gradients(self, every: int) -> DiLoCoCheck:
        """Check exchanges after steps in which gradients are missing or 0.

        First, parameters have none, on one rank or on all. Then, a rank has none at all. Then, all
        are 0: the outer momentum moves the weights all the same.
        """
        training = self._draw(4, 4 * every, every, "float64", GRADIENT_DESCENT, NESTEROV)
        idle = int(self.random.integers(4))
        self.case += "; first, some parameters have no gradient"
        self.case += f"; in steps {2 * every + 1} to {3 * every}, rank {idle} has none at all"
        self.case += f"; in steps {3 * every + 1} to {4 * every}, all gradients are 0"
        for r, steps in enumerate(training.gradients):
            for step, gradients in enumerate(steps[: 2 * every]):
                gradients[(r + step) % 3] = None
                if (step + 1) % every == 0:
                    gradients[1] = None
            for gradients in steps[2 * every : 3 * every] if r == idle else ():
                gradients[:] = [None] * len(gradients)
            for gradients in steps[3 * every :]:
                gradients[:] = [np.zeros_like(gradient) for gradient in gradients]
        self._train(training)
        return self

    def not_numbers(self, size: int) -> DiLoCoCheck:
        """Check an exchange of weights that are NaN or infinite on one rank each."""
        training = self._draw(size, 2, 2, "float64", GRADIENT_DESCENT, NESTEROV)
        self.case += ", weights that are no numbers"
        for r, value in enumerate(NOT_NUMBERS):
            training.gradients[r][0][0].flat[r] = value
        self._train(training)
        self.covers("special values")
        return self

    def costs(self, size: int, *, every: int) -> DiLoCoCheck:
        """Check what each step sends, of two trainers that take turns on communicators with the same ranks."""
        both = [self._draw(size, 2 * every, every, "float64", GRADIENT_DESCENT, NESTEROV, rows=MANY_ROWS)]
        both.append(self._draw(size, 2 * every, every, "float64", GRADIENT_DESCENT, NESTEROV))
        both[1].groups = both[0].groups
        self.case = f"H = {every}, {self.describe_groups(both[0].groups, float)}"
        case = self.case
        self._build(both)
        self._exchange(both, "the start")
        results: list[list[list]] = [[[] for _ in range(4)] for _ in both]
        for begin in (0, every):
            last = begin + every - 1
            for which, training in enumerate(both) if every > 1 else ():
                self._step(which, training, slice(begin, last), results[which])
                self._nothing_sent(f"steps {begin + 1} to {last} of H = {every}")
            for which, training in enumerate(both):
                self._step(which, training, slice(last, last + 1), results[which])
                self._exchange([training], f"step {last + 1} of H = {every}")
        for which, training in enumerate(both):
            self.case = f"{case}, trainer {which + 1} of two that take turns"
            self._compare(training, results[which])
        self.covers("same ranks twice", "repetition", "calls")
        return self

    def _draw(self, size: int, steps: int, every: int, dtype: str, inner: Optimizer, outer: Optimizer, rows: int = 1) -> Training:
        """Draw groups, first parameters and gradients of all steps; `rows`: how many times as many the matrix has."""
        groups = self.groups(size)
        few, columns, length = self.sizes(3, 3, 9)
        shapes = (rows * few, columns), (length,), (1,), (few, 1)
        self.case = f"H = {every}, inner {inner[0]}, outer learning rate {outer[1]['lr']:g}, {self.describe_groups(groups, dtype)}"

        def drawn() -> list[np.ndarray]:
            return [self.random.standard_normal(shape).astype(dtype) for shape in shapes]

        weights = [drawn() for _ in range(4)]
        return Training(groups, every, inner, outer, weights, [[drawn() for _ in range(steps)] for _ in range(4)])

    def _train(self, training: Training) -> None:
        """Train on the ranks, and compare."""
        self._build([training])
        results: list[list] = [[] for _ in range(4)]
        self._step(0, training, slice(None), results)
        self._compare(training, results)

    def _build(self, trainings: list[Training]) -> None:
        """Make the ranks' trainers."""
        arguments = [
            [
                dict(place=self.colors_and_keys(t.groups)[r], weights=t.weights[r], every=t.every, inner=t.inner, outer=t.outer)
                for t in trainings
            ]
            for r in range(4)
        ]
        self.call(build_diloco, [dict(trainings=each) for each in arguments], show=self.show)

    def _step(self, which: int, training: Training, steps: slice, results: list[list]) -> None:
        """Take steps with one of the trainers, and add the ranks' parameters after each to `results`."""
        arguments = [dict(which=which, gradients=training.gradients[r][steps]) for r in range(4)]
        for r, parameters in enumerate(self.call(step_diloco, arguments, show=self.show)):
            results[r] += parameters

    def _nothing_sent(self, name: str) -> None:
        """Check that the last steps have called nobody."""
        for r, moved in enumerate(self.ranks.traffic):
            cause = "an exchange, or a Barrier, in every inner step"
            self.calls(moved, 0, group=list(range(4)), name=f"DiLoCo, in {name},", rank=r, cause=cause, limit=contract.INNER_CALLS)

    def _exchange(self, trainings: list[Training], name: str) -> None:
        """Check what the ranks have sent for one exchange of each of these."""
        for r, moved in enumerate(self.ranks.traffic):
            bytes_allowed = calls_allowed = 0.0
            for training in trainings:
                n = len(next(group for group in training.groups if r in group))
                weights = training.weights[r]
                bytes_allowed += traffic.wire_bytes("Allgather", n, n * sum(w.nbytes for w in weights))
                bytes_allowed += contract.EXCHANGE_BYTES.number
                calls_allowed += contract.EXCHANGE_CALLS.number * len(weights)
            what = f"DiLoCo, at {name},"
            cause = "weights or differences that are sent more than once"
            self.sent(moved, bytes_allowed, name=what, rank=r, cause=cause, limit=contract.EXCHANGE_BYTES)
            group = next(group for group in trainings[0].groups if r in group)
            self.calls(moved, int(calls_allowed), group=group, name=what, rank=r, limit=contract.EXCHANGE_CALLS)
            self.requests_completed(self.ranks.unended[r], r)

    # Values.

    def _compare(self, training: Training, results: list[list]) -> None:
        """Compare the parameters after each step with those of the same training in one process."""
        with np.errstate(invalid="ignore"):  # inf - inf
            for group in training.groups:
                self._compare_group(training, [results[r] for r in group], group)

    def _compare_group(self, training: Training, results: list[list], group: list[int]) -> None:
        starts, gradients = training.of_group(group)
        models = [Weights([w.copy() for w in starts[0]]) for _ in group]
        optimizers = [make_optimizer(training.inner[0], model.parameters(), training.inner[1]) for model in models]
        last = Weights([w.copy() for w in starts[0]])
        outermost = make_optimizer(training.outer[0], last.parameters(), training.outer[1])
        for step in range(len(gradients[0])):
            for model, optimizer, steps in zip(models, optimizers, gradients, strict=True):
                for p, grad in zip(model.parameters(), steps[step], strict=True):
                    p.grad = None if grad is None else grad.copy()
                optimizer.step()
            exchanged = (step + 1) % training.every == 0
            state = copy.deepcopy((models, last, outermost))
            known = partial(_known_weights, state, starts, step // training.every if exchanged else None)
            if exchanged:
                for i, p in enumerate(last.parameters()):
                    p.grad = np.mean([p.data - model.parameters()[i].data for model in models], axis=0, dtype=p.data.dtype)
                outermost.step()
                for model, (i, q) in itertools.product(models, enumerate(last.parameters())):
                    model.parameters()[i].data[...] = q.data
            for i, r in enumerate(group):
                self._compare_step(results[i][step], models[i], (r, i), step, known, results[0][step] if exchanged else None)

    def _compare_step(self, got: list, model: Weights, who: tuple[int, int], step: int, known: Callable, first: list | None) -> None:
        r, place = who
        cause = "a difference to other weights than those after the last outer step, or another gradient of the outer step"
        if first is None:
            cause = "weights that did not start as rank 0's, or an inner optimizer that is not as the rank itself had left it"
        for i, p in enumerate(model.parameters()):
            name = f"parameter {i} after step {step + 1}"
            rtol = TOLERANCES[p.data.dtype.name]
            self.array(got[i], p.data, name=name, rank=r, rtol=rtol, scale=WEIGHT, cause=cause, instead=partial(known, place, i))
            if first is not None and not np.array_equal(got[i], first[i], equal_nan=True):
                other = "a mean of its own, such as a sum in another order on each rank"
                self.fail(f"{name} on rank {r} is not the one of the group's first rank", other, limit=contract.SAME_WEIGHTS)


def _known_weights(state: tuple, starts: list, exchange: int | None, place: int, i: int) -> dict[str, np.ndarray]:
    """Parameter i of a rank after an exchange (None: after another step), as known mistakes make it; `starts`: all ranks' first weights."""
    models, last, outermost = state
    own, before = models[place].parameters()[i].data, last.parameters()[i].data
    ways = [before - model.parameters()[i].data for model in models]
    mean = np.mean(ways, axis=0)

    def outer(begin: np.ndarray, grad: np.ndarray) -> np.ndarray:
        fresh_last, fresh = copy.deepcopy((last, outermost))
        p = fresh_last.parameters()[i]
        for q in fresh_last.parameters():
            q.grad = np.zeros_like(q.data)
        p.data, p.grad = begin.copy(), grad.astype(begin.dtype)
        fresh.step()
        return p.data

    if exchange is None:
        return {"the result of an outer step, which is due only after every H inner steps": outer(before, mean)}
    known = {
        "the rank's own weights: there was no outer step, or all differences were 0, as those to weights that are not a copy are": own,
        "the result for this rank's difference alone": outer(before, ways[place]),
        "the result for the sum of the differences instead of their mean": outer(before, len(models) * mean),
        "the result for differences of the wrong sign": outer(before, -mean),
        "the result of an outer step that starts from the rank's own weights, not those after the last outer step": outer(own, mean),
        "the mean of the ranks' weights: an outer step without the outer optimizer": before - mean,
        "what it was after the last outer step": before,
    }
    if exchange:
        first = starts[0][i]
        known["the result of an outer step from the very first weights: after an outer step, keep the new ones"] = outer(
            first, first - before + mean
        )
    else:  # the gradients of plain inner steps do not depend on the weights
        shifted = [start[i] - starts[0][i] for start in starts]
        known["the result without the broadcast: each rank began with weights of its own"] = outer(before, mean) + shifted[place]
    return known

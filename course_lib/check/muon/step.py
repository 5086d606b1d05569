"""Check of part 36's `ShardedMuon.step`: all ranks together next to one rank, to the last bit; bytes; time; and memory.

The check brings its own orthogonalisation (`on_ranks.mix`), exact for the small numbers that are drawn. Each call passes a gate, whose
number, another one for each rank and step, multiplies the result. A rank has as many gates as it owns matrices. So a parameter is right
only if its owner has orthogonalised the whole matrix, and nobody has done so a second time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from course_lib.check.groups import SHUFFLED_ORDERS, GroupCheck
from course_lib.check.muon import contract
from course_lib.check.muon.on_ranks import build_optimizer, mix, release_memory, take_large_step, take_step
from course_lib.traffic import wire_bytes
from course_lib.utils import wording

MATRICES, STEPS = 6, 3
# In this step, a matrix has a gradient of zeros, and momentum alone moves it; in the first step, another one has, which nothing
# moves; in the last one, there is a NaN.
ZERO_STEP = 2
MOMENTUM, LR, ADAM_LR = 0.5, 0.125, 0.01  # the first two are exact in binary
SETTINGS = (  # taken in turn
    dict(lr=LR, momentum=MOMENTUM, adam_lr=ADAM_LR),
    dict(lr=2 * LR, momentum=1.0, adam_lr=2 * ADAM_LR),
)
LARGEST = {"float32": 8000, "float64": 2**29}  # of gradients: sums are exact, and no smaller format holds them
NUMBERS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
CLOSED_GATES = [(1e18, 0.0, 1e18)] * MATRICES  # nobody gets through: more calls than this rank owns matrices
PASSES = {False: 2, True: 3}  # bytes that a rank may send, in multiples of its gradients; True if tensor parallel ranks share matrices
CALL_BYTES = 512  # for counts and shapes
ADAM_TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
LARGE = 512  # float32 matrices of LARGE x LARGE: a MiB
EXPLANATIONS = {
    "no whole matrix": (
        "something that is no whole matrix is orthogonalised",
        "a tensor parallel rank's part alone, parts joined along another axis than the matrix's, or a shard of a flat array",
    ),
    f"{CLOSED_GATES[0][0]:,.0f}": (
        "a rank orthogonalises more often than it owns matrices",
        "a loop over all matrices, or other owners than those in self.owner",
    ),
    "TooEarly": (
        "a rank orthogonalises before it has sent its gradients to the other owners",
        "a loop in which matrices are sent and orthogonalised one after the other",
    ),
    "Deadlock": (
        "the ranks wait for each other",
        "a loop in which all ranks wait for one matrix's update before the next one is orthogonalised",
    ),
}
PARTS_CAUSE = "parts in another order, or joined along another axis than the matrix's; an update of another matrix; another orthogonalize"
KEPT_CAUSE = "momentum that is not M of the step before: kept of an update, in an array that is overwritten, or lost"
SPARE = 0.5  # of such a matrix: what a rank may hold besides its own momentum


@dataclass
class MuonCase:
    """A group's whole matrices, their owners, and what they are after each step.

    Attributes
    ----------
    ranks : list of int
    grid : (int, int)
        Data parallel and tensor parallel ranks; the latter vary fastest.
    axes, owner : list of int
        For each matrix, the dimension that the tensor parallel ranks share, and the rank of the group that owns it.
    weights, velocity : list of numpy.ndarray
        Whole matrices, float64.
    rest : list of numpy.ndarray
        The parameters for Adam, float64.
    moments : list of (numpy.ndarray, numpy.ndarray)
        Adam's state.
    settings : dict
        One of `SETTINGS`.
    """

    ranks: list[int]
    grid: tuple[int, int]
    axes: list[int]
    owner: list[int]
    weights: list[np.ndarray]
    rest: list[np.ndarray]
    velocity: list = field(default_factory=list)
    moments: list = field(default_factory=list)
    settings: dict = field(default_factory=SETTINGS[0].copy)

    def part(self, whole: np.ndarray, i: int, key: int) -> np.ndarray:
        """A rank's part of matrix i."""
        return np.ascontiguousarray(np.split(whole, self.grid[1], axis=self.axes[i])[key % self.grid[1]])


class MuonCheck(GroupCheck):
    """A `Check` of `ShardedMuon.step`, in groups of the four ranks."""

    _runs = 0

    def bits(self, dp: int, tp: int = 1, dtype: type = np.float64, *, twice: bool = False) -> MuonCheck:
        """Check that dp times tp ranks have the parameters that one rank with all data would have.

        With `twice`, each rank has two optimizers with matrices of the same shapes, which take their steps in turn.
        """
        self._run(dp, tp, dtype, twice=twice)
        return self

    def costs(self, dp: int, tp: int = 1, dtype: type = np.float64) -> MuonCheck:
        """Check the same, also the bytes that a rank sends, and that all owners orthogonalise at the same time."""
        self._run(dp, tp, dtype, costs=True)
        return self

    def _run(self, dp: int, tp: int, dtype: type, costs: bool = False, twice: bool = False) -> None:
        groups, dtype = self.groups(dp * tp), np.dtype(dtype)
        grid = f"a grid of {dp} data parallel and {tp} tensor parallel ranks"
        self.case = f"{self.describe_groups(groups, dtype)}, {grid}"
        cases = [self._draw(group, (dp, tp) if len(group) == dp * tp else (len(group), 1), dtype) for group in groups]
        for case in cases:
            case.settings = SETTINGS[self._runs % len(SETTINGS)]
        self._runs += 1
        optimizers = [cases]
        if twice:
            optimizers.append([self._redrawn(case) for case in cases])
        for number, each in enumerate(optimizers):
            self._build(number, each, dtype, costs)
        for step in range(STEPS):
            for number, each in enumerate(optimizers):
                self._step(number, each, dtype, step + 1, costs)
        self.covers("dtypes", "special values", "sizes", "group order", "repetition", "arguments", "results", "calls")
        self.covers(*["same ranks twice"] * twice, *["group sizes"] * (dp * tp < 4))

    def _build(self, number: int, cases: list[MuonCase], dtype: np.dtype, costs: bool) -> None:
        """Make an optimizer on each rank."""
        given = [{}] * 4
        for color, case in enumerate(cases):
            for key, r in enumerate(case.ranks):
                given[r] = dict(
                    number=number,
                    place=(color, key),
                    grid=case.grid,
                    weights=[case.part(w, i, key).astype(dtype) for i, w in enumerate(case.weights)],
                    axes=case.axes,
                    others=[x.astype(dtype) for x in case.rest],
                    owner=case.owner,
                    settings=case.settings,
                    shapes=[w.shape for w in case.weights],
                    at_once=costs,
                )
        self.call(build_optimizer, given, explain=EXPLANATIONS, show=self.show)

    def _draw(self, group: list[int], grid: tuple[int, int], dtype: np.dtype) -> MuonCase:
        """Draw matrices and owners, such that every right way to send them is within the bound."""
        while True:
            case = self._draw_any(group, grid)
            nbytes = dtype.itemsize * (sum(w.size for w in case.weights) // grid[1] + sum(x.size for x in case.rest))
            if max(bytes_sent(case, dtype.itemsize).values()) <= PASSES[grid[1] > 1] * nbytes:
                return case

    def _draw_any(self, group: list[int], grid: tuple[int, int]) -> MuonCase:
        """Draw matrices, of which columns / rows is 4, 9 / 4 or at most 1, and owners: one rank of three or four owns nothing.

        An owner has two matrices of the same shape.
        """
        n, tp = len(group), grid[1]
        k, m, few = ([tp * max(1, -(-size // tp)) for size in self.sizes(2, low, high)] for low, high in ((6, 10), (13, 18), (2, 5)))
        j = max(tp, 2)
        shapes = [(k[0], 4 * k[0]), (4 * k[1], k[1]), (m[0], m[0]), (m[1], m[1] - tp), (4 * j, 9 * j)]
        shapes = [shapes[i] for i in self.random.permutation(MATRICES - 1)]
        shapes.insert(1, shapes[1])
        axes = self.random.permutation([0, 1] * (MATRICES // 2)).tolist()
        # The first matrix is not on the first rank, and owners are in no order.
        some = self.random.permutation(n)[: n - (n > 2)].tolist()
        some = some if some[0] or n == 1 else some[::-1]
        owner = [some[i % len(some)] for i in (0, 1, 1, 2, 0, 2)] if n > 2 else [some[i % n] for i in (0, 1, 1, 0, 1, 0)]
        weights = [self._whole(*shape, most=8) / 4 for shape in shapes]
        rest = [self.random.standard_normal(shape) for shape in ((few[0], m[0]), (m[1],), (k[0], few[1]), (1,))]
        zeros = [np.zeros(shape) for shape in shapes]
        return MuonCase(group, grid, axes, owner, weights, rest, zeros, [(0, np.zeros_like(x), np.zeros_like(x)) for x in rest])

    def _redrawn(self, case: MuonCase) -> MuonCase:
        """Draw other parameters of the same shapes, with the same owners."""
        weights = [self._whole(*w.shape, most=8) / 4 for w in case.weights]
        rest = [self.random.standard_normal(x.shape) for x in case.rest]
        return replace(case, weights=weights, rest=rest, velocity=[0 * v for v in case.velocity], moments=case.moments.copy())

    def _whole(self, *shape: int, most: int) -> np.ndarray:
        """Draw whole numbers other than zero."""
        return self.random.choice([-1.0, 1.0], shape) * self.random.integers(1, most + 1, shape)

    def _step(self, number: int, cases: list[MuonCase], dtype: np.dtype, step: int, costs: bool) -> None:
        """Take a step of an optimizer on all ranks, and compare with one rank."""
        when = f"step {step}" + f" of optimizer {number + 1}" * (number > 0)
        given, gates, wants = [{}] * 4, [[]] * 4, []
        for case in cases:
            (dp, tp), n = case.grid, len(case.ranks)
            # Multiples of the number of ranks, so that each mean is a whole number, too.
            grads = [np.stack([dp * self._whole(*w.shape, most=LARGEST[dtype.name]) for _ in range(dp)]) for w in case.weights]
            grads[1] *= step != ZERO_STEP
            grads[3] *= step != 1
            if step == STEPS:
                grads[2][0, 0, 0] = np.nan
            rest = [self.random.standard_normal((dp, *x.shape)) for x in case.rest]
            for own in rest:  # of one rank
                own[0] *= step != ZERO_STEP
            numbers = self.random.permutation(NUMBERS)[:n].tolist()
            for key, r in enumerate(case.ranks):
                parts = [case.part(g[key // tp], i, key).astype(dtype) for i, g in enumerate(grads)]
                others = [x[key // tp].astype(dtype) for x in rest]
                given[r] = dict(number=number, grads=parts, rest_grads=others)
                least = self._bytes_before(case, key) * dtype.itemsize if costs else 0
                gates[r] = [(least, numbers[key], 1e18)] * case.owner.count(key) + CLOSED_GATES
            product = np.prod([numbers[key] for key in set(case.owner)]) if costs else 1.0
            wants.append(self._expected(case, grads, rest, [product * number for number in numbers]))
        answers = self.call(take_step, given, explain=EXPLANATIONS, show=self.show, gates=gates)
        for case, (known, before) in zip(cases, wants, strict=True):
            for key, r in enumerate(case.ranks):
                params, rest = answers[r]
                self.calls(self.ranks.traffic[r], math.inf, group=case.ranks, name=when, rank=r, limit=contract.WITHIN)
                if costs:
                    self._bytes(case, given[r], r, when)
                mistakes = _explaining(case, known, params, key)
                for i, got in enumerate(params):
                    instead = {what: case.part(arrays[i], i, key) for what, arrays in mistakes.items()}
                    name = f"{when}: matrix {i}, which rank {case.owner[i]} of the group owns,"
                    cause = PARTS_CAUSE if step == 1 else KEPT_CAUSE
                    want = case.part(case.weights[i], i, key).astype(dtype)
                    self.array(got, want, name=name, rank=r, cause=cause, instead=instead)
                for i, got in enumerate(rest):
                    want, cause = case.rest[i].astype(dtype), "a missing self.adam.step()"
                    name, near = f"{when}: parameter {i} of the others", ADAM_TOLERANCES[dtype.name]
                    self.array(got, want, name=name, rank=r, rtol=near, scale=1.0, cause=cause, instead={"what it was before": before[i]})

    @staticmethod
    def _bytes_before(case: MuonCase, key: int) -> float:
        """Numbers that a rank has certainly sent when all owners have what they need for their first matrix; half of it, to be safe."""
        sizes: dict[int, list[int]] = {}
        for w, o in zip(case.weights, case.owner, strict=True):
            sizes.setdefault(o, []).append(w.size // case.grid[1])
        return sum(min(of) for o, of in sizes.items() if o != key) / 2

    def _expected(self, case: MuonCase, grads: list, rest: list, numbers: list[float]) -> tuple[dict, list]:
        """Update a case; return what known mistakes give, and Adam's parameters before."""
        dp, before, known = case.grid[0], [x.copy() for x in case.rest], {}
        lr, momentum, adam_lr = (case.settings[name] for name in ("lr", "momentum", "adam_lr"))
        first = [g[0] for g in grads]
        means = [g.mean(axis=0) for g in grads]
        factors = [np.sqrt(max(1.0, w.shape[1] / w.shape[0])) for w in case.weights]

        def after(gradients: list, velocity: list, scales: list) -> list[np.ndarray]:
            found = []
            for i, (w, g, v) in enumerate(zip(case.weights, gradients, velocity, strict=True)):
                found.append(w - lr * scales[i] * mix(momentum * v + g, numbers[case.owner[i]]))
            return found

        last, tp = case.velocity, case.grid[1]
        parts = [np.divide(w.shape, (tp, 1) if axis == 0 else (1, tp)) for w, axis in zip(case.weights, case.axes, strict=True)]
        known["the result without momentum"] = after(means, [0 * v for v in last], factors)
        nesterov = [(1 + momentum) * g + (momentum**2 - momentum) * v for g, v in zip(means, last, strict=True)]
        known["the result for Nesterov's momentum, G + mu M"] = after(nesterov, last, factors)
        if dp > 1:
            known["the result for the sum of the gradients instead of their mean"] = after([dp * g for g in means], last, factors)
            known["the result for one rank's gradient alone"] = after(first, last, factors)
        if tp > 1:
            known["the result for a mean over all ranks, not just the data parallel ones"] = after([g / tp for g in means], last, factors)
            known["the result with the factor of a part's shape"] = after(means, last, [max(1.0, c / r) ** 0.5 for r, c in parts])
        swapped = [max(1.0, w.shape[0] / w.shape[1]) ** 0.5 for w in case.weights]
        known["the result with rows and columns swapped in the factor of the shape"] = after(means, last, swapped)
        known["the result without the factor of the matrix's shape"] = after(means, last, [1.0] * len(means))
        known["the result with the factor of the shape, but not its root"] = after(means, last, [f * f for f in factors])
        known["the result for a factor without the max"] = after(means, last, [(w.shape[1] / w.shape[0]) ** 0.5 for w in case.weights])
        known["the result for an update in the wrong direction"] = after(means, last, [-f for f in factors])
        known["the result for a running mean as momentum, (1 - mu) G"] = after([(1 - momentum) * g for g in means], last, factors)
        known["what it was before"] = case.weights
        case.weights = after(means, case.velocity, factors)
        case.velocity = [momentum * v + g for v, g in zip(case.velocity, means, strict=True)]
        for i, g in enumerate(x.mean(axis=0) for x in rest):
            t, m, v = case.moments[i]
            t, m, v = t + 1, 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            case.moments[i] = t, m, v
            case.rest[i] = case.rest[i] - adam_lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return known, before

    def _bytes(self, case: MuonCase, given: dict, r: int, when: str) -> None:
        """Check that a rank sent no more than the stated bound."""
        nbytes = sum(g.nbytes for g in (*given["grads"], *given["rest_grads"]))
        times = PASSES[case.grid[1] > 1]
        cause = "an all-reduce of gradients that only their owners need, whole matrices sent to ranks that hold a part, or a larger dtype"
        most = times * nbytes + CALL_BYTES
        self.sent(self.ranks.traffic[r], most, name=f"{when} ({times} times its gradients)", rank=r, cause=cause, limit=contract.BYTES)

    def memory(self, dp: int = 4, tp: int = 1) -> MuonCheck:
        """Check what a rank holds between steps: besides the parameters, the momentum of its own matrices."""
        (group,) = self.groups(4)
        self.case = f"four matrices of {LARGE} x {LARGE}, each on another rank, a grid of {dp} x {tp} ranks"
        owner, shapes, one = list(SHUFFLED_ORDERS[int(self.random.integers(6))]), [(LARGE, LARGE)] * 4, 4 * LARGE**2
        parts, firsts = [(LARGE // tp, LARGE)] * 4, np.arange(tp) * (LARGE // tp)
        self.ranks.call(release_memory, dict(at_once=True))
        empty = self.baseline_memory("the optimizer")
        common = dict(grid=(dp, tp), axes=[0] * 4, others=[np.ones(4, np.float32)], owner=owner, shapes=shapes, at_once=False)
        common |= dict(weights=[np.ones(shape, np.float32) for shape in parts], settings=SETTINGS[0])
        places = {r: (0, key) for key, r in enumerate(group)}
        self.call(build_optimizer, [dict(common, number=0, place=places[r]) for r in range(4)], explain=EXPLANATIONS, show=self.show)
        before = [held + len(shapes) * one // tp for held in empty]  # with its parameters
        velocity, weights = [np.zeros(shape) for shape in shapes], np.ones((tp, 4))
        for _ in range(2):
            seeds = [int(self.random.integers(1 << 30)) for _ in range(4)]
            numbers = self.random.permutation(NUMBERS)[:4].tolist()
            gates = [[(0, number, 1e18), *CLOSED_GATES] for number in numbers]
            given = [dict(seed=seeds[places[r][1]], shapes=parts) for r in range(4)]
            answers = self.call(take_large_step, given, explain=EXPLANATIONS, show=self.show, gates=gates)
            drawn = [np.random.default_rng(seed) for seed in seeds]
            for i, part in enumerate(parts):
                found = np.reshape([x.integers(-2, 3, part) for x in drawn], (dp, LARGE, LARGE))
                velocity[i] = MOMENTUM * velocity[i] + found.mean(axis=0)
                weights[:, i] -= LR * mix(velocity[i], numbers[group[owner[i]]])[firsts, 0]
            for r, found in enumerate(answers):
                self.numbers(found, weights[places[r][1] % tp].tolist(), name="a number of each parameter", rank=r, rtol=1e-6)
        for r, held in enumerate(self.ranks.held()):
            if (more := held - before[r]) > (1 + SPARE) * one:
                cause = "momentum of matrices that other ranks own, momentum in a larger dtype, or buffers that are kept"
                self.fail(
                    f"after two steps, rank {r} holds {wording.size(more)} more, but its momentum takes {wording.size(one)}",
                    cause,
                    limit=contract.KEPT,
                )
        self.ranks.call(release_memory, dict(at_once=False))
        return self


def _explaining(case: MuonCase, known: dict[str, list], params: list, key: int) -> dict[str, list]:
    """Keep the known mistakes that give all of a rank's matrices; of two that halve one of them, the other matrices tell which it is."""

    def gives(arrays: list) -> bool:
        parts = [case.part(array, i, key) for i, array in enumerate(arrays)]
        return all(np.shape(got) == part.shape and np.allclose(got, part, rtol=1e-5) for got, part in zip(params, parts, strict=True))

    return {what: arrays for what, arrays in known.items() if what == "what it was before" or gives(arrays)}


def bytes_sent(case: MuonCase, itemsize: int) -> dict[str, float]:
    """Bytes that the busiest rank sends in ways that are right: messages to and from the owner, or collectives along each axis."""
    (dp, tp), n = case.grid, len(case.ranks)
    sizes = [w.size // tp for w in case.weights]
    own = [sum(size for size, o in zip(sizes, case.owner, strict=True) if o == key) for key in range(n)]
    rows = [sum(own[d * tp : (d + 1) * tp]) for d in range(dp)]  # what a row of tensor parallel ranks owns
    total, adam = sum(sizes), 2 * wire_bytes("Allgather", dp, sum(x.size for x in case.rest))
    reduced = wire_bytes("Reduce_scatter", dp, total)
    ways = {
        "messages": max(total - mine + (n - 1) * mine for mine in own),
        "a reduce-scatter, a gather, a scatter and broadcasts": max(
            reduced + (rows[key // tp] - own[key] + tp * own[key] if tp > 1 else 0) + total for key in range(n)
        ),
    }
    if tp == 1:
        ways["a reduce-scatter and a padded all-gather"] = reduced + wire_bytes("Allgather", n, n * max(own))
    return {name: itemsize * (most + adam) for name, most in ways.items()}

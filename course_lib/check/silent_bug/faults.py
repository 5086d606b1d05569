"""Steps on a grid of ranks, right ones and ones with planted faults, drawn in the notebook's kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from course_lib.check.silent_bug.model import sample_gradients, weighted_sum
from course_lib.gpt.silent_bugs import Finding, part_of, rounded
from course_lib.mesh import Mesh

SAMPLE_AXES = (
    "dp",
    "cp",
)  # along these, ranks see other samples; along all others, they share the parameters
LOSS = "loss"
SAMPLES = (8, 6, 9)  # of a batch, which the cases take in turn

# Weights of n samples, where all should be 1.
WEIGHTS: dict[str, Callable[[int], np.ndarray]] = {
    "the last ones": lambda n: np.where(np.arange(n) < n - n // 4, 0, n / (n // 4)),
    "the first half": lambda n: np.where(np.arange(n) < n // 2, n / (n // 2), 0),
    "all but one": lambda n: 1.0 * (np.arange(n) != 1),
    "one twice": lambda n: 1.0 + (np.arange(n) == 0) - (np.arange(n) == n - 1),
}
# Factors of four ranks: on a grid of 2 x 2, no two sums along an axis are the same.
FACTORS_BY_RANK = (2.0, 3.0, 5.0, -1.0)


@dataclass
class Fault:
    """A fault.

    Attributes
    ----------
    at : int
        Place of the gradient: 0 is the loss, 1 to 5 are the parameters in backward order.
    kind : str
        One of `KINDS`.
    axis : str
        Of a missing sum or wrong shards; for other kinds, that of which only some ranks are wrong.
    how : object
        The factor; the name of weights of the samples, or of a distortion; whether each rank divides
        by its own number of samples.
    some : int or tuple of int
        The number of coordinates of `axis` that are wrong; or the wrong ranks, if no axis decides.
    """

    at: int
    kind: str
    axis: str = ""
    how: object = None
    some: int | tuple[int, ...] = 1


@dataclass
class Case:
    """A step, as it is sent to the ranks, and the finding that is right.

    Attributes
    ----------
    axes : dict of str to int
        The grid.
    step : dict
        Arguments of `on_ranks.RecordedStep`, the same on all ranks.
    results : list of list of list of numpy.ndarray
        By rank, the results of the two batches.
    expected : Finding or None
    about : str
        The case in words.
    """

    axes: dict[str, int]
    step: dict
    results: list
    expected: Finding | None
    about: str


@dataclass
class Drawing:
    """The generator and the sizes from which a case is drawn; `Case` has the rest."""

    random: np.random.Generator
    mesh: Mesh
    dtype: str
    samples: int
    odd: bool  # each rank adds in an order of its own
    splits: list = field(default_factory=list)  # by gradient: None, or the axis and the dimension
    terms: list = field(default_factory=list)  # by gradient, each sample's
    stale_terms: list = field(default_factory=list)

    def parts(self, at: int, wholes: list[np.ndarray]) -> list[np.ndarray]:
        """Each rank's part of its own whole."""
        return [part_of(whole, self.splits[at], self.mesh, r) for r, whole in enumerate(wholes)]

    def mean(self, terms: np.ndarray, weights: np.ndarray | None = None) -> list[np.ndarray]:
        """The weighted mean over the samples, as each rank has it after an all-reduce; if `odd`, each with other roundings."""
        weights = np.full(self.samples, 1.0) if weights is None else weights
        orders = [self.random.permutation(self.samples) for _ in range(self.mesh.size if self.odd else 1)]
        means = [weighted_sum(terms, weights / self.samples, self.dtype, order) for order in orders]
        return means if self.odd else means * self.mesh.size


def draw(
    random: np.random.Generator,
    axes: dict[str, int],
    dtype: str = "float64",
    *faults: Fault,
    odd: bool = False,
    exponent: float = 0,
    samples: int = SAMPLES[0],
    zeros: bool = False,
) -> Case:
    """Draw a step on a grid with these faults, of which the first in backward order is to be found.

    Its loss is multiplied by about ``10**exponent``. With `zeros`, the gradients of all parameters
    but the first are 0.
    """
    mesh = Mesh(**axes)
    hidden, outputs, features = 8 * int(random.integers(3, 5)), 8, int(random.integers(9, 14))
    shapes = [(hidden, outputs), (hidden,), (hidden, hidden), (hidden,), (features, hidden)]
    names = [LOSS, *(f"{i}.weight" for i in random.choice(100, len(shapes), replace=False))]
    scale = 10.0 ** (exponent + random.uniform(-0.5, 0.5))
    parameters = [random.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    if zeros:
        parameters[0][...] = 0
    batches = [random.standard_normal((samples, features + outputs)) for _ in range(2)]
    drawing = Drawing(random, mesh, dtype, samples, odd)
    drawing.stale_terms, drawing.terms = (sample_gradients(parameters, batch, scale) for batch in batches)
    shards = next((axis for axis, size in axes.items() if axis not in SAMPLE_AXES and size > 1), None)
    drawing.splits = [None, (shards, 0), None, (shards, 1), None, (shards, 1)] if shards else [None] * 6
    by_place = {fault.at: fault for fault in faults}
    before = [drawing.parts(at, drawing.mean(drawing.stale_terms[at])) for at in range(6)]
    now = [_with_fault(drawing, at, by_place.get(at)) for at in range(6)]
    for fault in faults:
        if fault.kind == "stale":  # as was the previous step, which had no step before it
            before[fault.at] = [np.zeros_like(array) for array in before[fault.at]]
    first = by_place[min(by_place)] if by_place else None
    return Case(
        axes=axes,
        step=dict(
            parameters=parameters,
            names=names,
            scale=scale,
            dtype=dtype,
            terms=samples if dtype == "bfloat16" else samples * hidden,  # what a sample's gradient sums is not rounded to 16 bits
            sharded={name: split for name, split in zip(names, drawing.splits, strict=True) if split},
            batches=batches,
        ),
        results=[[[arrays[r] for arrays in step] for step in (before, now)] for r in range(mesh.size)],
        expected=_finding(drawing, names, first) if first else None,
        about=f"{mesh!r}, {dtype}",
    )


def _finding(drawing: Drawing, names: list[str], fault: Fault) -> Finding:
    """The finding that is right: the first kind that fits."""
    name, axis, kind, factor = names[fault.at], fault.axis or None, fault.kind, None
    if kind == "factor":
        factor = float(fault.how)
    elif kind == "missing sum" and fault.how == "a factor by rank":
        factor = sum(FACTORS_BY_RANK)
    elif kind == "missing sum":
        factor = float(drawing.mesh.shape[axis]) if fault.how else 1.0
    elif kind == "stale" and fault.at == 0:  # of one number, any other one is a multiple
        stale, right = (drawing.mean(terms[0])[0] for terms in (drawing.stale_terms, drawing.terms))
        return Finding(name, axis, "factor", float(stale / right))
    return Finding(name, axis, kind, factor)


def _with_fault(drawing: Drawing, at: int, fault: Fault | None) -> list[np.ndarray]:
    """Each rank's array of a gradient."""
    right = drawing.parts(at, drawing.mean(drawing.terms[at]))
    if fault is None:
        return right
    if fault.how == "a factor by rank":
        multiples = [c * array for c, array in zip(FACTORS_BY_RANK, right, strict=True)]
        return [np.asarray(rounded(array, drawing.dtype)) for array in multiples]
    wrong = _PLANT[fault.kind](drawing, at, fault, right)
    if fault.kind in ("missing sum", "wrong shard"):
        return wrong
    some = _wrong_ranks(drawing, fault)
    return [wrong[r] if r in some else right[r] for r in range(len(right))]


def _wrong_ranks(drawing: Drawing, fault: Fault) -> set[int]:
    """The ranks that are wrong."""
    mesh = drawing.mesh
    if isinstance(fault.some, tuple):
        return set(fault.some)
    if not fault.axis:
        return set(range(mesh.size))
    chosen = drawing.random.permutation(mesh.shape[fault.axis])[: fault.some]
    place = list(mesh.shape).index(fault.axis)
    return {r for r in range(mesh.size) if mesh.coordinates(r)[place] in chosen}


def _factor(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(rounded(array * fault.how, drawing.dtype)) for array in right]


def _missing_sum(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    mesh, axis = drawing.mesh, fault.axis
    size, place = mesh.shape[axis], list(mesh.shape).index(axis)
    factor = size if fault.how else 1
    if axis in SAMPLE_AXES:
        coordinates = _by_sample(drawing, axis)
        weights = [(coordinates == index) * factor / drawing.samples for index in range(size)]
        wholes = [weighted_sum(drawing.terms[at], own, drawing.dtype) for own in weights]
        return drawing.parts(at, [wholes[mesh.coordinates(r)[place]] for r in range(mesh.size)])
    summands = list(right)
    for group in mesh.groups(axis):
        largest = float(np.max(np.abs(right[group[0]])))
        noise = drawing.random.standard_normal((size, *right[group[0]].shape)) * largest
        noise -= noise.mean(axis=0)
        for r, own in zip(group, noise, strict=True):
            summands[r] = np.asarray(rounded(right[r] * (factor / size) + own, drawing.dtype))
    return summands


def _by_sample(drawing: Drawing, axis: str) -> np.ndarray:
    """For each sample, the coordinate along an axis of the ranks that take it."""
    shared = [name for name in drawing.mesh.shape if name in SAMPLE_AXES]
    sizes = [drawing.mesh.shape[name] for name in shared]
    number = np.arange(drawing.samples) * int(np.prod(sizes)) // drawing.samples
    return np.unravel_index(number, sizes)[shared.index(axis)]


def _wrong_shard(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    shards = list(right)
    groups = drawing.mesh.groups(fault.axis)
    for group in groups[:1] if fault.how == "in one group" else groups:
        order = list(range(len(group)))
        if fault.how == "swap":
            order[0], order[1] = 1, 0
        elif fault.how == "the first":
            order = [0] * len(group)
        else:
            order = order[1:] + order[:1]
        for r, other in zip(group, order, strict=True):
            shards[r] = right[group[other]]
    return shards


def _stale(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    return drawing.parts(at, drawing.mean(drawing.stale_terms[at]))


def _some_samples(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    if fault.how == "each rank's own":  # on a grid along all of whose axes samples differ
        number = np.arange(drawing.samples) * len(right) // drawing.samples
        weights = [(number == r) / np.sum(number == r) for r in range(len(right))]
        return [weighted_sum(drawing.terms[at], own, drawing.dtype) for own in weights]
    return drawing.parts(at, drawing.mean(drawing.terms[at], WEIGHTS[fault.how](drawing.samples)))


def _other(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    random, size = drawing.random, len(right)
    if fault.how == "another parameter's":
        return drawing.parts(4 if at == 2 else 2, drawing.mean(drawing.terms[4 if at == 2 else 2]))
    if fault.how == "the largest":
        whole = np.max(drawing.terms[at], axis=0)
        return drawing.parts(at, [np.asarray(rounded(whole, drawing.dtype))] * size)
    if fault.how == "transposed":
        whole = np.ascontiguousarray(drawing.mean(drawing.terms[at])[0].T)
        return drawing.parts(at, [whole] * size)
    if fault.how == "not zero":
        noise = random.standard_normal(right[0].shape) * np.abs(drawing.terms[1]).max()
        return [np.asarray(rounded(noise, drawing.dtype))] * size
    if fault.how == "another shard, then doubled":
        return [right[1], *(2 * array for array in right[1:])]
    if fault.how in ("doubled, then stale", "stale, then doubled"):
        stale = _stale(drawing, at, fault, right)
        stale_ranks = range(1, size) if fault.how == "doubled, then stale" else range(1)
        return [stale[r] if r in stale_ranks else 2 * right[r] for r in range(size)]
    seed = int(random.integers(1 << 30))  # all ranks alike
    return [np.asarray(rounded(DISTORTIONS[fault.how](array, np.random.default_rng(seed)), drawing.dtype)) for array in right]


def _noise(g: np.ndarray, random: np.random.Generator) -> np.ndarray:
    flat = g.ravel().copy()
    some = random.choice(flat.size, flat.size // 4, replace=False)
    flat[some] += random.choice([-1, 1], some.size) * random.uniform(1, 3, some.size) * np.abs(g).max()
    return flat.reshape(g.shape)


def _half_zero(g: np.ndarray, random: np.random.Generator) -> np.ndarray:
    flat = g.ravel().copy()
    flat[len(flat) // 2 :] = 0
    return flat.reshape(g.shape)


def _nan(g: np.ndarray, random: np.random.Generator) -> np.ndarray:
    flat = g.ravel().copy()
    flat[random.integers(len(flat))] = np.nan
    return flat.reshape(g.shape)


def _infinite(g: np.ndarray, random: np.random.Generator) -> np.ndarray:
    flat = g.ravel().copy()
    flat[random.integers(len(flat))] = random.choice([-np.inf, np.inf])
    return flat.reshape(g.shape)


def _signs(g: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return g * np.where(random.random(g.shape) < 0.5, -1, 1)


def _one_element(g: np.ndarray, random: np.random.Generator) -> np.ndarray:
    flat = g.ravel().copy()
    flat[random.integers(len(flat))] += np.abs(g).max()
    return flat.reshape(g.shape)


# Kinds that the notebook does not show; each changes a gradient in a way that is none of the first five kinds.
DISTORTIONS: dict[str, Callable] = {
    "noise": _noise,
    "half zero": _half_zero,
    "not a number": _nan,
    "infinite": _infinite,
    "signs": _signs,
    "one element": _one_element,
    "clipped": lambda g, random: np.clip(g, -0.2 * np.abs(g).max(), 0.2 * np.abs(g).max()),
    "decay": lambda g, random: g + 0.3 * np.abs(g).max() * random.standard_normal(g.shape),
    "16 bits": lambda g, random: rounded(g / np.abs(g).max(), "bfloat16") * np.abs(g).max(),
    "shifted": lambda g, random: np.roll(g.ravel(), 1).reshape(g.shape),
    "squared": lambda g, random: g * np.abs(g) / np.abs(g).max(),
}
_PLANT = {
    "factor": _factor,
    "missing sum": _missing_sum,
    "wrong shard": _wrong_shard,
    "stale": _stale,
    "some samples": _some_samples,
    "other": _other,
}

"""Steps on a grid of ranks, right ones and ones with planted faults, drawn in the notebook's kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from course_lib.check.silent_bug.model import sample_gradients, weighted_sum
from course_lib.gpt.silent_bugs import Finding, part_of, rounded
from course_lib.mesh import Mesh

SAMPLE_AXES = ("dp", "cp")  # along these, ranks see other samples; along all others, they share the parameters
SAMPLES, LOSS = 8, "loss"


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
        Axis of a missing sum or of wrong shards; for other kinds the axis of which only some ranks are wrong, empty if all are.
    how : object
        The factor; the weights of the samples; whether each rank divides by its own number of samples; the name of a distortion.
    """

    at: int
    kind: str
    axis: str = ""
    how: object = None


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
    odd: bool  # each rank adds in an order of its own
    splits: list = field(default_factory=list)  # by gradient: None, or the axis and the dimension
    terms: list = field(default_factory=list)  # by gradient, each sample's
    stale_terms: list = field(default_factory=list)

    def parts(self, at: int, wholes: list[np.ndarray]) -> list[np.ndarray]:
        """Each rank's part of its own whole."""
        return [part_of(whole, self.splits[at], self.mesh, r) for r, whole in enumerate(wholes)]

    def mean(self, terms: np.ndarray, weights: np.ndarray | None = None) -> list[np.ndarray]:
        """The weighted mean over the samples, as each rank has it after an all-reduce; if `odd`, each with other roundings."""
        weights = np.full(SAMPLES, 1.0) if weights is None else weights
        orders = [self.random.permutation(SAMPLES) for _ in range(self.mesh.size if self.odd else 1)]
        found = [weighted_sum(terms, weights / SAMPLES, self.dtype, order) for order in orders]
        return found if self.odd else found * self.mesh.size


def draw(
    random: np.random.Generator, axes: dict[str, int], dtype: str = "float64", *faults: Fault, odd: bool = False, exponent: float = 0
) -> Case:
    """Draw a step on a grid with these faults; the first of them, in backward order, is to be found.

    Its loss is multiplied by about ``10**exponent``.
    """
    mesh, hidden, outputs, features = Mesh(**axes), 8 * int(random.integers(3, 5)), 8, int(random.integers(9, 14))
    shapes = [(hidden, outputs), (hidden,), (hidden, hidden), (hidden,), (features, hidden)]
    names = [LOSS, *(f"{i}.weight" for i in random.choice(100, len(shapes), replace=False))]
    scale = 10.0 ** (exponent + random.uniform(-0.5, 0.5))
    parameters = [random.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]
    batches = [random.standard_normal((SAMPLES, features + outputs)) for _ in range(2)]
    drawing = Drawing(random, mesh, dtype, odd)
    drawing.stale_terms, drawing.terms = (sample_gradients(parameters, batch, scale) for batch in batches)
    shards = next((axis for axis, size in axes.items() if axis not in SAMPLE_AXES and size > 1), None)
    drawing.splits = [None, (shards, 0), None, (shards, 1), None, (shards, 1)] if shards else [None] * 6
    by_fault = {fault.at: fault for fault in faults}
    before = [drawing.parts(at, drawing.mean(drawing.stale_terms[at])) for at in range(6)]
    now = [_with_fault(drawing, at, by_fault.get(at)) for at in range(6)]
    for fault in faults:
        if fault.kind == "stale":  # as was the previous step, which had no step before it
            before[fault.at] = [np.zeros_like(array) for array in before[fault.at]]
    first = by_fault[min(by_fault)] if by_fault else None
    return Case(
        axes=axes,
        step=dict(
            parameters=parameters,
            names=names,
            scale=scale,
            dtype=dtype,
            terms=SAMPLES if dtype == "bfloat16" else SAMPLES * hidden,  # what a sample's gradient sums is not rounded to 16 bits
            sharded={name: split for name, split in zip(names, drawing.splits, strict=True) if split},
            batches=batches,
        ),
        results=[[[arrays[r] for arrays in step] for step in (before, now)] for r in range(mesh.size)],
        expected=_finding(drawing, names, first) if first else None,
        about=f"{mesh!r}, {dtype}",
    )


def _finding(drawing: Drawing, names: list[str], fault: Fault) -> Finding:
    axis, factor = fault.axis or None, None
    if fault.kind == "factor":
        factor = float(fault.how)
    if fault.kind == "missing sum":
        factor = float(drawing.mesh.shape[axis]) if fault.how else 1.0
    if fault.kind == "other" and fault.axis == "one rank":
        axis = None
    return Finding(names[fault.at], axis, fault.kind, factor)


def _with_fault(drawing: Drawing, at: int, fault: Fault | None) -> list[np.ndarray]:
    """Each rank's array of a gradient."""
    right = drawing.parts(at, drawing.mean(drawing.terms[at]))
    if fault is None:
        return right
    wrong = _PLANT[fault.kind](drawing, at, fault, right)
    if fault.kind in ("missing sum", "wrong shard") or not fault.axis:
        return wrong
    some = _some_ranks(drawing, fault.axis)
    return [wrong[r] if r in some else right[r] for r in range(len(right))]


def _some_ranks(drawing: Drawing, axis: str) -> set[int]:
    """The ranks of one coordinate of an axis; or one rank, of a grid of several axes."""
    if axis == "one rank":
        return {int(drawing.random.integers(drawing.mesh.size))}
    place = list(drawing.mesh.shape).index(axis)
    index = int(drawing.random.integers(drawing.mesh.shape[axis]))
    return {r for r in range(drawing.mesh.size) if drawing.mesh.coordinates(r)[place] == index}


def _factor(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(rounded(array * fault.how, drawing.dtype)) for array in right]


def _missing_sum(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    mesh, axis = drawing.mesh, fault.axis
    size, place = mesh.shape[axis], list(mesh.shape).index(axis)
    factor = size if fault.how else 1
    if axis in SAMPLE_AXES:
        wholes: list = [None] * size
        of = _samples_along(mesh, axis)
        for index in range(size):
            wholes[index] = weighted_sum(drawing.terms[at], (of == index) * factor / SAMPLES, drawing.dtype)
        return drawing.parts(at, [wholes[mesh.coordinates(r)[place]] for r in range(mesh.size)])
    found = list(right)
    for group in mesh.groups(axis):
        largest = float(np.max(np.abs(right[group[0]])))
        noise = drawing.random.standard_normal((size, *right[group[0]].shape)) * largest
        noise -= noise.mean(axis=0)
        for r, own in zip(group, noise, strict=True):
            found[r] = np.asarray(rounded(right[r] * (factor / size) + own, drawing.dtype))
    return found


def _samples_along(mesh: Mesh, axis: str) -> np.ndarray:
    """The coordinate along an axis of the ranks that take each sample."""
    axes = [name for name in mesh.shape if name in SAMPLE_AXES]
    index = np.indices([mesh.shape[name] for name in axes])[axes.index(axis)]
    return np.repeat(index.ravel(), SAMPLES // index.size)


def _wrong_shard(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    found = list(right)
    for group in drawing.mesh.groups(fault.axis):
        order = list(range(len(group)))
        if fault.how == "swap":
            order[0], order[1] = 1, 0
        else:
            order = order[1:] + order[:1]
        for r, other in zip(group, order, strict=True):
            found[r] = right[group[other]]
    return found


def _stale(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    return drawing.parts(at, drawing.mean(drawing.stale_terms[at]))


def _some_samples(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    return drawing.parts(at, drawing.mean(drawing.terms[at], np.array(fault.how, float)))


def _other(drawing: Drawing, at: int, fault: Fault, right: list[np.ndarray]) -> list[np.ndarray]:
    if fault.how == "another parameter's":
        return drawing.parts(4 if at == 2 else 2, drawing.mean(drawing.terms[4 if at == 2 else 2]))
    if fault.how == "the largest":
        whole = np.max(drawing.terms[at], axis=0)
        return drawing.parts(at, [np.asarray(rounded(whole, drawing.dtype))] * len(right))
    if fault.how == "transposed":
        whole = np.ascontiguousarray(drawing.mean(drawing.terms[at])[0].T)
        return drawing.parts(at, [whole] * len(right))
    seed = int(drawing.random.integers(1 << 30))  # all ranks alike
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

"""Functions that the checks of part 33 run on the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.autograd import Module, Sequential, Tensor
from course_lib.check.cases.layouts import arrange
from course_lib.check.silent_bug.model import one_rank
from course_lib.collectives import Communicator
from course_lib.engine.namespace import student
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.silent_bugs.step import summed
from course_lib.mesh import RankMesh


def two_meshes(place: tuple[int, int], axes: dict[str, int]) -> list[RankMesh]:
    """Return two grids of the same ranks; collective.

    Parameters
    ----------
    place : (int, int)
        The number of this rank's grid, as some ranks may form a grid of their own, and its place.
    axes : dict of str to int
    """
    comm = Communicator().Split(color=place[0], key=place[1])
    return [RankMesh(comm, **axes) for _ in range(2)]


def plain(answer: object) -> object:
    """Return NumPy's True and False as Python's."""
    return bool(answer) if isinstance(answer, np.bool_) else answer


def call_close_enough(pairs: Sequence[tuple]) -> list:
    """Return the student's answers, each with the pair as it is afterwards."""
    answers = []
    for a, b, dtype, terms, layouts in pairs:
        pair = [arrange(np.array(x), layout) for x, layout in zip((a, b), layouts, strict=True)]
        answer = student("close_enough")(*pair, dtype, terms)
        answers.append((plain(answer), [x.copy() for x in pair]))
    return answers


def call_same_on(
    place: tuple[int, int],
    axes: dict[str, int],
    calls: Sequence[tuple[np.ndarray, str, str]],
) -> list:
    """Call the student's function with several arrays, on two grids of the same ranks in turn.

    Arrays of the same shape and dtype take turns in one buffer, as a parameter's values do in training.

    Returns
    -------
    list of (object, numpy.ndarray)
        For each call the answer, and the array as it is afterwards.
    """
    meshes = two_meshes(place, axes)
    buffers: dict[tuple, np.ndarray] = {}
    answers = []
    for number, (array, axis, layout) in enumerate(calls):
        if layout == "C":
            buffer = buffers.setdefault((array.shape, array.dtype), np.empty_like(array))
            buffer[...] = array
        else:
            buffer = arrange(array, layout)
        answer = student("same_on")(buffer, axis, meshes[number % 2])
        answers.append((plain(answer), buffer.copy()))
    return answers


class RecordedStep:
    """A step with given results on a grid, and a small network on one rank; see `gpt.silent_bugs.step.Step`."""

    def __init__(
        self,
        parameters: Sequence[np.ndarray],
        names: Sequence[str],
        scale: float,
        dtype: str,
        terms: int,
        sharded: dict,
        batches: Sequence[np.ndarray],
        results: Sequence[Sequence[np.ndarray]],
    ):
        self.sharded = {name: tuple(split) for name, split in sharded.items()}
        self.dtype, self.terms = dtype, terms
        self._network = parameters, scale, dtype
        self._names = names
        self._left = list(zip(batches, results, strict=True))

    def __call__(self, batch: np.ndarray, mesh: RankMesh | None) -> dict[str, np.ndarray]:
        if mesh is None:
            parameters, scale, dtype = self._network
            return dict(zip(self._names, one_rank(parameters, batch, scale, dtype), strict=True))
        if not self._left or not np.array_equal(batch, self._left[0][0]):
            raise ValueError("on the mesh, call step with the previous batch and then with this one, once each.")
        _, arrays = self._left.pop(0)
        return {name: np.array(array) for name, array in zip(self._names, arrays, strict=True)}


def call_compare(place: tuple[int, int], axes: dict[str, int], calls: Sequence[tuple[dict, list]]) -> list:
    """Judge several steps on two grids of the same ranks in turn.

    Returns
    -------
    list of (object, list)
        For each step the finding as plain values, and the batches as they are afterwards.
    """
    meshes = two_meshes(place, axes)
    answers = []
    for number, (step, results) in enumerate(calls):
        batches = [batch.copy() for batch in step["batches"]]
        finding = student("compare_with_one_rank")(RecordedStep(**step, results=results), batches, meshes[number % 2])
        answers.append((tuple(finding) if isinstance(finding, tuple) else finding, batches))
    return answers


class MeanRemoved(Module):
    """A layer that subtracts the mean over all ranks: one all-reduce in forward, and one in backward."""

    def __init__(self):
        self.comm = Communicator()

    def forward(self, x: Tensor) -> Tensor:
        total = Tensor.from_operation(summed(x.data, self.comm), (x,), lambda grad: (summed(grad, self.comm),))
        return x - total * (1 / self.comm.Get_size())


def call_accumulate(
    sizes: tuple,
    seed: int,
    dtype: str,
    calls: Sequence[Sequence[np.ndarray]],
    grads: Sequence[np.ndarray] | None,
) -> list:
    """Call the student's function several times on the same model, with these gradients at first.

    Returns
    -------
    list of (object, list, list)
        For each call the loss, the gradients, and the micro-batches as they are afterwards.
    """
    embed, *others = layers(Sizes(*sizes), seed=seed, dtype=np.dtype(dtype))
    model = Sequential(embed, MeanRemoved(), *others)
    parameters = model.parameters()
    for p, grad in zip(parameters, grads or [None] * len(parameters), strict=True):
        p.grad = None if grad is None else grad.copy()
    answers = []
    for micro_batches in calls:
        texts = [micro_batch.copy() for micro_batch in micro_batches]
        loss = student("accumulate")(model, texts)
        answers.append((loss, [None if p.grad is None else p.grad.copy() for p in parameters], texts))
    return answers

"""Functions that the checks of part 33 run on the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.autograd import Sequential, Tensor
from course_lib.check.silent_bug.model import one_rank
from course_lib.engine.namespace import group_of, student
from course_lib.gpt.model.decoder import Sizes, layers
from course_lib.gpt.silent_bugs.runs import attend
from course_lib.mesh import RankMesh


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
        self.sharded, self.dtype, self.terms = {name: tuple(split) for name, split in sharded.items()}, dtype, terms
        self._network, self._names = (parameters, scale, dtype), names
        self._left = [(batch, arrays) for batch, arrays in zip(batches, results, strict=True)]

    def __call__(self, batch: np.ndarray, mesh: RankMesh | None) -> dict[str, np.ndarray]:
        if mesh is None:
            parameters, scale, dtype = self._network
            return dict(zip(self._names, one_rank(parameters, batch, scale, dtype), strict=True))
        if not self._left or not np.array_equal(batch, self._left[0][0]):
            raise ValueError("on the mesh, call step with the previous batch and then with this one, once each.")
        _, arrays = self._left.pop(0)
        return {name: np.array(array) for name, array in zip(self._names, arrays, strict=True)}


def call_compare(axes: dict[str, int], place: tuple[int, int], step: dict, results: list) -> tuple:
    """Return the student's finding as plain values, and whether the batches are as before."""
    mesh = RankMesh(group_of(place), **axes)
    batches = [batch.copy() for batch in step["batches"]]
    found = student("compare_with_one_rank")(RecordedStep(**step, results=results), batches, mesh)
    kept = all(np.array_equal(a, b) for a, b in zip(batches, step["batches"], strict=True))
    return tuple(found) if isinstance(found, tuple) else found, kept


def call_same_on(axes: dict[str, int], place: tuple[int, int], array: np.ndarray, axis: str, layout: str) -> tuple:
    """Return the student's answer, and the array afterwards."""
    mesh = RankMesh(group_of(place), **axes)
    given = _laid_out(array, layout)
    found = student("same_on")(given, axis, mesh)
    return bool(found) if isinstance(found, np.bool_) else found, given


def _laid_out(array: np.ndarray, layout: str) -> np.ndarray:
    """The same array in another order in memory."""
    if layout == "Fortran":
        return np.asfortranarray(array)
    if layout == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    return np.array(array)


def call_close_enough(pairs: Sequence[tuple]) -> list:
    """Return the student's answers."""
    close_enough = student("close_enough")
    found = [close_enough(np.array(a), np.array(b), dtype, terms) for a, b, dtype, terms in pairs]
    return [bool(one) if isinstance(one, np.bool_) else one for one in found]


class CountedTexts(Sequential):
    """A model that keeps the largest number of texts that it was given at once."""

    most = 0

    def forward(self, tokens: np.ndarray) -> Tensor:
        self.most = max(self.most, len(tokens))
        return super().forward(tokens)


def call_accumulate(sizes: tuple, seed: int, calls: Sequence[Sequence[np.ndarray]], grads: Sequence[np.ndarray] | None) -> tuple:
    """Return the loss and the gradients of each call of the student's function on the same model, and the most texts at once."""
    model, found = CountedTexts(*layers(Sizes(*sizes), seed=seed, dtype=np.float64)), []
    parameters = model.parameters()
    for p, grad in zip(parameters, grads or [None] * len(parameters), strict=True):
        p.grad = None if grad is None else grad.copy()
    for micro_batches in calls:
        loss = student("accumulate")(model, [texts.copy() for texts in micro_batches])
        found.append((loss, [None if p.grad is None else p.grad.copy() for p in parameters]))
    return found, model.most


def call_own_gradients(place: tuple[int, int], q: np.ndarray, k: np.ndarray, v: np.ndarray, grad: np.ndarray) -> list:
    """Return the gradients of q, k and v."""
    inputs = [Tensor(array.copy(), requires_grad=True) for array in (q, k, v)]
    out = attend(*inputs, group_of(place), student("own_gradients"))
    out.backward(grad.copy())
    return [x.grad for x in inputs]

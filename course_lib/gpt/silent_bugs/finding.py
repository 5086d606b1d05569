"""Findings of a comparison with one rank, and what helps to make one: parts of arrays on a grid, factors and weighted sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from course_lib.mesh import Mesh

KINDS = ("factor", "missing sum", "wrong shard", "stale", "some samples", "other")


class Finding(NamedTuple):
    """A wrong gradient, and how it is wrong.

    Attributes
    ----------
    parameter : str
    axis : str or None
    kind : str
        One of `KINDS`.
    factor : float or None
    """

    parameter: str
    axis: str | None
    kind: str
    factor: float | None = None


def part_of(whole: np.ndarray, split: tuple[str, int] | None, mesh: Mesh, rank: int) -> np.ndarray:
    """Part of an array that a rank holds.

    Parameters
    ----------
    whole : numpy.ndarray
    split : (str, int) or None
        Axis of the mesh over which the array is sharded, and its dimension; None if each rank has the whole array.
    mesh : Mesh
    rank : int

    Examples
    --------
    >>> part_of(np.arange(4), ("tp", 0), Mesh(dp=2, tp=2), 3).tolist()
    [2, 3]
    """
    if split is None:
        return whole
    axis, dim = split
    index = mesh.coordinates(rank)[list(mesh.shape).index(axis)]
    return np.ascontiguousarray(np.split(whole, mesh.shape[axis], axis=dim)[index])


def parts_of(whole: np.ndarray, split: tuple[str, int] | None, mesh: Mesh) -> list[np.ndarray]:
    """Parts of an array on all ranks of a mesh; see `part_of`."""
    return [part_of(whole, split, mesh, r) for r in range(mesh.size)]


def held_by_all(array: np.ndarray, mesh: object) -> list[np.ndarray]:
    """All ranks' arrays, in the order of the mesh; collective. They have the same shape and dtype."""
    mine = np.asarray(array, order="C")
    every = np.empty((mesh.size, *mine.shape), mine.dtype)
    mesh.comm.Allgather(mine, every)
    return list(every)


def deciding_axis(some: Collection[int], mesh: Mesh) -> str | None:
    """Name the axis whose coordinate alone decides which ranks belong to some; None if all do, or if there is no such axis.

    >>> deciding_axis([1, 3], Mesh(dp=2, tp=2)), deciding_axis([0, 3], Mesh(dp=2, tp=2)), deciding_axis([2], Mesh(dp=4))
    ('tp', None, 'dp')
    """
    for place, axis in enumerate(mesh.shape):
        chosen = {mesh.coordinates(r)[place] for r in some}
        if len(chosen) < mesh.shape[axis] and sorted(some) == [r for r in range(mesh.size) if mesh.coordinates(r)[place] in chosen]:
            return axis
    return None


def best_factor(arrays: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    """Find the number c for which c times some arrays is nearest to some others, all of them together; 0 if the arrays are all 0.

    >>> best_factor([np.array([1.0, 2.0]), np.array([3.0])], [np.array([2.0, 4.0]), np.array([6.0])])
    2.0
    """
    a, b = (np.concatenate([np.ravel(array) for array in some]).astype(float) for some in (arrays, others))
    largest = float(np.max(np.abs(a), initial=0)) or 1.0  # squares of small numbers may be 0
    with np.errstate(invalid="ignore"):  # others may be infinite
        product = float((a / largest) @ (b / largest))
    return product / (float((a / largest) @ (a / largest)) or 1.0)


def best_fit(array: np.ndarray, terms: Sequence[np.ndarray]) -> np.ndarray:
    """Find the weighted sum of some arrays that is nearest to an array; the array itself if it is not finite.

    >>> best_fit(np.array([2.0, 5.0, 1.0]), [np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])]).round(9).tolist()
    [2.0, 5.0, 0.0]
    """
    if not np.isfinite(array).all():
        return array
    columns, target = np.stack([np.ravel(term) for term in terms], axis=1).astype(float), np.ravel(array).astype(float)
    found = np.zeros_like(target)
    for _ in range(2):  # the second time, what the roundings of the first have left
        found += columns @ np.linalg.lstsq(columns, target - found, rcond=None)[0]
    return found.reshape(array.shape)

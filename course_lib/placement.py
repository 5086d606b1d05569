"""Which kind is this array on this axis? Of an array on the ranks of a group, one of three things is true.

- *replicated*: each rank has all of it;
- *sharded* along a dimension: the ranks have its parts, in the order of the group;
- *partial*: each rank has a summand, and the sum over the ranks is the array.

On a grid with several axes, the question is asked for each axis. A gradient that is partial and taken for replicated is the commonest
silent mistake of real systems: nothing fails, and the ranks train on numbers that are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib import wording
from course_lib.mesh import Mesh


@dataclass(frozen=True)
class Kind:
    """What an array is on one axis.

    Attributes
    ----------
    name : str
        "replicated", "sharded" or "partial".
    dim : int or None
        Along which dimension it is sharded.
    """

    name: str
    dim: int | None = None

    def __str__(self) -> str:
        return self.name if self.dim is None else f"{self.name} along dimension {self.dim}"


replicated, partial = Kind("replicated"), Kind("partial")


def sharded(dim: int) -> Kind:
    """Cut along a dimension."""
    return Kind("sharded", dim)


class WrongKind(ValueError):
    """The ranks' arrays are not what was claimed."""


@dataclass(frozen=True)
class Operator:
    """One of the conjugate operators: what it makes of an array on the way forward, and of the gradient on the way back.

    The gradient of a replicated array is partial where each rank has used it for another part of the work, and replicated where all
    have used it for the same.

    Attributes
    ----------
    name : str
    before, after : Kind
        Of the array.
    forward : str
        The collective, or "nothing".
    grad_after, grad_before : Kind
        Of the gradient, as it comes and as it goes on.
    backward : str
        The collective, or "nothing".
    """

    name: str
    before: Kind
    after: Kind
    forward: str
    grad_after: Kind
    grad_before: Kind
    backward: str


# Dimension 1 is that of the positions in an array of shape (batch, positions, width).
_SEQUENCE_SHARDED = sharded(1)
OPERATORS = (
    Operator("copy_to_group (f)", replicated, replicated, "nothing", partial, replicated, "all-reduce"),
    Operator("reduce_from_group (g)", partial, replicated, "all-reduce", replicated, replicated, "nothing"),
    Operator("gather_sequence", _SEQUENCE_SHARDED, replicated, "all-gather", partial, _SEQUENCE_SHARDED, "reduce-scatter"),
    Operator("scatter_sequence", partial, _SEQUENCE_SHARDED, "reduce-scatter", _SEQUENCE_SHARDED, replicated, "all-gather"),
)


def assemble(kind: Kind, arrays: Sequence[np.ndarray], rtol: float = 0.0, ranks: Sequence[int] | None = None) -> np.ndarray:
    """The array that the ranks of a group hold together.

    Parameters
    ----------
    kind : Kind
        What it is on this axis.
    arrays : sequence of numpy.ndarray
        What each rank holds, in the order of the group.
    rtol : float
        How far copies may differ, relative to the largest value.
    ranks : sequence of int, optional
        The ranks of the group, as a message names them; from 0 by default.

    Raises
    ------
    WrongKind
        The arrays cannot be of that kind.
    """
    arrays, ranks = [np.asarray(array) for array in arrays], list(ranks or range(len(arrays)))
    first = arrays[0]
    if kind.name == "sharded":
        shapes = [tuple(size for d, size in enumerate(a.shape) if d != kind.dim % a.ndim) if a.ndim else None for a in arrays]
        if None in shapes or len(set(shapes)) > 1 or not all(-a.ndim <= kind.dim < a.ndim for a in arrays):
            raise WrongKind(f"arrays of shapes {', '.join(str(a.shape) for a in arrays)} are no parts along dimension {kind.dim}")
        return np.concatenate(arrays, axis=kind.dim)
    if other := [i for i, a in enumerate(arrays) if a.shape != first.shape]:
        others = wording.ranks(ranks[i] for i in other)
        raise WrongKind(f"rank {ranks[0]} has shape {first.shape}, and {others} {arrays[other[0]].shape}")
    if kind.name == "partial":
        return np.sum(arrays, axis=0, dtype=first.dtype)
    near = rtol * float(np.max(np.abs(first), initial=0))
    if other := [ranks[i] for i, a in enumerate(arrays) if not np.all(np.abs(a - first) <= near)]:
        raise WrongKind(f"rank {ranks[0]} and {wording.ranks(other)} hold different values")
    return first


def assemble_mesh(mesh: Mesh, kinds: Mapping[str, Kind], arrays: Sequence[np.ndarray], rtol: float = 0.0) -> np.ndarray:
    """The array that all ranks of a grid hold together.

    Parameters
    ----------
    mesh : Mesh
    kinds : mapping of str to Kind
        For each axis of the mesh, what the array is; replicated where nothing is said.
    arrays : sequence of numpy.ndarray
        What each rank holds.
    rtol : float
        As in `assemble`.

    Raises
    ------
    WrongKind
        The arrays cannot be of these kinds.
    """
    held, names = list(arrays), list(mesh.shape)
    for axis in reversed(names):  # what the ranks of each group hold together, the last axis first
        size = mesh.shape[axis]
        groups = [held[i : i + size] for i in range(0, len(held), size)]
        try:
            held = [assemble(kinds.get(axis, replicated), group, rtol) for group in groups]
        except WrongKind as wrong:
            raise WrongKind(f"on axis {axis}, {wrong}" if len(names) > 1 else str(wrong)) from None
    return held[0]


def difference(kind: Kind, arrays: Sequence[np.ndarray], full: np.ndarray, rtol: float = 1e-6, ranks: Sequence[int] | None = None) -> str:
    """Why arrays are not `full` as this kind, in a sentence's words; empty if they are.

    Parameters
    ----------
    kind : Kind
        What is claimed.
    arrays : sequence of numpy.ndarray
        What each rank of a group holds.
    full : numpy.ndarray
        The whole.
    rtol : float
        Tolerance relative to the largest value of the whole.
    ranks : sequence of int, optional
        As in `assemble`.
    """
    try:
        found = assemble(kind, arrays, rtol, ranks)
    except WrongKind as wrong:
        return str(wrong)
    if found.shape != full.shape:
        return f"together they have shape {found.shape}, and the whole has {full.shape}"
    near = rtol * float(np.max(np.abs(full), initial=0))
    if np.all(np.abs(found - full) <= near):
        return ""
    meant = {"replicated": "they are equal, but not the whole", "partial": "their sum is not the whole"}
    return meant.get(kind.name, "put together, they are not the whole")


def kinds_of(arrays: Sequence[np.ndarray], full: np.ndarray, rtol: float = 1e-6) -> list[Kind]:
    """All kinds that the ranks' arrays are of, found from their values: none if they are not `full` in any way."""
    candidates = (replicated, *(sharded(dim) for dim in range(np.ndim(full))), partial)
    return [kind for kind in candidates if not difference(kind, arrays, full, rtol)]

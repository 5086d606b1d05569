"""Placement of an array on an axis of a grid: replicated, sharded or partial.

- *replicated*: each rank has the whole array;
- *sharded* along a dimension: each rank has a part, in the order of the group;
- *partial*: each rank has a summand, and the array is the sum over the ranks.

On a grid with several axes, an array has a placement on each. A partial gradient mistaken for a replicated one is the commonest silent
mistake of real systems: nothing crashes, and the ranks train on wrong numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from course_lib.mesh import Mesh
from course_lib.utils import wording


@dataclass(frozen=True)
class Kind:
    """Placement of an array on one axis.

    Attributes
    ----------
    name : str
        "replicated", "sharded" or "partial".
    dim : int or None
        Dimension along which the array is sharded.
    """

    name: str
    dim: int | None = None

    def __str__(self) -> str:
        return self.name if self.dim is None else f"{self.name} along dimension {self.dim}"


replicated, partial = Kind("replicated"), Kind("partial")


def sharded(dim: int) -> Kind:
    """Placement of an array that is split along a dimension."""
    return Kind("sharded", dim)


class WrongKind(ValueError):
    """The ranks' arrays do not have the claimed placement."""


@dataclass(frozen=True)
class Operator:
    """Conjugate operator: its effect on an array's placement in forward, and on the gradient's in backward.

    The gradient of a replicated array is partial if each rank has used it for a different part of the work, and replicated if all ranks
    have used it for the same work.

    Attributes
    ----------
    name : str
    before, after : Kind
        Placement of the array.
    forward : str
        Name of the collective, or "nothing".
    grad_after, grad_before : Kind
        Placement of the gradient of the operator's output, and of its input.
    backward : str
        Name of the collective, or "nothing".
    """

    name: str
    before: Kind
    after: Kind
    forward: str
    grad_after: Kind
    grad_before: Kind
    backward: str


# Dimension 1 holds the positions in an array of shape (batch, positions, width).
_SEQUENCE_SHARDED = sharded(1)
OPERATORS = (
    Operator("copy_to_group (f)", replicated, replicated, "nothing", partial, replicated, "all-reduce"),
    Operator("reduce_from_group (g)", partial, replicated, "all-reduce", replicated, replicated, "nothing"),
    Operator("gather_sequence", _SEQUENCE_SHARDED, replicated, "all-gather", partial, _SEQUENCE_SHARDED, "reduce-scatter"),
    Operator("scatter_sequence", partial, _SEQUENCE_SHARDED, "reduce-scatter", _SEQUENCE_SHARDED, replicated, "all-gather"),
)


# Parts 03 to 07: a layer's arrays have shape (batch, columns), so dimension 1 holds hidden units or outputs. Each line is a pair of
# exercises: what one does to an array in forward, and the other to its gradient in backward.
_COLUMNS = sharded(1)
LAYER_OPERATORS = {
    "naive input": Operator("naive: input of fc2", _COLUMNS, replicated, "all-gather", partial, _COLUMNS, "reduce-scatter"),
    "naive output": Operator("naive: output of fc2", _COLUMNS, replicated, "all-gather", replicated, _COLUMNS, "slice"),
    "megatron input": Operator("Megatron: input of fc2", _COLUMNS, _COLUMNS, "nothing", _COLUMNS, _COLUMNS, "nothing"),
    "megatron output": Operator("Megatron: output of fc2", partial, replicated, "all-reduce", replicated, replicated, "nothing"),
    "weights": Operator("a weight, on axis dp", replicated, replicated, "nothing", partial, replicated, "all-reduce"),
}


class GatherFirst(ValueError):
    """A rank cannot multiply what it has of two matrices; the message says what to gather."""


def product(a: Kind, b: Kind) -> Kind:
    """Placement of the ranks' own products of two matrices that are placed on the same axis.

    The contracted dimension is the columns of A and the rows of B; all others are dimensions of the product.

    Parameters
    ----------
    a, b : Kind
        Placements of A and B: replicated, ``sharded(0)`` or ``sharded(1)``.

    Raises
    ------
    GatherFirst
        The ranks' own products are no part of the product of A and B, or their shapes do not match.
    """
    inner_a, inner_b = a == sharded(1), b == sharded(0)
    if inner_a and inner_b:
        return partial
    if inner_a or inner_b:
        raise GatherFirst(f"only {'A' if inner_a else 'B'} is sharded along the contracted dimension")
    if a != replicated and b != replicated:
        raise GatherFirst("A and B are both sharded on this axis, along different dimensions of the product")
    return b if a == replicated else a


def assemble(kind: Kind, arrays: Sequence[np.ndarray], rtol: float = 0.0, ranks: Sequence[int] | None = None) -> np.ndarray:
    """Assemble the array that the ranks of a group hold together.

    Parameters
    ----------
    kind : Kind
        Placement of the array on this axis.
    arrays : sequence of numpy.ndarray
        Array of each rank, in the order of the group.
    rtol : float
        Tolerance between copies, relative to the largest value.
    ranks : sequence of int, optional
        Ranks of the group, for messages; by default numbered from 0.

    Raises
    ------
    WrongKind
        The arrays cannot have this placement.
    """
    arrays, ranks = [np.asarray(array) for array in arrays], list(ranks or range(len(arrays)))
    first = arrays[0]
    if kind.name == "sharded":
        shapes = [tuple(size for d, size in enumerate(a.shape) if d != kind.dim % a.ndim) if a.ndim else None for a in arrays]
        if None in shapes or len(set(shapes)) > 1 or not all(-a.ndim <= kind.dim < a.ndim for a in arrays):
            raise WrongKind(f"arrays of shapes {', '.join(str(a.shape) for a in arrays)} are not parts along dimension {kind.dim}")
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
    """Assemble the array that all ranks of a grid hold together.

    Parameters
    ----------
    mesh : Mesh
    kinds : mapping of str to Kind
        Placement of the array on each axis of the mesh; replicated on axes that are not listed.
    arrays : sequence of numpy.ndarray
        Array of each rank.
    rtol : float
        As in `assemble`.

    Raises
    ------
    WrongKind
        The arrays cannot have these placements.
    """
    held, names = list(arrays), list(mesh.shape)
    for axis in reversed(names):  # assemble the groups' arrays axis by axis, the last axis first
        size = mesh.shape[axis]
        groups = [held[i : i + size] for i in range(0, len(held), size)]
        try:
            held = [assemble(kinds.get(axis, replicated), group, rtol) for group in groups]
        except WrongKind as wrong:
            raise WrongKind(f"on axis {axis}, {wrong}" if len(names) > 1 else str(wrong)) from None
    return held[0]


def difference(kind: Kind, arrays: Sequence[np.ndarray], full: np.ndarray, rtol: float = 1e-6, ranks: Sequence[int] | None = None) -> str:
    """Describe why arrays are not `full` in this placement, as part of a sentence; empty if they are.

    Parameters
    ----------
    kind : Kind
        The claimed placement.
    arrays : sequence of numpy.ndarray
        Array of each rank of a group.
    full : numpy.ndarray
        The whole array.
    rtol : float
        Tolerance relative to the largest value of the whole array.
    ranks : sequence of int, optional
        As in `assemble`.
    """
    try:
        found = assemble(kind, arrays, rtol, ranks)
    except WrongKind as wrong:
        return str(wrong)
    if found.shape != full.shape:
        return f"together they have shape {found.shape}, but the whole has {full.shape}"
    near = rtol * float(np.max(np.abs(full), initial=0))
    if np.all(np.abs(found - full) <= near):
        return ""
    meant = {"replicated": "they are equal, but not the whole", "partial": "their sum is not the whole"}
    return meant.get(kind.name, "put together, they are not the whole")


def kinds_of(arrays: Sequence[np.ndarray], full: np.ndarray, rtol: float = 1e-6) -> list[Kind]:
    """Find all placements in which the ranks' arrays are `full`, from their values; empty if there is none."""
    candidates = (replicated, *(sharded(dim) for dim in range(np.ndim(full))), partial)
    return [kind for kind in candidates if not difference(kind, arrays, full, rtol)]

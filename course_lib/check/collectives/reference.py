"""Results of part 30's collectives, computed with all ranks' arrays in one process, and what known mistakes give."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

REDUCING = ("ring_reduce_scatter", "ring_all_reduce")
ROOTED = "tree_broadcast"
ROWS = "pairwise_all_to_all"
# By the dtype's character, for sums and products: their order is free.
TOLERANCES = {"f": 1e-5, "d": 1e-13, "F": 1e-5, "D": 1e-13}


@dataclass
class Wanted:
    """Results that the ranks of a group should return.

    Attributes
    ----------
    results : list of numpy.ndarray
        By rank of the group.
    cause : str
        The usual cause of wrong values.
    mistakes : dict of str to list
        By known mistake the results of each rank.
    rtol : float
        Tolerance relative to `scale`.
    scale : float, optional
        The magnitude of a reduction's terms.
    """

    results: list[np.ndarray]
    cause: str
    mistakes: dict[str, list[np.ndarray]] = field(default_factory=dict)
    rtol: float = 0.0
    scale: float | None = None


def wanted(function: str, arrays: list[np.ndarray], op: np.ufunc, root: int) -> Wanted:
    """Return what a group's ranks should return, given their arrays in rank order."""
    if function == "ring_all_gather":
        want = _all_gather(arrays)
    elif function == ROOTED:
        want = _broadcast(arrays, root)
    elif function == ROWS:
        want = _all_to_all(arrays)
    else:
        want = _reduction(function, arrays, op)
    if len(arrays) == 1:
        want.mistakes = {}
    return want


def _all_gather(parts: list[np.ndarray]) -> Wanted:
    n = len(parts)
    arrived = [np.concatenate([parts[(i - step) % n] for step in range(n)]) for i in range(n)]
    mistakes = {
        "the parts in the order of their arrival": arrived,
        "a table with a row for each part; join them in one row": [np.stack(parts)] * n,
    }
    cause = "a part in the wrong place: what arrives in a step is the part of the rank that many places back"
    return Wanted([np.concatenate(parts)] * n, cause, mistakes)


def _broadcast(arrays: list[np.ndarray], root: int) -> Wanted:
    n = len(arrays)
    mistakes = {f"x of rank {k} of the group instead of the root's": [arrays[k]] * n for k in range(n) if k != root}
    cause = "an array that was not received, or a root taken for rank 0"
    return Wanted([arrays[root]] * n, cause, mistakes)


def _all_to_all(arrays: list[np.ndarray]) -> Wanted:
    rows = list(np.ascontiguousarray(np.stack(arrays).swapaxes(0, 1)))
    cause = "a row in the wrong place: row j of the result comes from rank j"
    return Wanted(rows, cause, {"the rank's own x": arrays})


def _reduction(function: str, arrays: list[np.ndarray], op: np.ufunc) -> Wanted:
    n, stacked = len(arrays), np.stack(arrays)
    total = np.asarray(op.reduce(stacked, axis=0, dtype=stacked.dtype))
    added = np.asarray(np.add.reduce(stacked, axis=0, dtype=stacked.dtype))
    sums = f"the sum, but op is np.{op.__name__}"
    if function == "ring_reduce_scatter":
        results = list(pieces(total, n))
        own = [pieces(x, n)[i] for i, x in enumerate(arrays)]
        leaves = "If piece r leaves rank r first, piece r + 1 is complete there in the end: work out which piece must leave first"
        mistakes = {f"the rank's own piece, without the others'. {leaves}": own, sums: list(pieces(added, n))}
        for k in range(1, n):
            mistakes[f"the piece of the rank {k} place{'s' * (k > 1)} on"] = results[k:] + results[:k]
    else:
        results = [total] * n
        padded = "the right result and, behind it, the zeros that filled up the last piece"
        mistakes = {
            "the rank's own x": arrays,
            sums: [added] * n,
            "the right result in another shape; give it the shape of x": [total.reshape(-1)] * n,
            padded: [pieces(total, n).reshape(-1)] * n,
        }
    cause = "a piece that misses a rank's contribution, or has one twice"
    rtol, scale = 0.0, None
    if op in (np.add, np.multiply) and stacked.dtype.char in TOLERANCES and stacked.size:
        rtol = TOLERANCES[stacked.dtype.char]
        terms = np.abs(stacked).sum(axis=0) if op == np.add else np.abs(total)
        scale = float(terms.max())
    return Wanted(results, cause, mistakes, rtol, scale)


def pieces(x: np.ndarray, n: int) -> np.ndarray:
    """Return the n pieces of an array, flattened and padded with zeros: shape ``(n, ceil(size / n))``.

    Examples
    --------
    >>> pieces(np.arange(1, 6), 2)
    array([[1, 2, 3],
           [4, 5, 0]])
    """
    padded = np.zeros(n * -(-x.size // n), x.dtype)
    padded[: x.size] = x.reshape(-1)
    return padded.reshape(n, -1)

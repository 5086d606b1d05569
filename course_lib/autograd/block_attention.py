"""Attention to a block of the keys, and its gradients: what a rank computes while it holds the keys and values of some positions.

NumPy arrays, as whoever cuts a sequence into blocks has his own way back. What the causal mask hides is not computed where it is whole
rows or columns of the block. Dao et al., 2022, "FlashAttention: fast and memory-efficient exact attention with IO-awareness", section 3.1
and appendix B, has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def positions(chunks: Sequence[int], length: int) -> np.ndarray:
    """Where the rows of some chunks stand in the whole sequence, one chunk after the other.

    Parameters
    ----------
    chunks : sequence of int
        Their numbers.
    length : int
        Rows in each chunk.

    Examples
    --------
    >>> positions([1, 6], 2).tolist()
    [2, 3, 12, 13]
    """
    return (np.asarray(chunks, np.int64)[:, None] * length + np.arange(length)).ravel()


def block_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, q_positions: np.ndarray, k_positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Causal attention of some positions to the keys and values of some positions.

    Parameters
    ----------
    q : numpy.ndarray
        ``(..., T, d)``, such as ``(batch, heads, T, d)``.
    k, v : numpy.ndarray
        ``(..., S, d)``.
    q_positions, k_positions : numpy.ndarray
        int, ``(T,)`` and ``(S,)``: where in the whole sequence the rows stand. A row sees the keys of its own position and of earlier ones.

    Returns
    -------
    out : numpy.ndarray
        ``(..., T, d)``: the mean of the values that a row sees here, weighted by the softmax over these keys alone. 0 where it sees none.
    lse : numpy.ndarray
        ``(..., T)``: the logarithm of the sum of the exponentials of its scores ``q k / sqrt(d)``. -inf where it sees none.

    Examples
    --------
    >>> x = np.ones((2, 1))
    >>> out, lse = block_attention(x, x, x, np.array([0, 5]), np.array([3, 4]))
    >>> out.ravel().tolist(), lse.round(3).tolist()
    ([0.0, 1.0], [-inf, 1.693])
    """
    rows, keys, hidden = _visible(q, k, q_positions, k_positions)
    out, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full(q.shape[:-1], -np.inf, q.dtype)
    if hidden.size:
        scores = _scores(q[..., rows, :], k[..., keys, :], hidden)
        top = scores.max(axis=-1, keepdims=True)
        scores -= top
        total = np.exp(scores, out=scores).sum(axis=-1, keepdims=True)
        values = scores @ v[..., keys, :]
        values /= total
        out[..., rows, :], lse[..., rows] = values, (top + np.log(total))[..., 0]
    return out, lse


def block_backward(
    grad: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    q_positions: np.ndarray,
    k_positions: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a block of the keys contributes to the gradients.

    Parameters
    ----------
    grad : numpy.ndarray
        ``(..., T, d)``: the gradient of `out`.
    out, lse : numpy.ndarray
        ``(..., T, d)`` and ``(..., T)``: of the rows' attention to *all* keys that they see, in this block and in all others.
    q, k, v, q_positions, k_positions
        As for `block_attention`.

    Returns
    -------
    dq : numpy.ndarray
        ``(..., T, d)``: this block's summand of the gradient of q.
    dk, dv : numpy.ndarray
        ``(..., S, d)``: these rows' summands of the gradients of k and v.
    """
    rows, keys, hidden = _visible(q, k, q_positions, k_positions)
    grads = dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    if hidden.size:
        some, columns, of_rows = q[..., rows, :], k[..., keys, :], grad[..., rows, :]
        weights = _scores(some, columns, hidden)
        weights -= lse[..., rows, None]
        np.exp(weights, out=weights)
        dv[..., keys, :] = weights.swapaxes(-1, -2) @ of_rows
        slopes = of_rows @ v[..., keys, :].swapaxes(-1, -2)
        slopes -= np.einsum("...d,...d->...", of_rows, out[..., rows, :])[..., None]
        slopes *= weights
        slopes *= slopes.dtype.type(1 / math.sqrt(q.shape[-1]))
        dq[..., rows, :], dk[..., keys, :] = slopes @ columns, slopes.swapaxes(-1, -2) @ some
    return grads


def _scores(q: np.ndarray, k: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    scores = (q * q.dtype.type(1 / math.sqrt(q.shape[-1]))) @ k.swapaxes(-1, -2)
    np.copyto(scores, -np.inf, where=hidden)
    return scores


def _visible(q: np.ndarray, k: np.ndarray, q_positions: np.ndarray, k_positions: np.ndarray) -> tuple:
    """The rows that see something, the keys that something sees, and what of these rows and keys is hidden."""
    q_positions, k_positions = np.asarray(q_positions), np.asarray(k_positions)
    for array, positions, name in ((q, q_positions, "q"), (k, k_positions, "k")):
        if positions.shape != array.shape[-2:-1]:
            raise ValueError(f"{name} has {array.shape[-2]} rows (shape {array.shape}), and {name}_positions the shape {positions.shape}.")
    first, last = k_positions.min(initial=np.iinfo(np.int64).max), q_positions.max(initial=-1)
    rows, keys = _as_index(q_positions >= first), _as_index(k_positions <= last)
    return rows, keys, k_positions[keys][None, :] > q_positions[rows][:, None]


def _as_index(mask: np.ndarray) -> slice | np.ndarray:
    """An index of what a mask chooses: a slice, which copies nothing, where one does."""
    where = np.flatnonzero(mask)
    if where.size and where[-1] - where[0] + 1 == where.size:
        return slice(int(where[0]), int(where[-1]) + 1)
    return where

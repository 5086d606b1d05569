"""Attention to a block of the keys, and its gradients: a rank's computation while it holds the keys and values of some positions.

These functions work on NumPy arrays, as a sequence split into blocks needs its own backward. Rows and columns of the block that the
causal mask hides entirely are not computed. The formulas are in Dao et al., 2022, "FlashAttention: fast and memory-efficient exact
attention with IO-awareness", section 3.1 and appendix B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def positions(chunks: Sequence[int], length: int) -> np.ndarray:
    """Positions of the rows of some chunks in the whole sequence, one chunk after the other.

    Parameters
    ----------
    chunks : sequence of int
        Numbers of the chunks.
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
    """Compute causal attention of some positions to the keys and values of some positions.

    Parameters
    ----------
    q : numpy.ndarray
        ``(..., T, d)``, such as ``(batch, heads, T, d)``.
    k, v : numpy.ndarray
        ``(..., S, d)``.
    q_positions, k_positions : numpy.ndarray
        int, ``(T,)`` and ``(S,)``: positions of the rows in the whole sequence. A row attends to its own and earlier positions.

    Returns
    -------
    out : numpy.ndarray
        ``(..., T, d)``: the mean of the visible values, weighted by the softmax over these keys alone; 0 if none is visible.
    lse : numpy.ndarray
        ``(..., T)``: the log-sum-exp of the row's scores ``q k / sqrt(d)``; -inf if none is visible.

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
    """Compute the contribution of a block of the keys to the gradients.

    Parameters
    ----------
    grad : numpy.ndarray
        ``(..., T, d)``: the gradient of `out`.
    out, lse : numpy.ndarray
        ``(..., T, d)`` and ``(..., T)``: the rows' attention to *all* visible keys, in this block and in all others.
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
    """Find the rows with a visible key, the keys visible to some row, and the mask of the hidden pairs among them."""
    q_positions, k_positions = np.asarray(q_positions), np.asarray(k_positions)
    for array, positions, name in ((q, q_positions, "q"), (k, k_positions, "k")):
        if positions.shape != array.shape[-2:-1]:
            raise ValueError(f"{name} has {array.shape[-2]} rows (shape {array.shape}), but {name}_positions has shape {positions.shape}.")
    first, last = k_positions.min(initial=np.iinfo(np.int64).max), q_positions.max(initial=-1)
    rows, keys = _as_index(q_positions >= first), _as_index(k_positions <= last)
    return rows, keys, k_positions[keys][None, :] > q_positions[rows][:, None]


def _as_index(mask: np.ndarray) -> slice | np.ndarray:
    """Convert a mask to an index: a slice, which copies nothing, if possible."""
    where = np.flatnonzero(mask)
    if where.size and where[-1] - where[0] + 1 == where.size:
        return slice(int(where[0]), int(where[-1]) + 1)
    return where

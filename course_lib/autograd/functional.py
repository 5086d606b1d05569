"""Operations of a transformer: embeddings, norms, GELU, softmax, attention, dropout.

16-bit arrays are converted to float32 for sums and exponentials, and back at the end.
"""

from __future__ import annotations

import math

from course_lib.autograd.operations import upcast
from course_lib.autograd.tensor import Tensor, array_namespace
from course_lib.trace.recorder import operation


@operation
def embedding(table: Tensor, ids) -> Tensor:
    """Look up rows of a table by index.

    Parameters
    ----------
    table : Tensor
        ``(vocabulary, width)``.
    ids : numpy.ndarray
        int, any shape.

    Returns
    -------
    Tensor
        ``(*ids.shape, width)``.

    Raises
    ------
    IndexError
        An index is not a row of the table.
    """
    xp, rows = array_namespace(table.data), table.shape[0]
    ids = ids.data if isinstance(ids, Tensor) else xp.asarray(ids)
    if ids.dtype.kind not in "iu":
        raise IndexError(f"embedding: the ids must be whole numbers; got dtype {ids.dtype}.")
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise IndexError(f"embedding: the ids must be 0 to {rows - 1}, the rows of the table; got {ids.min()} to {ids.max()}.")

    def backward(g):
        grad = xp.zeros_like(table.data)
        order = xp.argsort(ids.reshape(-1), kind="stable")
        taken = ids.reshape(-1)[order]
        if taken.size:  # a row taken several times gets the sum
            first = xp.flatnonzero(xp.concatenate([xp.ones(1, bool), taken[1:] != taken[:-1]]))
            grad[taken[first]] = xp.add.reduceat(upcast(g.reshape(-1, g.shape[-1])[order]), first, axis=0)
        return (grad,)

    return Tensor.from_operation(table.data[ids], (table,), backward)


@operation
def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float = 1e-5) -> Tensor:
    """``scale * (x - mean) / sqrt(variance + eps) + shift`` over the last axis (Ba et al., 2016, "Layer normalization", section 3)."""
    values = upcast(x.data)
    normal = values - values.mean(axis=-1, keepdims=True)
    rate = 1 / array_namespace(values).sqrt((normal * normal).mean(axis=-1, keepdims=True) + eps)
    return _normalised(x, normal, rate, scale, shift)


@operation
def rms_norm(x: Tensor, scale: Tensor, eps: float = 1e-5) -> Tensor:
    """``scale * x / sqrt(mean(x²) + eps)`` over the last axis (Zhang and Sennrich, 2019, "Root mean square layer normalization")."""
    values = upcast(x.data)
    rate = 1 / array_namespace(values).sqrt((values * values).mean(axis=-1, keepdims=True) + eps)
    return _normalised(x, values.copy(), rate, scale, None)


def _normalised(x: Tensor, normal, rate, scale: Tensor, shift: Tensor | None) -> Tensor:
    """Common last step of both norms, and their gradient; `normal` is overwritten."""
    xp, width = array_namespace(normal), x.shape[-1]
    normal *= rate
    out = normal * upcast(scale.data)
    if shift is not None:
        out += upcast(shift.data)

    def backward(g):
        g = upcast(g)
        flat, rows = g.reshape(-1, width), normal.reshape(-1, width)
        grad_scale = xp.einsum("ij,ij->j", flat, rows).astype(scale.dtype, copy=False)
        grad = g * upcast(scale.data)
        along = xp.einsum("...j,...j->...", grad, normal)[..., None] / width
        mean = grad.mean(axis=-1, keepdims=True) if shift is not None else None
        grad -= normal * along
        if shift is not None:
            grad -= mean
        grad *= rate
        grad = grad.astype(x.dtype, copy=False)
        return (grad, grad_scale) if shift is None else (grad, grad_scale, flat.sum(axis=0).astype(shift.dtype, copy=False))

    return Tensor.from_operation(out.astype(x.dtype, copy=False), (x, scale) if shift is None else (x, scale, shift), backward)


@operation
def gelu(x: Tensor) -> Tensor:
    """``x`` times the probability that a standard normal variable is below x, in the tanh form of Hendrycks and Gimpel, 2016, section 2."""
    xp, values = array_namespace(x.data), upcast(x.data)
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    square = values * values
    bend = square * cubic
    bend += 1
    bend *= values
    bend *= root
    bend = xp.tanh(bend)  # tanh(root (x + cubic x³))
    out = bend + 1
    out *= values
    out *= 0.5

    def backward(g):
        slope = square * (3 * cubic * root)
        slope += root
        slope *= values
        slope *= 1 - bend * bend
        slope += bend
        slope += 1
        slope *= 0.5
        slope *= g
        return (slope.astype(x.dtype, copy=False),)

    return Tensor.from_operation(out.astype(x.dtype, copy=False), (x,), backward)


@operation
def softmax(x: Tensor) -> Tensor:
    """``exp(x) / sum(exp(x))`` over the last axis."""
    out = _softmax_inplace(upcast(x.data).copy())

    def backward(g):
        grad = g * out
        grad -= out * grad.sum(axis=-1, keepdims=True)
        return (grad.astype(x.dtype, copy=False),)

    return Tensor.from_operation(out.astype(x.dtype, copy=False), (x,), backward)


def _softmax_inplace(scores):
    """Compute the softmax over the last axis in place."""
    xp = array_namespace(scores)
    scores -= scores.max(axis=-1, keepdims=True)  # avoids overflow in exp
    xp.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


@operation
def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    """Scaled dot-product attention: ``softmax(q kᵀ / sqrt(d)) v`` (Vaswani et al., 2017, section 3.2.1).

    Parameters
    ----------
    q, k, v : Tensor
        ``(..., positions, d)``, such as ``(batch, heads, positions, d)``; without a causal mask, q may have other positions than k and v.
    causal : bool
        Whether a position attends only to itself and earlier positions.

    Returns
    -------
    Tensor
        Shape of q, with the last axis of v.

    Raises
    ------
    ValueError
        The shapes do not fit together.
    """
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise ValueError(
            f"attention: q, k, v must be (..., positions, d) with the same d for q and k; got {q.shape}, {k.shape}, {v.shape}."
        )
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"attention: a causal mask needs as many positions in q as in k; got {q.shape[-2]} and {k.shape[-2]}.")
    xp, scale = array_namespace(q.data), 1 / math.sqrt(q.shape[-1])
    rows, keys, values = upcast(q.data), upcast(k.data), upcast(v.data)
    scores = (rows * rows.dtype.type(scale)) @ keys.swapaxes(-1, -2)
    if causal:
        scores += xp.triu(xp.full(scores.shape[-2:], -xp.inf, scores.dtype), 1)
    weights = _softmax_inplace(scores)
    out = weights @ values

    def backward(g):
        g = upcast(g)
        grad = g @ values.swapaxes(-1, -2)
        grad -= xp.einsum("...j,...j->...", g, out)[..., None]  # the same as the sum over grad * weights
        grad *= weights
        grad *= grad.dtype.type(scale)
        grads = grad @ keys, grad.swapaxes(-1, -2) @ rows, weights.swapaxes(-1, -2) @ g
        return tuple(a.astype(t.dtype, copy=False) for a, t in zip(grads, (q, k, v), strict=True))

    return Tensor.from_operation(out.astype(q.dtype, copy=False), (q, k, v), backward)


@operation
def dropout(x: Tensor, mask, rate: float) -> Tensor:
    """Keep the numbers selected by the mask, divided by ``1 - rate`` to preserve the mean (Srivastava et al., 2014).

    Parameters
    ----------
    x : Tensor
    mask : numpy.ndarray
        bool, of x's shape: True where a number is kept.
    rate : float
        Fraction that is dropped, in [0, 1).

    Raises
    ------
    ValueError
        The mask has another shape, or the rate is out of range.
    """
    if mask.shape != x.shape or not 0 <= rate < 1:
        raise ValueError(f"dropout: the mask must have the shape {x.shape} and the rate be in [0, 1); got {mask.shape} and {rate}.")
    factor = mask * x.dtype.type(1 / (1 - rate))
    return Tensor.from_operation(x.data * factor, (x,), lambda g: (g * factor,))

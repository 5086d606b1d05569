"""Operations on tensors, each with its backward function.

Images are ``(batch, height, width, channels)``: a pixel's channels are contiguous in memory, and a convolution is a single
matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.autograd.tensor import Tensor, array_namespace
from course_lib.trace.recorder import operation


def as_tensor(value: object) -> Tensor:
    """Return a tensor unchanged, anything else as a constant."""
    return value if isinstance(value, Tensor) else Tensor(value)


def _constant(value: object, other: Tensor) -> Tensor:
    """Convert a number to the dtype of the other operand: float32 stays float32."""
    if isinstance(value, Tensor):
        return value
    return Tensor(array_namespace(other.data).asarray(value, dtype=other.dtype))


def _as_tensors(a: object, b: object) -> tuple[Tensor, Tensor]:
    if isinstance(a, Tensor):
        return a, _constant(b, a)
    return _constant(a, b), b


def _unbroadcast(grad, shape: tuple[int, ...]):
    """Reduce the gradient of a broadcast operand: sum over the axes along which it was repeated."""
    if grad.shape == shape:
        return grad
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and grad.shape[i] != 1)
    return grad.sum(axis=axes, keepdims=True) if axes else grad


@operation
def add(a: object, b: object) -> Tensor:
    """``a + b``, with broadcasting."""
    a, b = _as_tensors(a, b)
    return Tensor.from_operation(a.data + b.data, (a, b), lambda g: (_unbroadcast(g, a.shape), _unbroadcast(g, b.shape)))


@operation
def multiply(a: object, b: object) -> Tensor:
    """``a * b``, with broadcasting."""
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return Tensor(a * b)
    a, b = _as_tensors(a, b)
    return Tensor.from_operation(
        a.data * b.data,
        (a, b),
        lambda g: (
            _unbroadcast(g * b.data, a.shape) if a.requires_grad else None,
            _unbroadcast(g * a.data, b.shape) if b.requires_grad else None,
        ),
    )


@operation
def divide(a: object, b: object) -> Tensor:
    """``a / b``, with broadcasting."""
    a, b = _as_tensors(a, b)
    return Tensor.from_operation(
        a.data / b.data, (a, b), lambda g: (_unbroadcast(g / b.data, a.shape), _unbroadcast(-g * a.data / (b.data * b.data), b.shape))
    )


def matmul_arrays(a, b, out=None):
    """``a @ b`` of arrays; 16-bit arrays are multiplied and summed in float32, as on a GPU, and rounded once at the end."""
    xp = array_namespace(a)
    if a.dtype.itemsize > 2:
        return xp.matmul(a, b, out=out)
    found = xp.matmul(a.astype(xp.float32), b.astype(xp.float32)).astype(a.dtype)
    if out is None:
        return found
    out[...] = found
    return out


@operation
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of matrices, or stacks of them, ``(..., n, k) @ (..., k, m)``, with broadcasting."""
    if len(b.shape) == 2:
        return linear(a, b)

    def backward(g):
        grad_a = _unbroadcast(matmul_arrays(g, b.data.swapaxes(-1, -2)), a.shape) if a.requires_grad else None
        return grad_a, (_unbroadcast(matmul_arrays(a.data.swapaxes(-1, -2), g), b.shape) if b.requires_grad else None)

    return Tensor.from_operation(matmul_arrays(a.data, b.data), (a, b), backward)


@operation
def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """``x @ w + b`` as a single operation; x is ``(..., inputs)``, w ``(inputs, outputs)``."""
    rows, xp = x.data.reshape(-1, x.shape[-1]), array_namespace(x.data)
    out = matmul_arrays(rows, w.data)
    if b is not None:
        out += b.data

    def backward(g):
        g = g.reshape(-1, g.shape[-1])
        grad_w = matmul_arrays(rows.T, g, out=w.take_grad_buffer()) if w.requires_grad else None
        grad_x = matmul_arrays(g, w.data.T).reshape(x.shape) if x.requires_grad else None
        return (grad_x, grad_w) if b is None else (grad_x, grad_w, xp.sum(g, axis=0, out=b.take_grad_buffer()))

    return Tensor.from_operation(out.reshape(*x.shape[:-1], w.shape[1]), (x, w) if b is None else (x, w, b), backward)


@operation
def reduce_sum(a: Tensor, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tensor:
    """Sum over all axes, or some of them; with `keepdims` these stay, with length 1."""
    xp = array_namespace(a.data)

    def backward(g):
        return (xp.broadcast_to(g if axis is None or keepdims else xp.expand_dims(g, axis), a.shape),)

    return Tensor.from_operation(xp.asarray(a.data.sum(axis=axis, keepdims=keepdims)), (a,), backward)


@operation
def relu(a: Tensor) -> Tensor:
    """Positive part."""
    xp = array_namespace(a.data)
    out = xp.maximum(a.data, 0)
    return Tensor.from_operation(out, (a,), lambda g: (g * (out > 0),))


@operation
def tanh(a: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    xp = array_namespace(a.data)
    out = xp.tanh(a.data)

    def backward(g):
        grad = xp.asarray(g * out)  # g (1 - out²), in as few passes as possible
        grad *= out
        return (xp.subtract(g, grad, out=grad),)

    return Tensor.from_operation(out, (a,), backward)


def upcast(array):
    """Convert a 16-bit array to float32, for sums and exponentials; return any other unchanged."""
    return array.astype("float32") if array.dtype.itemsize <= 2 else array


@operation
def cross_entropy(logits: Tensor, labels) -> Tensor:
    """Mean over the batch of the negative log-softmax of the right class.

    Parameters
    ----------
    logits : Tensor
        ``(batch, classes)``.
    labels : numpy.ndarray
        int, ``(batch,)``.
    """
    xp, z = array_namespace(logits.data), upcast(logits.data)
    labels = labels.data if isinstance(labels, Tensor) else labels
    if z.ndim != 2 or labels.shape != z.shape[:1]:
        raise ValueError(f"cross_entropy: logits must be (batch, classes) and labels (batch,); got {z.shape} and {labels.shape}.")
    rows = xp.arange(len(labels))
    shifted = z - z.max(axis=1, keepdims=True)  # avoids overflow in exp
    soft = xp.exp(shifted)
    sums = soft.sum(axis=1, keepdims=True)
    loss = (xp.log(sums[:, 0]) - shifted[rows, labels]).mean(dtype=z.dtype)
    soft /= sums

    def backward(g):
        share = g / len(labels)
        grad = soft * share
        grad[rows, labels] -= share
        return (grad.astype(logits.dtype, copy=False),)

    return Tensor.from_operation(xp.asarray(loss), (logits,), backward)


@operation
def conv2d(x: Tensor, w: Tensor, padding: int = 0) -> Tensor:
    """Convolution with stride 1.

    Every patch of the image becomes a row of a matrix, and a single matrix product applies the weight to all of them (Chellapilla
    et al., 2006, "High performance convolutional neural networks for document processing").

    Parameters
    ----------
    x : Tensor
        ``(batch, height, width, channels)``.
    w : Tensor
        ``(kernel, kernel, channels, out_channels)``.
    padding : int
        Zeros around the image.

    Returns
    -------
    Tensor
        ``(batch, height + 2 padding - kernel + 1, ..., out_channels)``.
    """
    xp, (k, _, channels, out_channels) = array_namespace(x.data), w.shape
    n, height, width, _ = x.shape
    h, v = height + 2 * padding - k + 1, width + 2 * padding - k + 1
    padded = xp.pad(x.data, ((0, 0), (padding, padding), (padding, padding), (0, 0))) if padding else x.data
    rows = _patches(xp, padded, k, h, v)
    matrix = w.data.reshape(-1, out_channels)
    out = (rows @ matrix).reshape(n, h, v, out_channels)

    def backward(g):
        flat = g.reshape(-1, out_channels)
        buffer = w.take_grad_buffer()
        grad_w = xp.matmul(rows.T, flat, out=None if buffer is None else buffer.reshape(matrix.shape))
        grad_w = grad_w.reshape(w.shape) if buffer is None else buffer
        if not x.requires_grad:
            return None, grad_w
        back = (flat @ matrix.T).reshape(n, h, v, k, k, channels)
        wide = xp.zeros_like(padded)
        for i in range(k):
            for j in range(k):
                wide[:, i : i + h, j : j + v] += back[:, :, :, i, j]
        return (wide[:, padding : padding + height, padding : padding + width] if padding else wide), grad_w

    return Tensor.from_operation(out, (x, w), backward)


def _patches(xp, padded, k: int, h: int, v: int):
    """Collect all k x k patches as rows: ``(batch * h * v, k * k * channels)``."""
    n, channels = padded.shape[0], padded.shape[3]
    if k == 1:
        return padded.reshape(-1, channels)
    rows = xp.empty((n, h, v, k, k, channels), padded.dtype)
    for i in range(k):
        for j in range(k):
            rows[:, :, :, i, j] = padded[:, i : i + h, j : j + v]
    return rows.reshape(n * h * v, -1)


@operation
def max_pool2d(x: Tensor, size: int = 2) -> Tensor:
    """Largest value of each ``size x size`` square; height and width must be multiples of it."""
    xp, (n, height, width, channels) = array_namespace(x.data), x.shape
    squares = x.data.reshape(n, height // size, size, width // size, size, channels)
    out = squares.max(axis=(2, 4))

    def backward(g):
        first = squares == out[:, :, None, :, None]
        # Tied maxima share the gradient equally.
        share = g / first.sum(axis=(2, 4), dtype=g.dtype)
        return ((first * share[:, :, None, :, None]).reshape(x.shape),)

    return Tensor.from_operation(xp.ascontiguousarray(out), (x,), backward)


@operation
def batch_norm(x: Tensor, scale: Tensor, shift: Tensor, mean, variance, eps: float = 1e-5) -> Tensor:
    """``scale * (x - mean) / sqrt(variance + eps) + shift`` per channel, the last axis; mean and variance are those of x.

    The gradient takes into account that mean and variance depend on x (Ioffe and Szegedy, 2015, "Batch normalization", section 3).
    """
    xp, channels = array_namespace(x.data), x.shape[-1]
    rate = 1 / xp.sqrt(variance + eps)
    flat = x.data.reshape(-1, channels)
    normal = flat - mean
    normal *= rate
    out = normal * scale.data
    out += shift.data

    def backward(g):
        g = g.reshape(-1, channels)
        grad_shift = g.sum(axis=0)
        grad_scale = xp.einsum("ij,ij->j", g, normal)
        grad = normal * (-grad_scale / len(flat))
        grad += g
        grad -= grad_shift / len(flat)
        grad *= scale.data * rate
        return grad.reshape(x.shape), grad_scale, grad_shift

    return Tensor.from_operation(out.reshape(x.shape), (x, scale, shift), backward)


def _mean(a: Tensor) -> Tensor:
    """Mean of all values."""
    return reduce_sum(a) * (1.0 / a.data.size)


def reshape(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Same values in another shape."""
    return Tensor.from_operation(a.data.reshape(shape), (a,), lambda g: (g.reshape(a.shape),))


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Same values with permuted axes; by default in reverse order."""
    axes = tuple(range(len(a.shape)))[::-1] if axes is None else tuple(axes)
    back = tuple(int(i) for i in np.argsort([axis % len(a.shape) for axis in axes]))
    return Tensor.from_operation(a.data.transpose(axes), (a,), lambda g: (g.transpose(back),))


@operation
def getitem(a: Tensor, index: object) -> Tensor:
    """``a[index]`` for integers, slices, None and ``...``.

    Raises
    ------
    TypeError
        The index is an array or a list; use `functional.embedding` to take rows by index.
    """
    for part in index if isinstance(index, tuple) else (index,):
        if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))) or isinstance(part, bool):
            raise TypeError(
                f"a tensor can be indexed only with whole numbers and slices; got {part!r}. For rows by index: embedding(table, ids)."
            )

    def backward(g):
        grad = array_namespace(a.data).zeros_like(a.data)
        grad[index] = g
        return (grad,)

    return Tensor.from_operation(array_namespace(a.data).asarray(a.data[index]), (a,), backward)


@operation
def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Concatenate tensors along an axis."""
    ends = np.cumsum([t.shape[axis] for t in tensors])[:-1]
    xp = array_namespace(tensors[0].data)
    out = xp.concatenate([t.data for t in tensors], axis=axis)
    return Tensor.from_operation(out, tuple(tensors), lambda g: tuple(xp.split(g, ends, axis=axis)))


@operation
def cast(a: Tensor, dtype: object) -> Tensor:
    """Same values in another dtype; the gradient is cast back."""
    return Tensor.from_operation(a.data.astype(dtype), (a,), lambda g: (g.astype(a.dtype),))


# Operators and methods of Tensor, such as a + b, a @ b, a.sum(); registered here, so that `tensor` does not import this module.
Tensor.__add__ = Tensor.__radd__ = add
Tensor.__mul__ = Tensor.__rmul__ = multiply
Tensor.__sub__ = lambda a, b: add(a, multiply(b, -1.0))
Tensor.__rsub__ = lambda a, b: add(multiply(a, -1.0), b)
Tensor.__neg__ = lambda a: multiply(a, -1.0)
Tensor.__truediv__ = divide
Tensor.__rtruediv__ = lambda a, b: divide(b, a)
Tensor.__matmul__ = matmul
Tensor.sum, Tensor.mean = reduce_sum, _mean
Tensor.reshape = lambda a, *shape: reshape(a, shape)
Tensor.transpose = lambda a, *axes: transpose(a, axes or None)
Tensor.astype = cast
Tensor.__getitem__ = getitem

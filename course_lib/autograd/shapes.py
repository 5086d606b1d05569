"""Operations that move numbers and change none: transposes, slices, pieces put together, other dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course_lib.autograd.tensor import Tensor, namespace


def reshape(a: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same values in another shape."""
    return Tensor.from_operation(a.data.reshape(shape), (a,), lambda g: (g.reshape(a.shape),))


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The same values with the axes in another order; reversed by default."""
    axes = tuple(range(len(a.shape)))[::-1] if axes is None else tuple(axes)
    back = tuple(int(i) for i in np.argsort([axis % len(a.shape) for axis in axes]))
    return Tensor.from_operation(a.data.transpose(axes), (a,), lambda g: (g.transpose(back),))


def cut(a: Tensor, index: object) -> Tensor:
    """``a[index]`` for whole numbers, slices, None and ``...``.

    Raises
    ------
    TypeError
        The index is an array or a list; `sequences.embedding` takes rows by their numbers.
    """
    for part in index if isinstance(index, tuple) else (index,):
        if not (part is None or part is Ellipsis or isinstance(part, (int, np.integer, slice))) or isinstance(part, bool):
            raise TypeError(f"a tensor's index must be whole numbers and slices; got {part!r}. Rows by number: embedding(table, ids).")

    def backward(g):
        grad = namespace(a.data).zeros_like(a.data)
        grad[index] = g
        return (grad,)

    return Tensor.from_operation(namespace(a.data).asarray(a.data[index]), (a,), backward)


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors one after the other along an axis."""
    ends = np.cumsum([t.shape[axis] for t in tensors])[:-1]
    xp = namespace(tensors[0].data)
    out = xp.concatenate([t.data for t in tensors], axis=axis)
    return Tensor.from_operation(out, tuple(tensors), lambda g: tuple(xp.split(g, ends, axis=axis)))


def cast(a: Tensor, dtype: object) -> Tensor:
    """The same values in another dtype; the gradient comes back in the first one."""
    return Tensor.from_operation(a.data.astype(dtype), (a,), lambda g: (g.astype(a.dtype),))


# What a tensor can do by itself, as in `operations`.
Tensor.reshape = lambda a, *shape: reshape(a, shape)
Tensor.transpose = lambda a, *axes: transpose(a, axes or None)
Tensor.astype = cast
Tensor.__getitem__ = cut

"""Layouts in memory of an array that a function is given; on a rank, as an array travels in C order."""

from __future__ import annotations

import numpy as np

CONTIGUOUS = ("C", "read-only", "offset")  # a right answer may pass these on to MPI as they are
LAYOUTS = ("C", "read-only", "strided", "reversed", "Fortran", "offset")


def arrange(array: np.ndarray, layout: str) -> np.ndarray:
    """Return the same values in another layout.

    Parameters
    ----------
    array : numpy.ndarray
    layout : str
        One of `LAYOUTS`. "strided": every second element of a larger array along the last axis;
        "reversed": a view with a negative stride; "offset": a part of a larger, C-contiguous array.

    Examples
    --------
    >>> strided = arrange(np.arange(6).reshape(2, 3), "strided")
    >>> strided.tolist(), strided.flags.c_contiguous
    ([[0, 1, 2], [3, 4, 5]], False)
    """
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout {layout!r}; there are {', '.join(LAYOUTS)}")
    if layout == "Fortran" and array.ndim:
        return np.asfortranarray(array)
    if layout == "strided" and array.ndim:
        larger = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        larger[..., ::2] = array
        return larger[..., ::2]
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "offset" and array.ndim:
        larger = np.zeros((len(array) + 2, *array.shape[1:]), array.dtype)
        larger[1:-1] = array
        return larger[1:-1]
    copy = array.copy()
    copy.flags.writeable = layout != "read-only"
    return copy

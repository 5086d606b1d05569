"""Flat buffer: several arrays in one, padded to a multiple of the number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class FlatBuffer:
    """Layout of arrays in one flat array: concatenated, row by row, padded with zeros.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        All of one dtype.
    ranks : int
        The number of ranks, which divides the padded length.

    Attributes
    ----------
    length : int
        Length of the padded flat array.
    dtype : numpy.dtype

    Raises
    ------
    ValueError
        There are no arrays, or they differ in dtype.

    Examples
    --------
    >>> flat = FlatBuffer([np.ones((1, 2)), np.zeros(3)], 4)
    >>> flat.join([np.array([[1.0, 2.0]]), np.array([3.0, 4.0, 5.0])]).tolist()
    [1.0, 2.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0]
    >>> flat.cut(np.arange(8.0))
    [array([[0., 1.]]), array([2., 3., 4.])]
    """

    def __init__(self, arrays: Sequence[np.ndarray], ranks: int):
        if len({a.dtype for a in arrays}) != 1:
            kinds = ", ".join(sorted({str(a.dtype) for a in arrays})) or "no arrays"
            raise ValueError(f"FlatBuffer joins one or more arrays of one dtype; got {kinds}.")
        self.shapes, self.dtype = [a.shape for a in arrays], arrays[0].dtype
        self._cuts = np.cumsum([a.size for a in arrays])
        self.length = -(-int(self._cuts[-1]) // ranks) * ranks

    def join(self, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        """Concatenate these arrays into a flat one, ``(length,)``; None stands for zeros."""
        whole = np.zeros(self.length, self.dtype)
        for place, array in zip(self.cut(whole), arrays, strict=True):
            if array is not None:
                place[...] = array
        return whole

    def cut(self, whole: np.ndarray) -> list[np.ndarray]:
        """Split a flat array into arrays of their shapes, as views of it."""
        places = np.split(whole, self._cuts)[:-1]
        return [place.reshape(shape) for place, shape in zip(places, self.shapes, strict=True)]

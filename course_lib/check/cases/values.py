"""Values that mistakes change: NaN, infinities, -0.0, subnormal numbers, and what a narrower dtype cannot hold."""

from __future__ import annotations

import numpy as np


def special_values(dtype: np.dtype | type | str, *, finite: bool = False) -> np.ndarray:
    """Return the special values of a dtype.

    Parameters
    ----------
    dtype : numpy.dtype
        Floating point or integer.
    finite : bool
        Whether to leave out NaN and infinities, for results that add or multiply.

    Returns
    -------
    numpy.ndarray
        One-dimensional, of this dtype, without two equal values.

    Examples
    --------
    >>> special_values("int8").tolist()
    [-128, 127, -1]
    """
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.array([limits.min, limits.max] + [-1] * (dtype.kind == "i"), dtype)
    limits = np.finfo(dtype)
    # 1 + eps needs all bits of the significand; max and the subnormal, all of the exponent's range.
    values = [-0.0, limits.smallest_subnormal, -limits.tiny, limits.max, 1 + limits.eps, 1 / 3]
    if not finite:
        values += [np.nan, np.inf, -np.inf]
    return np.array(values, dtype)


def place_special(
    array: np.ndarray,
    random: np.random.Generator,
    start: int = 0,
    *,
    finite: bool = False,
) -> int:
    """Overwrite random elements of an array with special values, at most half of them.

    Parameters
    ----------
    array : numpy.ndarray
        C-contiguous; changed in place.
    start : int
        Which special value comes first, so that several small arrays have all of them in turn.

    Returns
    -------
    int
        The `start` for the next array.
    """
    values = special_values(array.dtype, finite=finite)
    count = min(len(values), (array.size + 1) // 2)
    where = random.permutation(array.size)[:count]
    array.reshape(-1)[where] = np.take(values, np.arange(start, start + count), mode="wrap")
    return (start + count) % len(values)


def are_special(array: np.ndarray) -> np.ndarray:
    """Return for each element whether it is NaN, infinite, -0.0 or subnormal.

    Examples
    --------
    >>> are_special(np.array([np.nan, np.inf, -0.0, 0.0, 5e-324, 1.0])).tolist()
    [True, True, True, False, True, False]
    """
    if array.dtype.kind != "f":
        return np.zeros(array.shape, bool)
    subnormal = (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)
    return ~np.isfinite(array) | (array == 0) & np.signbit(array) | subnormal


def same_values(got: np.ndarray, want: np.ndarray, *, signed_zeros: bool = False) -> np.ndarray:
    """Compare element by element; NaN equals NaN, and with `signed_zeros` -0.0 differs from 0.0.

    Examples
    --------
    >>> same_values(np.array([np.nan, -0.0]), np.array([np.nan, 0.0]), signed_zeros=True)
    array([ True, False])
    """
    equal = np.equal(got, want)
    if got.dtype.kind in "fc" and want.dtype.kind in "fc":
        equal |= np.isnan(got) & np.isnan(want)
    if signed_zeros and got.dtype.kind == want.dtype.kind == "f":
        equal &= (np.signbit(got) == np.signbit(want)) | np.isnan(got)
    return equal

"""Floating point formats by name, and rounding to them; bfloat16 needs no further package."""

from __future__ import annotations

import numpy as np

DTYPES = ("float64", "float32", "float16", "bfloat16")


def epsilon(dtype: str) -> float:
    """Distance from 1 to the next larger number of a format.

    >>> [f"{epsilon(dtype):.2g}" for dtype in DTYPES]
    ['2.2e-16', '1.2e-07', '0.00098', '0.0078']
    """
    return 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round to the nearest number of a format.

    Parameters
    ----------
    array : numpy.ndarray
        Floating point.
    dtype : str
        One of `DTYPES`.

    Returns
    -------
    numpy.ndarray
        Of this dtype; numbers in bfloat16 are kept in float32 arrays, which have all of them.

    Examples
    --------
    >>> rounded(np.array([1.0, 1.003, 1.005, -300.6]), "bfloat16").tolist()
    [1.0, 1.0, 1.0078125, -300.0]
    """
    if dtype != "bfloat16":
        return np.asarray(array, dtype)
    bits = np.array(array, np.float32).view(np.uint32)  # the upper half of a float32, rounded to even
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)

"""Number formats of mixed precision training: float16 and bfloat16, for what is sent and for what is passed from layer to layer.

Values are computed in float32, as the sums of a matrix product are on a GPU. NumPy has no bfloat16: its bit patterns travel as uint16. They
are the upper halves of float32's, so bfloat16 has float32's range, and 8 significant bits; float16 has 11 (Micikevicius et al., 2018,
"Mixed precision training"; Kalamkar et al., 2019, "A study of BFLOAT16 for deep learning training").
"""

from __future__ import annotations

import numpy as np

from course_lib.autograd.modules import Module
from course_lib.autograd.tensor import Tensor

FORMATS = ("float32", "float16", "bfloat16")


def encode(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round an array to a format, as bit patterns that MPI can send.

    Parameters
    ----------
    array : numpy.ndarray
        float32, any shape.
    dtype : str
        "float32", "float16" or "bfloat16".

    Returns
    -------
    numpy.ndarray
        A new array of the same shape: uint16, or float32 as it is. Values are rounded to the nearest one of the format, ties to even;
        a magnitude beyond the largest one becomes infinite (65,520 and more in float16).

    Raises
    ------
    TypeError, ValueError
        The array is not float32; there is no such format.

    Examples
    --------
    >>> [hex(bits) for bits in encode(np.array([1.0, -2.0], np.float32), "bfloat16")]
    ['0x3f80', '0xc000']
    >>> decode(encode(np.array([1 / 3, 1e-8, 1e5], np.float32), "float16"), "float16").tolist()
    [0.333251953125, 0.0, inf]
    """
    _check_format(dtype, "encode")
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        raise TypeError(f"encode takes a float32 array; got {getattr(array, 'dtype', type(array).__name__)}.")
    if dtype == "float32":
        return array.copy()
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return array.astype(np.float16, order="C").view(np.uint16)
    bits = np.ascontiguousarray(array).reshape(array.shape).view(np.uint32)
    odd = (bits >> 16) & 1
    rounded_bits = np.asarray((bits + (np.uint32(0x7FFF) + odd)) >> 16).astype(np.uint16)
    nan = np.isnan(array)  # rounding could turn a NaN into infinity
    return np.where(nan, np.uint16(0x7FC0), rounded_bits) if nan.any() else rounded_bits


def decode(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Return the values of bit patterns.

    Parameters
    ----------
    bits : numpy.ndarray
        As returned by `encode`, or received: uint16, or float32 for "float32".
    dtype : str
        Their format, as for `encode`.

    Returns
    -------
    numpy.ndarray
        float32, the same shape; for "float32", `bits` itself.

    Raises
    ------
    TypeError, ValueError
        `bits` does not have the format's dtype; there is no such format.
    """
    _check_format(dtype, "decode")
    wanted = np.dtype(np.float32 if dtype == "float32" else np.uint16)
    if not isinstance(bits, np.ndarray) or bits.dtype != wanted:
        raise TypeError(f"decode takes {wanted} arrays for {dtype}; got {getattr(bits, 'dtype', type(bits).__name__)}.")
    if dtype == "float32":
        return bits
    if dtype == "float16":
        return np.ascontiguousarray(bits).reshape(bits.shape).view(np.float16).astype(np.float32)
    return np.asarray(bits.astype(np.uint32) << 16).view(np.float32)


def rounded(x: Tensor, dtype: str) -> Tensor:
    """Round a tensor's values to a format, and in backward its gradient."""
    if dtype == "float32":
        return x
    return Tensor.from_operation(decode(encode(x.data, dtype), dtype), (x,), lambda grad: (decode(encode(grad, dtype), dtype),))


class Rounded(Module):
    """A layer whose output, and the gradient that comes back to it, are rounded to a format.

    Parameters
    ----------
    layer : Module
    dtype : str
        As for `encode`.
    """

    def __init__(self, layer: Module, dtype: str):
        _check_format(dtype, "Rounded")
        self.layer, self.dtype = layer, dtype

    def forward(self, x: Tensor) -> Tensor:
        return rounded(self.layer(x), self.dtype)


def _check_format(dtype: object, where: str) -> None:
    if dtype not in FORMATS:
        raise ValueError(f"{where}: the format must be one of {', '.join(map(repr, FORMATS))}; got {dtype!r}.")

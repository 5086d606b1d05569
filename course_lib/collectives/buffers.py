"""Checks of the arrays that go into a collective; a wrong one gets a sentence."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

_KINDS = "biufc"  # bool, integers, floats, complex numbers: what MPI can move and add


def array(value: object, what: str, where: str) -> np.ndarray:
    """The array that `value` is, ready for MPI.

    Parameters
    ----------
    value : numpy.ndarray or [numpy.ndarray, MPI.Datatype]
        What was given to the collective.
    what : str
        The argument's name, such as "recvbuf".
    where : str
        The start of the sentence, such as "Allreduce".

    Raises
    ------
    TypeError
        It is no array, or an array of a dtype that MPI cannot move.
    ValueError
        It is not contiguous, or cannot be written to.
    """
    if type(value) is list and len(value) > 1 and isinstance(value[-1], MPI.Datatype):
        value = value[0]  # mpi4py's [array, type]; the array knows its type
    if not isinstance(value, np.ndarray):
        hint = " Make one with np.array(...)." if isinstance(value, (list, tuple, int, float, np.generic)) else ""
        raise TypeError(f"{where}: {what} must be a NumPy array; got {_name(value)}.{hint}")
    if value.dtype.kind not in _KINDS or not value.dtype.isnative or value.dtype.char == "e":
        raise TypeError(f"{where}: {what} has dtype {value.dtype}, which MPI cannot move. Use numbers, float32 for example.")
    if not value.flags.c_contiguous:
        raise ValueError(
            f"{where}: {what} is not contiguous: shape {value.shape}, strides {value.strides}. "
            "It is a view (a slice of columns, a transpose); MPI would read other numbers than you see. "
            f"Pass np.ascontiguousarray({what})" + (", or receive into a fresh array." if what == "recvbuf" else ".")
        )
    if what == "recvbuf" and not value.flags.writeable:
        raise ValueError(f"{where}: recvbuf is read-only. Receive into a fresh array, np.empty(...) for example.")
    return value


def same_dtype(send: np.ndarray, recv: np.ndarray, where: str) -> None:
    """Raise TypeError unless both arrays have the same dtype."""
    if send.dtype != recv.dtype:
        raise TypeError(
            f"{where}: sendbuf is {send.dtype}, recvbuf is {recv.dtype}; they must be the same. "
            f"Make the receive buffer with dtype={send.dtype} (np.empty gives float64 if you do not say)."
        )


def distinct(send: np.ndarray, recv: np.ndarray, where: str) -> None:
    """Raise ValueError when both buffers are the same memory, which MPI forbids."""
    if send is recv or (send.size and _address(send) == _address(recv)):
        raise ValueError(
            f"{where}: sendbuf and recvbuf are the same array, which MPI forbids. "
            "Receive into a fresh array (np.empty_like), or pass MPI.IN_PLACE as sendbuf."
        )


def _address(array: object) -> int:
    found = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return found["data"][0]


def size(recv: np.ndarray, expected: int, send: np.ndarray, why: str, where: str) -> None:
    """Raise ValueError unless recvbuf holds `expected` elements."""
    if recv.size != expected:
        raise ValueError(
            f"{where}: recvbuf has {recv.size} elements (shape {recv.shape}), expected {expected}: "
            f"sendbuf has {send.size} (shape {send.shape}), and {why}."
        )


def _name(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"a {kind}" if kind[0] not in "aeiou" else f"an {kind}"

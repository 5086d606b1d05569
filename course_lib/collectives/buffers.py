"""Checks of the arrays that go into a collective; a wrong one gets a sentence."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib import wording

_KINDS = "biufc"  # bool, integers, floats, complex numbers: what MPI can move and add


def checked_array(value: object, what: str, where: str) -> np.ndarray:
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
        raise TypeError(f"{where}: {what} must be a NumPy array; got {kind(value)}.{_hint(value, what)}")
    if value.dtype.kind not in _KINDS or not value.dtype.isnative or value.dtype.char == "e":
        raise TypeError(f"{where}: {what} has dtype {value.dtype}, which MPI cannot move. Use numbers, float32 for example.")
    if not value.flags.c_contiguous:
        raise ValueError(
            f"{where}: {what} is not contiguous: shape {value.shape}, strides {value.strides}. "
            "It is a view (a slice of columns, a transpose); MPI would read other numbers than you see. "
            + (
                "Receive into a fresh array, np.empty(shape, dtype): np.empty_like keeps the layout of what it is given."
                if what == "recvbuf"
                else f"Pass np.ascontiguousarray({what})."
            )
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


def check_disjoint(send: np.ndarray, recv: np.ndarray, where: str) -> None:
    """Raise ValueError when the buffers share memory, which MPI forbids."""
    (mine, end), (theirs, their_end) = _span(send), _span(recv)
    if send is recv or (send.size and mine == theirs and end == their_end):
        what = "are the same array"
    elif mine < their_end and theirs < end:
        what = "overlap: they are views of the same array, and have elements in common"
    else:
        return
    raise ValueError(f"{where}: sendbuf and recvbuf {what}, which MPI forbids. Receive into a fresh array (np.empty_like).")


def _span(array: object) -> tuple[int, int]:
    """Return the addresses at which a contiguous array begins and ends."""
    found = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return found["data"][0], found["data"][0] + array.nbytes


def check_size(recv: np.ndarray, expected: int, send: np.ndarray, why: str, where: str) -> None:
    """Raise ValueError unless recvbuf holds `expected` elements."""
    if recv.size != expected:
        swapped = " Are the two swapped? sendbuf comes first." if send.size > recv.size and expected > send.size else ""
        raise ValueError(
            f"{where}: recvbuf has {recv.size} elements (shape {recv.shape}), expected {expected}: "
            f"sendbuf has {send.size} (shape {send.shape}), and {why}.{swapped}"
        )


def _hint(value: object, what: str) -> str:
    if value is None:
        causes = " Is it the value of a collective (it returns none), or p.grad in a hook (there, the gradient is the hook's argument)?"
        return causes if what == "sendbuf" else ""
    if isinstance(value, type(MPI.IN_PLACE)):
        return " MPI.IN_PLACE goes first, in the place of sendbuf."
    if not isinstance(value, (list, tuple, int, float, np.generic)):
        return ""
    return " Make one that is as large as what arrives: np.empty(shape, dtype)." if what == "recvbuf" else " Make one with np.array(...)."


def shown(value: object) -> str:
    """A value that is none, in a few words."""
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else wording.shown(value)


def kind(value: object) -> str:
    """Name the kind of a value that is no array, such as "a list"."""
    if value is None:
        return "None"
    if isinstance(value, type(MPI.IN_PLACE)):
        return "MPI.IN_PLACE"
    if isinstance(value, np.ndarray):
        return "a NumPy array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

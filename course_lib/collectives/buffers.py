"""Validate the arrays passed to a collective; each error message names the usual cause."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from course_lib.utils import wording

_KINDS = "biufc"  # bool, integers, floats, complex: the kinds that MPI can send and reduce


def checked_array(value: object, what: str, where: str) -> np.ndarray:
    """Check a buffer argument and return its array.

    Parameters
    ----------
    value : numpy.ndarray or [numpy.ndarray, MPI.Datatype]
        The argument as the caller passed it.
    what : str
        The argument's name, such as "recvbuf".
    where : str
        The call, with which the error message begins, such as "Allreduce".

    Returns
    -------
    numpy.ndarray
        C-contiguous, with a native dtype that MPI supports; writable if `what` is "recvbuf".

    Raises
    ------
    TypeError
        The argument is not an array, or MPI does not support its dtype.
    ValueError
        The array is not contiguous, or a receive buffer is read-only.
    """
    if type(value) is list and len(value) > 1 and isinstance(value[-1], MPI.Datatype):
        value = value[0]  # mpi4py's [array, datatype]; the array's dtype says the same
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{where}: {what} must be a NumPy array; got {kind(value)}.{_hint(value, what)}")
    if value.dtype.kind not in _KINDS or not value.dtype.isnative or value.dtype.char == "e":
        raise TypeError(f"{where}: {what} has dtype {value.dtype}, which MPI cannot send. Use a numeric dtype such as float32.")
    if not value.flags.c_contiguous:
        raise ValueError(
            f"{where}: {what} is not contiguous: shape {value.shape}, strides {value.strides}. "
            "It is a view (a slice of columns, a transpose); MPI would read different numbers than you see. "
            + (
                "Receive into a fresh array, np.empty(shape, dtype): np.empty_like copies the layout of its argument."
                if what == "recvbuf"
                else f"Pass np.ascontiguousarray({what})."
            )
        )
    if what == "recvbuf" and not value.flags.writeable:
        raise ValueError(f"{where}: recvbuf is read-only. Receive into a fresh array, such as np.empty(...).")
    return value


def same_dtype(send: np.ndarray, recv: np.ndarray, where: str) -> None:
    """Raise TypeError unless both arrays have the same dtype."""
    if send.dtype != recv.dtype:
        raise TypeError(
            f"{where}: sendbuf is {send.dtype}, recvbuf is {recv.dtype}; they must be the same. "
            "Give the receive buffer the dtype of the array that is sent, as in np.empty(shape, sendbuf.dtype); the default is float64."
        )


def check_disjoint(send: np.ndarray, recv: np.ndarray, where: str) -> None:
    """Raise ValueError if the buffers share memory, which MPI forbids (MPI 4.1, section 2.3)."""
    (mine, end), (theirs, their_end) = _span(send), _span(recv)
    if send is recv or (send.size and mine == theirs and end == their_end):
        what = "are the same array"
    elif mine < their_end and theirs < end:
        what = "overlap: they are views of the same array and share elements"
    else:
        return
    raise ValueError(f"{where}: sendbuf and recvbuf {what}, which MPI forbids. Receive into a fresh array (np.empty_like).")


def _span(array: object) -> tuple[int, int]:
    """Return the first address of a contiguous array, and the first one past its end; NumPy or CuPy."""
    found = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return found["data"][0], found["data"][0] + array.nbytes


def check_size(recv: np.ndarray, expected: int, send: np.ndarray, why: str, where: str) -> None:
    """Raise ValueError unless recvbuf holds `expected` elements; `why` completes "sendbuf has 6, and ...".

    Parameters
    ----------
    recv, send : numpy.ndarray
    expected : int
        Elements.
    why, where : str
    """
    if recv.size != expected:
        swapped = " Are the two swapped? sendbuf comes first." if send.size > recv.size and expected > send.size else ""
        raise ValueError(
            f"{where}: recvbuf has {recv.size} elements (shape {recv.shape}), expected {expected}: "
            f"sendbuf has {send.size} (shape {send.shape}), and {why}.{swapped}"
        )


def _hint(value: object, what: str) -> str:
    if value is None:
        causes = " Is it the result of a collective (they return None), or p.grad in a hook (there, the gradient is the hook's argument)?"
        return causes if what == "sendbuf" else ""
    if isinstance(value, type(MPI.IN_PLACE)):
        return " MPI.IN_PLACE is the first argument, in place of sendbuf."
    if not isinstance(value, (list, tuple, int, float, np.generic)):
        return ""
    return " Allocate one for the incoming data: np.empty(shape, dtype)." if what == "recvbuf" else " Make one with np.array(...)."


def shown(value: object) -> str:
    """Describe an invalid value in a few words, for an error message."""
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else wording.shown(value)


def kind(value: object) -> str:
    """Name the type of a value that should have been an array, such as "a list"."""
    if value is None:
        return "None"
    if isinstance(value, type(MPI.IN_PLACE)):
        return "MPI.IN_PLACE"
    if isinstance(value, np.ndarray):
        return "a NumPy array"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

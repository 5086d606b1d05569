"""Broadcast text and errors from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def call_on_rank0(comm: object, call: Callable[[], str], error: type[Exception]) -> str:
    """Call a function on rank 0 and return its result on all ranks; collective.

    Parameters
    ----------
    comm : Communicator
    call : callable
        Called on rank 0.
    error : type
        If the call raises this, an OSError or a ValueError, all ranks raise this with the same message.

    Returns
    -------
    str
    """
    words = b""
    if comm.Get_rank() == 0:
        try:
            words = b"+" + _encode(call())
        except (error, OSError, ValueError) as problem:
            words = b"-" + _encode(error_text(problem))
    length = np.array([len(words)])
    comm.Bcast(length, root=0)
    received = np.frombuffer(words.ljust(int(length[0])), np.uint8).copy()
    comm.Bcast(received, root=0)
    text = received.tobytes().decode()
    if text.startswith("-"):
        raise error(text[1:])
    return text[1:]


def first_nonempty(comm: object, words: str) -> str:
    """First text among the ranks' texts that is not empty; collective."""
    mine = _encode(words)
    length = np.empty(comm.Get_size(), np.int64)
    comm.Allgather(np.array([len(mine)]), length)
    if not length.any():
        return ""
    speaker = int(np.flatnonzero(length)[0])
    received = np.zeros(int(length[speaker]), np.uint8)
    if comm.Get_rank() == speaker:
        received[:] = np.frombuffer(mine, np.uint8)
    comm.Bcast(received, root=speaker)
    return received.tobytes().decode()


def error_text(error: BaseException) -> str:
    """Message of an error, including the file name.

    >>> error_text(FileNotFoundError(2, "No such file or directory", "a/b"))
    'a/b: No such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def _encode(words: str) -> bytes:
    return words.encode(errors="backslashreplace")  # file names may contain arbitrary bytes

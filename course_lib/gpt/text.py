"""Training text as bytes; by default the source code of Python's standard library."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np

from course_lib.gpt.broadcast_text import call_on_rank0

MAX_TEXT_BYTES = 4_000_000  # most bytes that are read
TEXT_SUFFIXES = (".py", ".txt", ".md", ".rst", ".tex", ".html")


class TextError(ValueError):
    """There is no text to train on; the message says where it was looked for."""


def load_text(folder: str | Path | None = None) -> tuple[np.ndarray, str]:
    """Read the text of a folder; return it with a description.

    Parameters
    ----------
    folder : str or Path, optional
        A folder with text files, or a single file; by default Python's standard library.

    Returns
    -------
    text : numpy.ndarray
        uint8, at most `MAX_TEXT_BYTES`.
    name : str

    Raises
    ------
    TextError
        There is no text, or it cannot be read.

    Examples
    --------
    >>> text, name = load_text()
    >>> text.dtype.name, len(text) > 1_000_000, name.startswith("the source code of Python's standard library")
    ('uint8', True, True)
    """
    place = Path(folder) if folder is not None else Path(sysconfig.get_path("stdlib"))
    if folder is not None and not place.exists():
        raise TextError(f"there is no {place} to read text from.")
    if not os.access(place, os.R_OK | (os.X_OK if place.is_dir() else 0)):
        raise TextError(f"{place} cannot be read: its permissions do not allow it.")
    if place.is_file():
        files = [place]
    elif folder is None:
        files = sorted(path for path in place.glob("*.py") if path.is_file())  # a sandbox may lack what a link leads to
    else:
        files = sorted(path for path in place.rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file())
    found, size = [], 0
    for path in files:
        if size >= MAX_TEXT_BYTES:
            break
        try:
            found.append(np.fromfile(path, np.uint8, MAX_TEXT_BYTES - size))
        except OSError as error:
            raise TextError(f"{path} cannot be read: {error.strerror}.") from None
        size += len(found[-1])
    if not size:
        raise TextError(f"there is no text in {place}: its files must end in one of {', '.join(TEXT_SUFFIXES)}.")
    name = "the source code of Python's standard library" if folder is None else str(place)
    return np.concatenate(found), f"{name}, {len(found)} file{'s' if len(found) > 1 else ''}"


def load_and_broadcast(comm: object, folder: str | Path | None = None) -> tuple[np.ndarray, str]:
    """Call `load_text` on rank 0 and broadcast the result; collective. All ranks raise what rank 0 raises."""
    found: list[np.ndarray] = []

    def look() -> str:
        text, name = load_text(folder)
        found.append(text)
        return name

    name = call_on_rank0(comm, look, TextError)
    size = np.array([len(found[0]) if found else 0])
    comm.Bcast(size, root=0)
    text = found[0] if found else np.empty(int(size[0]), np.uint8)
    comm.Bcast(text, root=0)
    return text, name


def check_length(text: np.ndarray, length: int) -> None:
    """Raise TextError unless the text is long enough for one with `length` positions."""
    if len(text) < length + 1:
        raise TextError(f"the text has {len(text)} bytes, but a text of {length} positions needs {length + 1}: choose a longer text.")


def sample_batch(text: np.ndarray, step: int, batch: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the texts of a step; the same arguments give the same texts on every rank.

    Parameters
    ----------
    text : numpy.ndarray
        uint8.
    step, batch, length, seed : int

    Returns
    -------
    tokens, labels : numpy.ndarray
        int64, ``(batch, length)``; a label is the token that follows.

    Raises
    ------
    TextError
        The text is shorter than `length` + 1.
    """
    check_length(text, length)
    begins = np.random.default_rng([seed, step]).integers(0, len(text) - length, batch)
    found = text[begins[:, None] + np.arange(length + 1)].astype(np.int64)
    return found[:, :-1], found[:, 1:]

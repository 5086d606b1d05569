"""Text to learn from, as bytes; by default the source of Python's own library, which every Python has with it."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import numpy as np

from course_lib.gpt.broadcast_text import call_on_rank0

MAX_TEXT_BYTES = 4_000_000  # bytes that are read
TEXT_SUFFIXES = (".py", ".txt", ".md", ".rst", ".tex", ".html")


class TextError(ValueError):
    """There is no text to learn from; the message says where."""


def load_text(folder: str | Path | None = None) -> tuple[np.ndarray, str]:
    """The text of a folder, and what it is.

    Parameters
    ----------
    folder : str or Path, optional
        A folder with text files, or one file; by default that of Python's library.

    Returns
    -------
    text : numpy.ndarray
        uint8, at most `MAX_TEXT_BYTES`.
    name : str

    Raises
    ------
    TextError
        There is none, or it cannot be read.

    Examples
    --------
    >>> text, name = load_text()
    >>> text.dtype.name, len(text) > 1_000_000, name.startswith("the source of Python's library")
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
        files = sorted(place.glob("*.py"))
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
    name = "the source of Python's library" if folder is None else str(place)
    return np.concatenate(found), f"{name}, {len(found)} file{'s' if len(found) > 1 else ''}"


def load_and_broadcast(comm: object, folder: str | Path | None = None) -> tuple[np.ndarray, str]:
    """`load_text` on rank 0, for all ranks; collective. All raise what rank 0 raises."""
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
    """TextError unless a text of so many positions can be cut out of it."""
    if len(text) < length + 1:
        raise TextError(f"the text has {len(text)} bytes, and one of {length} positions needs {length + 1}: choose a longer text.")


def sample_batch(text: np.ndarray, step: int, batch: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The texts of a step: the same ones for all who ask, whatever they have of them.

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
        The text is shorter than one of these.
    """
    check_length(text, length)
    begins = np.random.default_rng([seed, step]).integers(0, len(text) - length, batch)
    found = text[begins[:, None] + np.arange(length + 1)].astype(np.int64)
    return found[:, :-1], found[:, 1:]

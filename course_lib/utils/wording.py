"""Common wording for ranks, bytes and times in messages and figures."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterable
from typing import TypeVar

Key, Value = TypeVar("Key", bound=Hashable), TypeVar("Value")
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


def spans(numbers: Iterable[int]) -> str:
    """Format numbers, with consecutive runs as ranges.

    >>> spans([0, 1, 2, 5])
    '0–2, 5'
    """
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs)


def ranks(numbers: Iterable[int]) -> str:
    """Format ranks for a sentence.

    >>> ranks([3]), ranks([0, 1, 2])
    ('rank 3', 'ranks 0–2')
    """
    numbers = list(numbers)
    return f"rank{'s' if len(numbers) > 1 else ''} {spans(numbers)}"


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Collect what is said of several ranks: the values of each key, in order.

    >>> grouped([("waits", 0), ("has ended", 1), ("waits", 2)])
    {'waits': [0, 2], 'has ended': [1]}
    """
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def shown(value: object) -> str:
    """Format an unexpected value briefly, however large it is.

    >>> shown(8.0), len(shown("x" * 10**6)), shown(10**5000)
    ('8.0', 60, 'an int')
    """
    try:
        return _SHORT.repr(value)[:60]
    except Exception:  # its own repr may raise, or the number may have thousands of digits
        kind = type(value).__name__[:40]
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def size(nbytes: float) -> str:
    """Format bytes that travel, or that a formula counts, with a unit: powers of ten.

    >>> size(56_000), size(20), size(3.3e6)
    ('56 kB', '20 B', '3.3 MB')
    """
    return _with_unit(nbytes, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)))


def memory(nbytes: float) -> str:
    """Format bytes of a device's memory, with a unit: powers of two.

    >>> memory(80 * 2**30), memory(1536)
    ('80 GiB', '1.5 KiB')
    """
    return _with_unit(nbytes, (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)))


def _with_unit(nbytes: float, units: tuple[tuple[str, float], ...]) -> str:
    for unit, step in units:
        if nbytes >= step:
            return f"{nbytes / step:.3g} {unit}"
    return f"{nbytes:.3g} B"


def seconds(time: float) -> str:
    """Format a time with a unit.

    >>> seconds(0.0123), seconds(3.5e-6), seconds(2.0), seconds(0.0)
    ('12.3 ms', '3.5 µs', '2 s', '0 s')
    """
    for unit, step in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time >= step:
            return f"{time / step:.4g} {unit}"
    return f"{time * 1e6:.4g} µs" if time else "0 s"

"""Tables as CSV: quoted where needed, and no cell is a formula to a spreadsheet."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path


def is_formula(text: str) -> bool:
    """Whether a spreadsheet would compute a cell instead of showing it.

    >>> is_formula("=1+1"), is_formula(" @x"), is_formula("Ada")
    (True, True, False)
    """
    plain = unicodedata.normalize("NFKC", text)
    shown = "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Cc"))  # no blanks of no width
    return plain[:1] in ("\t", "\r", "\n") or shown.strip()[:1] in ("=", "+", "-", "@")


def cell(value: object) -> object:
    """What stands in a cell: numbers with two places at most, and a quote before what would be a formula."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 2)
    return f"'{value}" if isinstance(value, str) and is_formula(value) else value


def write(path: Path, rows: Iterable[Sequence[object]], for_spreadsheets: bool = False) -> None:
    """Write a table, its head first.

    Parameters
    ----------
    path : Path
    rows : iterable of sequences
    for_spreadsheets : bool
        Begin with the mark by which a spreadsheet knows UTF-8; other programs may take it for a letter.
    """
    with path.open("w", newline="", encoding="utf-8-sig" if for_spreadsheets else "utf-8") as file:
        csv.writer(file).writerows([cell(value) for value in row] for row in rows)

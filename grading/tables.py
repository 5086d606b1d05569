"""Tables as CSV: texts are quoted, since a spreadsheet may split at semicolons, and no cell is a formula to it."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from grading.authoring import build
from grading.formatting import is_utf8, printable


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet would compute a cell instead of showing it.

    >>> is_formula("=1+1"), is_formula(" @x"), is_formula("Ada")
    (True, True, False)
    """
    plain = unicodedata.normalize("NFKC", text)
    shown = "".join(c for c in plain if unicodedata.category(c) not in ("Cf", "Cc"))  # without zero-width spaces
    return plain[:1] in ("\t", "\r", "\n") or shown.strip()[:1] in ("=", "+", "-", "@")


def cell(value: object) -> object:
    """Return a cell's content: numbers with at most two decimals, and a quote before what would be a formula.

    >>> cell("=cmd()"), cell(" +1"), cell(-1.5), cell("ada")
    ("'=cmd()", "' +1", -1.5, 'ada')
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 2)
    if not isinstance(value, str):
        return value
    text = value if is_utf8(value) else printable(value)
    return f"'{text}" if is_formula(text) else text


def write(path: Path, rows: Iterable[Sequence[object]], for_spreadsheets: bool = False) -> None:
    """Write a table, its header first.

    Parameters
    ----------
    path : Path
    rows : iterable of sequences
    for_spreadsheets : bool
        Begin with a byte order mark, by which a spreadsheet recognizes UTF-8; other programs may take it for a letter.
    """
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC).writerows([cell(value) for value in row] for row in rows)
    build.write_atomically("\ufeff" * for_spreadsheets + text.getvalue(), path)

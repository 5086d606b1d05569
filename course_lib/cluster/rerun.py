"""Which cells new ranks run again: those that did nothing but define functions, classes and variables."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager

DEFINE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Ran:
    """A cell that ranks ran without an error."""

    source: str
    targets: tuple[int, ...]
    label: str

    def on(self, n: int, before: int) -> list[int]:
        """On which of `n` ranks it runs again, where there were `before`: on all if it did so then."""
        return list(range(n)) if len(self.targets) == before else [t for t in self.targets if t < n]


def chosen(ran: list[Ran]) -> tuple[list[Ran], list[Ran]]:
    """The cells to run again, in order, and those that are left out; a cell that ran several times counts once, where it ran last."""
    last = {(cell.source, cell.targets): cell for cell in ran}
    ordered = [cell for cell in ran if last[cell.source, cell.targets] is cell]
    again = [cell for cell in ordered if defines_only(cell.source)]
    return again, [cell for cell in ordered if cell not in again]


def defines_only(source: str) -> bool:
    """Whether a cell's statements only define something; one that goes on from what there was, such as ``x += 1``, does more.

    >>> [defines_only(cell) for cell in ("import numpy as np\\nx = np.ones(3)", "x = 1\\nprint(x)", "x += 1")]
    [True, False, False]
    """
    try:
        body = ast.parse(TransformerManager().transform_cell(source)).body
    except (SyntaxError, ValueError):
        return False
    return all(isinstance(s, DEFINE) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in body)


def told(again: list[Ran], left_out: list[Ran]) -> str:
    """What was run again and what was not, in a sentence or two."""
    text = f"Run again: {_labels(again)}." if again else "No cell was run again: none did nothing but define something."
    if left_out:
        text += f" Not run again, as they do more than define functions and variables: {_labels(left_out)}."
    return text


def _labels(cells: list[Ran]) -> str:
    return ", ".join(dict.fromkeys(cell.label for cell in cells))

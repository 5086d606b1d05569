"""Choose the cells that new ranks run again: those that only defined functions, classes and variables, and imports."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from IPython.core.inputtransformer2 import TransformerManager

IMPORT = (ast.Import, ast.ImportFrom)
DEFINE = (*IMPORT, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class ExecutedCell:
    """A cell that ranks ran without an error."""

    source: str
    targets: tuple[int, ...]
    label: str

    def on(self, n: int, before: int) -> list[int]:
        """On which of `n` ranks it runs again, where there were `before`: on all if it did so then."""
        return list(range(n)) if len(self.targets) == before else [t for t in self.targets if t < n]


def select_cells(ran: list[ExecutedCell]) -> tuple[list[ExecutedCell], list[ExecutedCell]]:
    """The cells to run again, in order, and those that are left out; a cell that ran several times counts once, where it ran last.

    Of those that are left out, the import lines run again: a function of another cell may need them.
    """
    last = {(cell.source, cell.targets): cell for cell in ran}
    ordered = [cell for cell in ran if last[cell.source, cell.targets] is cell]
    left_out = [cell for cell in ordered if not defines_only(cell.source)]
    again = [replace(cell, source=imports(cell.source)) if cell in left_out else cell for cell in ordered]
    return [cell for cell in again if cell.source], left_out


def defines_only(source: str) -> bool:
    """Return whether a cell only defines something, and prints; one that continues from earlier values, such as ``x += 1``, does more.

    >>> [defines_only(cell) for cell in ("import numpy as np\\nx = np.ones(3)", "x = 1\\nprint(x)", "x += 1")]
    [True, True, False]
    """
    body = _statements(source)
    return body is not None and all(isinstance(s, DEFINE) or _only_shows(s) for s in body)


def imports(source: str) -> str:
    """The import lines of a cell.

    >>> imports("import numpy as np\\ncomm.Barrier()")
    'import numpy as np'
    """
    return "\n".join(ast.unparse(s) for s in _statements(source) or () if isinstance(s, IMPORT))


def _statements(source: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(TransformerManager().transform_cell(source)).body
    except (SyntaxError, ValueError):
        return None


def _only_shows(statement: ast.stmt) -> bool:
    """Return whether it is a call of print, or a text, a number or a name alone on its line."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    printed = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
    return printed or isinstance(value, (ast.Constant, ast.Name))


def summary(again: list[ExecutedCell], left_out: list[ExecutedCell]) -> str:
    """Say which cells were run again and which were not, in a sentence or two."""
    whole = [cell for cell in again if cell.label not in {other.label for other in left_out}]
    text = f"Run again: {_labels(whole)}." if whole else "No cell was run again: none did nothing but define something."
    if left_out:
        lines = " (their import lines were)" if len(whole) < len(again) else ""
        text += f" Not run again, as they do more than define functions and variables{lines}: {_labels(left_out)}."
    return text


def _labels(cells: list[ExecutedCell]) -> str:
    return ", ".join(dict.fromkeys(cell.label for cell in cells))

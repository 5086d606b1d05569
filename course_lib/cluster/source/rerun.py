"""Choose the cells that new ranks run again: those that only define functions, classes and variables, or import modules."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from course_lib.cluster.source import cell

IMPORT = (ast.Import, ast.ImportFrom)
DEFINE = (*IMPORT, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class ExecutedCell:
    """A cell that ran without an error, the ranks that ran it, and its name in messages."""

    source: str
    targets: tuple[int, ...]
    label: str

    def on(self, n: int, before: int) -> list[int]:
        """Return the ranks, of `n`, on which it runs again: all if it ran on all `before` ranks, else the same as far as they exist."""
        return list(range(n)) if len(self.targets) == before else [t for t in self.targets if t < n]


def select_cells(ran: list[ExecutedCell]) -> tuple[list[ExecutedCell], list[ExecutedCell]]:
    """Choose which cells to run again; a cell that ran several times counts once, at its last position.

    Parameters
    ----------
    ran : list of ExecutedCell
        In the order in which they ran.

    Returns
    -------
    again : list of ExecutedCell
        Cells to run again, in order; of cells that are left out, the import lines, as functions of other cells may need them.
    left_out : list of ExecutedCell
    """
    last = {(cell.source, cell.targets): cell for cell in ran}
    ordered = [cell for cell in ran if last[cell.source, cell.targets] is cell]
    left_out = [cell for cell in ordered if not defines_only(cell.source)]
    again = [replace(cell, source=imports(cell.source)) if cell in left_out else cell for cell in ordered]
    return [cell for cell in again if cell.source], left_out


def defines_only(source: str) -> bool:
    """Return whether a cell only defines and prints; one that depends on earlier values, such as ``x += 1``, does more.

    >>> [defines_only(cell) for cell in ("import numpy as np\\nx = np.ones(3)", "x = 1\\nprint(x)", "x += 1")]
    [True, True, False]
    """
    body = statements(source)
    return body is not None and all(isinstance(s, DEFINE) or _only_shows(s) for s in body)


def imports(source: str) -> str:
    """Return the import lines of a cell.

    >>> imports("import numpy as np\\ncomm.Barrier()")
    'import numpy as np'
    """
    return "\n".join(ast.unparse(s) for s in statements(source) or () if isinstance(s, IMPORT))


def statements(source: str) -> list[ast.stmt] | None:
    """Parse a cell; None if it is not Python."""
    code = cell.below_magics(source)
    try:
        return ast.parse(cell.without_magics(code)).body if not code.startswith("%%") else None
    except cell.NOT_PYTHON:
        return None


def _only_shows(statement: ast.stmt) -> bool:
    """Return whether a statement is a call of print, or just a constant or a name."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    printed = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"
    return printed or isinstance(value, (ast.Constant, ast.Name))


def summary(again: list[ExecutedCell], left_out: list[ExecutedCell]) -> str:
    """Describe in a sentence or two which cells were run again, and which were not."""
    whole = [cell for cell in again if cell.label not in {other.label for other in left_out}]
    text = f"Run again: {_labels(whole)}." if whole else "No cell was run again: all of them do more than define functions and variables."
    if left_out:
        lines = " (their import lines were)" if len(whole) < len(again) else ""
        text += f" Not run again, as they do more than define functions and variables{lines}: {_labels(left_out)}."
    return text


def _labels(cells: list[ExecutedCell]) -> str:
    return ", ".join(dict.fromkeys(cell.label for cell in cells))

"""Recognize the library's ready-made wrapper in an answer, by its statements: they are no work of the student's."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence

from course_lib import ddp

MIN_NODES = 8  # of a statement's syntax tree; a smaller one may be anybody's
MAX_SHARE = 0.5  # of the wrapper's statements; the answers of this part have 0.14 at most
HEADS = {ast.If: "test", ast.While: "test", ast.For: "iter"}  # what counts of a statement with a body of its own
NO_CODE = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)


def ready_made_share(cells: Sequence[str]) -> float:
    """Return the share of the ready-made wrapper's statements that cells have, under any names and in any order.

    Parameters
    ----------
    cells : sequence of str
        Source code that ran on the ranks.

    Examples
    --------
    >>> ready_made_share(["class MyDP:\\n    pass"])
    0.0
    """
    ready = _statement_shapes(inspect.getsource(ddp))
    own = set().union(*map(_statement_shapes, cells))
    return len(ready & own) / len(ready)


def _statement_shapes(source: str) -> set[str]:
    """Return the shape of each statement that is not small, without its names."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith("%")]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    shapes = set()
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.stmt) or isinstance(statement, NO_CODE):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        part = getattr(statement, HEADS.get(type(statement), ""), statement)
        nodes = [type(node).__name__ for node in (statement, *ast.walk(part))]
        if len(nodes) >= MIN_NODES:
            shapes.add(" ".join(nodes))
    return shapes

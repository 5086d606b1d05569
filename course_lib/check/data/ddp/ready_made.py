"""Recognize the library's ready-made wrapper in an answer, by its methods: they are no work of the student's."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence

from course_lib import ddp

MIN_NODES = 25  # of a method's syntax tree; a smaller one may be anybody's
MAX_SHARED = 1  # methods that an answer may have in common with it


def ready_made_methods(cells: Sequence[str]) -> list[str]:
    """Return the names of the ready-made wrapper's methods that the answer has, under any names.

    Parameters
    ----------
    cells : sequence of str
        Source code, in the order in which it ran on the ranks; the last class ``MyDP`` counts.

    Examples
    --------
    >>> ready_made_methods(["class MyDP:\\n    def forward(self, x):\\n        return self.model(x)"])
    []
    """
    answer = next((cell for cell in reversed(cells) if "class MyDP" in cell), "")
    own = {shape for shape, _ in _method_shapes(answer)}
    ready = _method_shapes(inspect.getsource(ddp))
    return [name for shape, name in ready if shape in own]


def _method_shapes(source: str) -> Iterator[tuple[str, str]]:
    """Yield the shape of each function that is not small, without its names, and its name."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith("%")]
    try:
        tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        body = function.body[bool(ast.get_docstring(function)) :]
        nodes = [type(node).__name__ for part in body for node in ast.walk(part)]
        if len(nodes) >= MIN_NODES:
            yield " ".join(nodes), function.name

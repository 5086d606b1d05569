"""Decorators for the answers in `solutions/*/variants.py` and `cheats.py`, and their parser."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import EllipsisType

from grading.paths import SOLUTIONS

CELL_ANSWER = "cell"  # an answer that is a cell of its own


def loses(points: float) -> Callable:
    """Mark a wrong answer: it must lose exactly this many points."""
    return lambda function: function


def right(function: Callable) -> Callable:
    """Mark a right answer that is written differently: it must lose no points."""
    return function


def changes(*texts: str | EllipsisType) -> Callable:
    """Mark an answer as the solution with some of its text replaced: pairs of old and new text.

    A text may start on the line below its opening quotes, or be a module constant that several answers share; an old text of ``...`` is
    all that follows the solution's docstring. The decorated function needs a docstring that describes the change.
    """
    return lambda answer: answer


@dataclass(frozen=True)
class Answer:
    """A variant: the exercise's function, the variant's name, its source, the points it must lose, and its docstring's first line.

    A source made by `changes` keeps the solution's docstring.
    """

    function: str
    name: str
    source: str
    loses: float
    about: str = ""


def read(part: str, file: str = "variants.py") -> list[Answer]:
    """Read the answers in a part's variants.py or cheats.py; an empty list for a part without exercises.

    A function ``split_data__off_by_one`` answers the exercise ``split_data``; the body of a function ``cell__before`` is a cell that is
    added to an untouched notebook. The text is parsed, not run: it is meant for the ranks.
    """
    path = SOLUTIONS / part / file
    if not path.exists():
        return []
    text = path.read_text()
    answers, constants = [], {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            constants[node.targets[0].id] = ast.literal_eval(node.value)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        function, _, name = node.name.partition("__")
        mark, *changed = node.decorator_list
        points = ast.literal_eval(mark.args[0]) if isinstance(mark, ast.Call) else 0
        source = re.sub(rf"\b{node.name}\b", function, _lines(text, node))
        for call in changed:
            texts = [constants[a.id] if isinstance(a, ast.Name) else ast.literal_eval(a) for a in call.args]
            source = _changed(solution(part, function), texts, f"{path}: {node.name}")
        if function == CELL_ANSWER:
            source = textwrap.dedent("\n".join(source.splitlines()[node.body[0].lineno - node.lineno :]))
        answers.append(Answer(function, name, source, points, (ast.get_docstring(node) or "").partition("\n")[0]))
    return answers


def solution(part: str, name: str) -> str:
    """Return the solved function or class of an exercise."""
    text = (SOLUTIONS / part / f"{part}.py").read_text()
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    node = next(node for node in ast.parse(text).body if isinstance(node, kinds) and node.name == name)
    lines = _lines(text, node).splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("### ")).rstrip() + "\n"


def _lines(text: str, node: ast.stmt) -> str:
    """Return the lines of a function or class, without decorators; `ast.get_source_segment` would scan the whole text for each."""
    return "\n".join(text.split("\n")[node.lineno - 1 : node.end_lineno])


def _changed(text: str, texts: list[str | EllipsisType], where: str) -> str:
    """Replace parts of a function's or class's text."""
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        if old is ...:
            old = "\n".join(text.splitlines()[ast.parse(text).body[0].body[0].end_lineno :])
        old, new = old.removeprefix("\n"), new.removeprefix("\n")
        if old not in text:
            raise ValueError(f"{where} replaces a text that is not in the solution: {old!r}.")
        text = text.replace(old, new, 1)
    return text

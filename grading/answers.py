"""Marks for the answers in `solutions/*/variants.py` and `cheats.py`, and how they are read."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

from grading.paths import SOLUTIONS

CELL = "cell"  # an answer that is a cell of its own


def loses(points: float) -> Callable:
    """Mark a wrong answer: it must lose exactly this many points."""
    return lambda function: function


def right(function: Callable) -> Callable:
    """Mark an answer that is right, written in another way: it must lose none."""
    return function


@dataclass(frozen=True)
class Answer:
    """A variant: `name` of the exercise's function and of the variant, its text, the points it must lose."""

    function: str
    name: str
    source: str
    loses: float


def read(part: str, file: str = "variants.py") -> list[Answer]:
    """The answers in a part's variants.py or cheats.py; none for a part without exercises.

    A function ``split_data__off_by_one`` is an answer to the exercise ``split_data``; the body of a function ``cell__before`` is a
    cell that somebody adds to an untouched notebook. The text is read, not run: it is meant for the ranks.
    """
    path = SOLUTIONS / part / file
    if not path.exists():
        return []
    text = path.read_text()
    answers = []
    for node in ast.parse(text).body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        function, _, name = node.name.partition("__")
        (mark,) = node.decorator_list
        points = ast.literal_eval(mark.args[0]) if isinstance(mark, ast.Call) else 0
        source = re.sub(rf"\b{node.name}\b", function, ast.get_source_segment(text, node))
        if function == CELL:
            source = textwrap.dedent("\n".join(source.splitlines()[node.body[0].lineno - node.lineno :]))
        answers.append(Answer(function, name, source, points))
    return answers

"""Mutants of a part's solutions: each differs in one place, by one of the `operators`."""

from __future__ import annotations

import ast
import difflib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from grading.authoring import build
from grading.mutants.operators import OPERATORS, WORLD, WORLD_IMPORT, Replacement, remove

MAX_SHOWN_LINES = 2  # of a change of several lines


@dataclass(frozen=True)
class Mutant:
    """A changed solution of an exercise.

    Attributes
    ----------
    cell : str
        Id of the exercise's cell.
    function : str
        Where the change is, such as ``split_data`` or ``MyDP.__init__``.
    change : str
        ``line before → line after``, in the form of `ast.unparse`.
    source : str
        The whole cell.
    """

    cell: str
    function: str
    change: str
    source: str

    def __str__(self) -> str:
        return f"{self.function}: {self.change}"


def mutants(part: str) -> list[Mutant]:
    """Return all mutants of a part's exercises, each once, in the source's order."""
    cells = [cell for cell in build.build(part).cells if build.kind_of(cell) == "exercise"]
    return [mutant for cell in cells for mutant in mutants_of(cell.source, cell.id)]


def rewritten(source: str) -> str:
    """Return an exercise's cell in the form that its mutants have, without a change."""
    magic, _, code = source.partition("\n")
    return f"{magic}\n{ast.unparse(ast.parse(code))}\n"


def mutants_of(source: str, cell: str = "") -> list[Mutant]:
    """Return the mutants of an exercise's cell: what stands between its solution marks changes."""
    magic, _, code = source.partition("\n")
    solved = _solution_lines(code)
    tree = ast.parse(code)
    original = ast.unparse(tree)
    bound = _bindings(tree)
    texts = {original}
    seen: Counter[tuple[str, str]] = Counter()
    result = []
    for place in _places(tree, ""):
        if place.node.lineno not in solved:
            continue
        for operator in OPERATORS:
            if operator is remove and _is_only_binding(place.node, bound):
                continue
            for new in operator(place.node):
                text = place.text_with(new, tree)
                if text in texts:
                    continue
                texts.add(text)
                key = place.function, _change(original, text)
                seen[key] += 1
                change = key[1] if seen[key] == 1 else f"{key[1]} (place {seen[key]})"
                imports = f"{WORLD_IMPORT}\n" if WORLD in text else ""
                result.append(Mutant(cell, place.function, change, f"{magic}\n{imports}{text}\n"))
    return result


def draw(mutants: list[Mutant], number: int, seed: str) -> list[Mutant]:
    """Draw some of the mutants; the same seed always draws the same ones."""
    return random.Random(seed).sample(mutants, min(number, len(mutants)))


@dataclass
class _Place:
    """A node, and where it hangs in its tree."""

    node: ast.AST
    parent: ast.AST
    field: str
    function: str

    def text_with(self, new: Replacement, tree: ast.Module) -> str:
        """Return the tree's text with something else in this place; the tree itself stays."""
        before = getattr(self.parent, self.field)
        if isinstance(before, list):
            i = next(i for i, child in enumerate(before) if child is self.node)
            after = [*before[:i], *(new if isinstance(new, list) else [new]), *before[i + 1 :]]
            if not after and self.field == "body":
                after = [ast.Pass()]
        else:
            after = new
        setattr(self.parent, self.field, after)
        try:
            return ast.unparse(tree)
        finally:
            setattr(self.parent, self.field, before)


def _places(parent: ast.AST, function: str) -> Iterator[_Place]:
    """Yield all nodes below a node that have a line, but no annotation."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST):
                continue
            inner = function
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{function}.{node.name}".lstrip(".")
            if isinstance(node, ast.comprehension):
                node.lineno = node.iter.lineno
            if hasattr(node, "lineno"):
                yield _Place(node, parent, field, function)
            if not _is_any_length(node, parent):
                yield from _places(node, inner)


def _is_any_length(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether a node is the -1 of ``reshape``, where NumPy takes -2 for the same."""
    match parent:
        case ast.Call(func=ast.Attribute(attr="reshape")):
            return isinstance(node, ast.UnaryOp)
    return False


def _solution_lines(code: str) -> set[int]:
    """Return the numbers of the lines between BEGIN SOLUTION and END SOLUTION."""
    inside = False
    numbers = set()
    for number, line in enumerate(code.splitlines(), 1):
        if line.strip().startswith("### "):
            inside = line.strip() == "### BEGIN SOLUTION"
        elif inside:
            numbers.add(number)
    return numbers


def _bindings(tree: ast.AST) -> Counter[str]:
    """Count how often each name is bound below a node."""
    names: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names[node.arg] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] += 1
    return names


def _is_only_binding(node: ast.AST, bound: Counter[str]) -> bool:
    """Return whether code without this assignment would just end in a NameError."""
    return isinstance(node, ast.Assign) and any(bound[name] == 1 for name in _bindings(node))


def _change(before: str, after: str) -> str:
    """Return the lines that differ, as ``before → after``."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    sides = []
    for sign in "-+":
        changed = [line[2:].strip() for line in lines if line[0] == sign]
        shown = changed if len(changed) <= MAX_SHOWN_LINES else [*changed[:MAX_SHOWN_LINES], "..."]
        sides.append(" / ".join(shown) or "nothing")
    return " → ".join(sides)

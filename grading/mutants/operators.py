"""Operators for mutants: each yields what a usual mistake would have in a node's place.

They are written over `ast`. Those of cosmic-ray and mutmut know nothing about ranks, so half of
these would be needed beside them; both libraries install a dozen packages or more, and most of
their mutants only end in a NameError or a TypeError.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from course_lib.collectives import Communicator

Replacement = ast.AST | list[ast.stmt]
Operator = Callable[[ast.AST], Iterator[Replacement]]

COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMMUTATIVE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)
OTHER_NAMES = {
    "SUM": "MAX",
    "MAX": "SUM",
    "MIN": "MAX",
    "sum": "mean",
    "mean": "sum",
    "max": "min",
    "min": "max",
    "maximum": "minimum",
    "minimum": "maximum",
    "argmax": "argmin",
    "argmin": "argmax",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "ceil": "floor",
    "floor": "ceil",
    "any": "all",
    "all": "any",
    "float16": "float32",
    "float32": "float64",
    "float64": "float32",
    "popleft": "pop",
}
# Calls that are replaced by the array that they are about: f(x, ...) and x.f(...).
FUNCTIONS_LEFT_OUT = (
    *("abs", "ascontiguousarray", "array", "asarray", "ceil", "float", "floor", "int"),
    *("reversed", "round", "set", "sorted", "sqrt"),
)
METHODS_LEFT_OUT = (
    *("astype", "conj", "copy", "flatten", "ravel"),
    *("reshape", "squeeze", "swapaxes", "transpose"),
)
SWAPPED_KEYWORDS = (("dest", "source"), ("sendbuf", "recvbuf"))
COMMUNICATION = {name for name in dir(Communicator) if name[0].isupper()}
WORLD = "Communicator()"
WORLD_IMPORT = "from course_lib.collectives import Communicator"
KEPT_STATEMENTS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom),
    *(ast.Return, ast.Pass, ast.Nonlocal, ast.Global, ast.Break, ast.Continue),
)


def compare(node: ast.AST) -> Iterator[Replacement]:
    """``<`` becomes ``<=`` or ``>=``, ``==`` becomes ``!=``."""
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                yield _changed(node, ops=_with(node.ops, i, other()))


def calculate(node: ast.AST) -> Iterator[Replacement]:
    """``+`` becomes ``-``; the right operand is dropped, or the left one; ``+=`` becomes ``=``."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        yield _changed(node, op=ARITHMETIC[type(node.op)]())
    if isinstance(node, ast.BinOp):
        yield node.left
        if isinstance(node.op, COMMUTATIVE):
            yield node.right
        if isinstance(node.op, ast.MatMult):
            yield _changed(node, left=node.right, right=node.left)
    if isinstance(node, ast.AugAssign):
        yield ast.copy_location(ast.Assign([node.target], node.value), node)


def decide(node: ast.AST) -> Iterator[Replacement]:
    """``and`` becomes ``or``, or loses an operand; a condition is always met, or never."""
    if isinstance(node, ast.BoolOp):
        yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield _changed(node, values=rest) if len(rest) > 1 else rest[0]
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If):
        yield node.body
        if node.orelse:
            yield node.orelse
            yield _changed(node, orelse=[])
    elif isinstance(node, ast.comprehension):
        for i in range(len(node.ifs)):
            yield _changed(node, ifs=[*node.ifs[:i], *node.ifs[i + 1 :]])


def negate(node: ast.AST) -> Iterator[Replacement]:
    """``not`` and ``-`` are dropped."""
    if isinstance(node, ast.UnaryOp):
        yield node.operand


def count(node: ast.AST) -> Iterator[Replacement]:
    """A number is one more or one less, a factor twice as large; a flag is the other one."""
    if not isinstance(node, ast.Constant):
        return
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield _number(node.value - 1)
    elif isinstance(node.value, float):
        yield ast.Constant(2 * node.value if node.value else 1.0)


def size(node: ast.AST) -> Iterator[Replacement]:
    """A size is one less: ``n``, ``mp_size``, ``len(x)``, ``comm.Get_size()``."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()) if name == "n" or name.endswith("size"):
            yield _plus(node, -1)
        case ast.Call(func=ast.Name(id="len") | ast.Attribute(attr="Get_size")):
            yield _plus(node, -1)


def cut(node: ast.AST) -> Iterator[Replacement]:
    """A slice's bound is dropped, or one more or less; its step is dropped."""
    if not isinstance(node, ast.Slice):
        return
    for side in ("lower", "upper"):
        bound = getattr(node, side)
        if bound is not None:
            yield _changed(node, **{side: None})
        if bound is not None and not isinstance(bound, ast.Constant):
            yield _changed(node, **{side: _plus(bound, 1)})
            yield _changed(node, **{side: _plus(bound, -1)})
    if node.step:
        yield _changed(node, step=None)


def leave(node: ast.AST) -> Iterator[Replacement]:
    """``break`` becomes ``continue``; a result is None; a loop runs once; no ``with``."""
    if isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Return) and node.value is not None:
        yield _changed(node, value=ast.Constant(None))
    elif isinstance(node, ast.While):
        yield ast.copy_location(ast.If(node.test, node.body, node.orelse), node)
    elif isinstance(node, (ast.With, ast.Try)):
        yield node.body


def remove(node: ast.AST) -> Iterator[Replacement]:
    """A statement is removed: a Barrier, a Wait, a ``+=``, a whole ``if``."""
    documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.stmt) and not isinstance(node, KEPT_STATEMENTS) and not documents:
        yield []


def call(node: ast.AST) -> Iterator[Replacement]:
    """Arguments are swapped; a keyword, or the last argument, is dropped."""
    if not isinstance(node, ast.Call):
        return
    for i in range(len(node.args) - 1):
        swapped = _with(_with(node.args, i, node.args[i + 1]), i + 1, node.args[i])
        yield _changed(node, args=swapped)
    if len(node.args) > 1:
        yield _changed(node, args=node.args[:-1])
    for i in range(len(node.keywords)):
        yield _changed(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])
    names = [keyword.arg for keyword in node.keywords]
    for first, second in SWAPPED_KEYWORDS:
        if first in names and second in names:
            other = {first: second, second: first}
            swapped = [_changed(k, arg=other.get(k.arg, k.arg)) for k in node.keywords]
            yield _changed(node, keywords=swapped)


def order(node: ast.AST) -> Iterator[Replacement]:
    """Neighbours in a tuple are swapped: in a shape, or in what a function returns."""
    if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
        for i in range(len(node.elts) - 1):
            swapped = _with(_with(node.elts, i, node.elts[i + 1]), i + 1, node.elts[i])
            yield _changed(node, elts=swapped)


def leave_out(node: ast.AST) -> Iterator[Replacement]:
    """No copy, no other dtype, not sorted, not reversed, not transposed."""
    match node:
        case ast.Call(func=ast.Attribute(value=array, attr=name)) if name in METHODS_LEFT_OUT:
            yield array
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *_]):
            if name in FUNCTIONS_LEFT_OUT:
                yield first
        case ast.Attribute(value=array, attr="T", ctx=ast.Load()):
            yield array


def rename(node: ast.AST) -> Iterator[Replacement]:
    """SUM for MAX, ``sum`` for ``mean``, zeros for ones."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()) if name in OTHER_NAMES:
            yield _changed(node, attr=OTHER_NAMES[name])
        case ast.Call(func=ast.Name(id=name) as function) if name in OTHER_NAMES:
            yield _changed(node, func=_changed(function, id=OTHER_NAMES[name]))


def everyone(node: ast.AST) -> Iterator[Replacement]:
    """All ranks in place of the group's: in a collective, in a message, in the own rank."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) as function) if name in COMMUNICATION:
            world = ast.parse(WORLD, mode="eval").body
            yield _changed(node, func=_changed(function, value=world))


OPERATORS: tuple[Operator, ...] = (
    *(compare, calculate, decide, negate, count, size, cut, leave, remove),
    *(call, order, leave_out, rename, everyone),
)


def _changed(node: ast.AST, **fields) -> ast.AST:
    """Return a copy of a node with other fields."""
    twin = copy.copy(node)
    for name, value in fields.items():
        setattr(twin, name, value)
    return twin


def _with(nodes: list, i: int, new: ast.AST) -> list:
    return [*nodes[:i], new, *nodes[i + 1 :]]


def _plus(node: ast.expr, one: int) -> ast.BinOp:
    return ast.BinOp(node, ast.Add() if one > 0 else ast.Sub(), ast.Constant(1))


def _number(value: int) -> ast.expr:
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))

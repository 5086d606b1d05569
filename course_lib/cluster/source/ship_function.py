"""Pack a function of the notebook for a rank: its source, and what its global names mean in the kernel.

A check's helpers thus work on the rank as they do here, whatever the rank's cells have defined under the same names. A name not defined in
the kernel, such as an exercise's function, is looked up on the rank.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable

PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))


def pack(function: Callable, graded: bool) -> dict:
    """Pack a function for sending.

    Parameters
    ----------
    function : function
    graded : bool
        Whether the kernel's definitions of functions that it uses take precedence over the rank's. They do not in a student's notebook,
        where the kernel may have an old definition, from before its cell had a %%px.

    Returns
    -------
    dict
        "function": its name; "source": its source and that of the functions that it uses; "modules" and "objects": where its other
        names are imported from; "values": plain values; "yielding": functions that the rank's own definitions replace.
    """
    packed: dict = {"function": function.__name__, "sources": {}, "modules": {}, "objects": {}, "values": {}}
    _add(function, packed)
    sources = packed.pop("sources")
    packed["source"] = "\n\n".join(sources.values())
    packed["yielding"] = [] if graded or function.__module__ != "__main__" else [name for name in sources if name != function.__name__]
    return packed


def _add(function: Callable, packed: dict) -> None:
    if function.__name__ in packed["sources"]:
        return
    known = inspect.unwrap(function).__globals__
    source, names = _read(inspect.unwrap(function).__code__)
    packed["sources"][function.__name__] = source
    for name in sorted(names & known.keys()):
        value = known[name]
        if isinstance(value, types.ModuleType):
            packed["modules"][name] = value.__name__
        elif isinstance(value, PLAIN):
            if function.__module__ != "__main__" or name.isupper():  # a lower-case variable of the notebook may be meant to be the rank's
                packed["values"][name] = value
        elif isinstance(value, types.FunctionType) and value.__module__ == function.__module__:
            _add(value, packed)
        elif value is _imported(value):
            packed["objects"][name] = (value.__module__, value.__qualname__)


@functools.lru_cache(256)
def _read(code: types.CodeType) -> tuple[str, frozenset[str]]:
    """Return a function's source text and the names in it; cached, as this takes longer than most calls."""
    source = textwrap.dedent(inspect.getsource(code))
    return source, frozenset(node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name))


def _imported(value: object) -> object:
    """Return the object found by importing the value's module and name; None if it is the notebook's."""
    module = getattr(value, "__module__", None)
    return getattr(sys.modules.get(module), getattr(value, "__qualname__", ""), None) if module != "__main__" else None
